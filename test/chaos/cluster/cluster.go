/*
Copyright The svm-controller-manager Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-api/client/clientset/versioned"

	"sigs.k8s.io/svm-controller-manager/test/chaos/model"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

const (
	// Settle is the settle period of the managers. It covers a write that was accepted before, as it has to, because the
	// servers give up on requests after RequestTimeout.
	Settle = 8 * time.Second
	// RequestTimeout is that of the API servers.
	RequestTimeout = 5 * time.Second
	// ChunkSize is how many objects a manager rewrites before it saves its progress.
	ChunkSize = 25
	// Workers is how many objects a manager rewrites at a time.
	Workers = 4

	// managerUser is who the managers are.
	managerUser = "svm-manager"
	masters     = "system:masters"
	// oldRelease is what servers emulate when they write policies in the older version.
	oldRelease = "1.36"
	// reviveInterval is how soon a process that ended is started again.
	reviveInterval = time.Second
	// auditPolicy records the rewrites of the managers and nothing else.
	auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: [` + managerUser + `]
  verbs: [patch, update]
- level: None
`
)

// Config says what to run.
type Config struct {
	// Manager is the path of the manager's program.
	Manager string
	// ManagerArgs are flags that only the second manager has.
	ManagerArgs []string
	// Dir is where logs and data go. It must be empty or absent.
	Dir  string
	Logf func(format string, args ...any)
}

// Cluster is all that runs.
type Cluster struct {
	*controlplane.ControlPlane
	History  *model.History
	Managers []*Node
	APIs     []*Node
	EtcdNode *Node
	// Webhooks are the server of Conversion and Validation: of gears, and of springs.
	Webhooks               *webhook.Server
	Conversion, Validation *webhook.Hook
	Kube                   kubernetes.Interface
	Extensions             apiextensions.Interface
	Migration              versioned.Interface

	config   Config
	recorder *recorder
	ctx      context.Context
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu sync.Mutex
	// old tells of each server whether it emulates the old release.
	old []bool
}

// Start starts everything. Close ends it, also if Start fails.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	servers := make([]controlplane.Server, 3)
	for i := range servers {
		servers[i] = controlplane.Server{
			AllowAll: true, AuditPolicy: auditPolicy, EmulatedVersion: oldRelease,
			RuntimeConfig: []string{"admissionregistration.k8s.io/v1beta1=true"}, // of policies
			ExtraArgs:     []string{"--request-timeout=" + RequestTimeout.String()},
		}
	}
	cp, err := controlplane.New(ctx, controlplane.Config{
		Servers: servers, Dir: config.Dir, Environment: controlplane.CollectLate,
	})
	if err != nil {
		return nil, err
	}
	c := &Cluster{ControlPlane: cp, History: &model.History{}, config: config, old: []bool{true, true, true}}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.History.BeginEra(0)
	c.recorder = record(c.ctx, cp.Etcd().Client(), c.History, 0)
	if err := c.prepare(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *Cluster) prepare(ctx context.Context) error {
	config := c.AdminConfig()
	config.Timeout = 10 * time.Second
	var err error
	if c.Kube, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if c.Extensions, err = apiextensions.NewForConfig(config); err != nil {
		return err
	}
	if c.Migration, err = versioned.NewForConfig(config); err != nil {
		return err
	}
	if err := controlplane.InstallMigrationAPI(ctx, config); err != nil {
		return err
	}
	if err := c.install(ctx); err != nil {
		return err
	}
	if err := c.makeNodes(); err != nil {
		return err
	}
	c.running.Go(c.supervise)
	return nil
}

func (c *Cluster) makeNodes() error {
	host, err := c.Host(c.Etcd().Host())
	if err != nil {
		return err
	}
	c.EtcdNode = &Node{
		Name: "etcd", Host: host, process: c.Etcd().Process, start: func() error { return c.Etcd().Restart(nil) },
	}
	for _, server := range c.Servers() {
		if host, err = c.Host(server.Host()); err != nil {
			return err
		}
		c.APIs = append(c.APIs, &Node{
			Name: server.Name(), Host: host, process: server.Process, start: func() error { return server.Restart(nil) },
		})
	}
	for i, args := range [][]string{nil, c.config.ManagerArgs} {
		node, err := c.newManager(fmt.Sprintf("manager-%d", i+1), args...)
		if err != nil {
			return err
		}
		c.Managers = append(c.Managers, node)
	}
	return nil
}

func (c *Cluster) newManager(name string, args ...string) (*Node, error) {
	host, err := c.Host(name)
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(c.Dir(), name+".kubeconfig")
	if err := c.WriteKubeconfig(kubeconfig, c.Config(managerUser, masters)); err != nil {
		return nil, err
	}
	program := controlplane.Program{
		Name: name, Path: c.config.Manager, Host: name, Env: []string{"GOGC=400"},
		Args: append([]string{
			"--kubeconfig=" + kubeconfig, "--secure-port=0", "-v=2",
			"--leader-elect-lease-duration=8s", "--leader-elect-renew-deadline=6s", "--leader-elect-retry-period=1s",
			"--settle-period=" + Settle.String(), "--poll-interval=10s",
			"--auto-migrate=*." + model.Group + ",configmaps,secrets," + model.Policies.GroupResource.String(),
			fmt.Sprintf("--migration-chunk-size=%d", ChunkSize), fmt.Sprintf("--max-concurrent-rewrites=%d", Workers),
		}, args...),
	}
	var mu sync.Mutex
	var process *controlplane.Process
	node := &Node{Name: name, Host: host}
	node.process = func() *controlplane.Process {
		mu.Lock()
		defer mu.Unlock()
		return process
	}
	node.start = func() error {
		started, err := c.StartProcess(program)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			process = started
		}
		return err
	}
	return node, nil
}

// Nodes are all nodes.
func (c *Cluster) Nodes() []*Node {
	return append(append([]*Node{c.EtcdNode}, c.APIs...), c.Managers...)
}

// supervise starts again what has ended, until the end.
func (c *Cluster) supervise() {
	var reviving sync.WaitGroup
	defer reviving.Wait()
	for _, node := range c.Nodes() {
		reviving.Go(func() {
			ticker := time.NewTicker(reviveInterval)
			defer ticker.Stop()
			for {
				if err := node.revive(); err != nil && c.ctx.Err() == nil {
					c.config.Logf("the supervisor: %v", err)
				}
				select {
				case <-ticker.C:
				case <-c.ctx.Done():
					return
				}
			}
		})
	}
}

// Sync returns when all that is in etcd now is in the history.
func (c *Cluster) Sync(ctx context.Context) error { return c.recorder.sync(ctx) }

// ServerConfig is a configuration of a writer that sends its requests to one API server.
func (c *Cluster) ServerConfig(i int, writer string) *rest.Config {
	return c.Servers()[i].Config(writer, masters)
}

// ManagerLogs are the paths of the managers' logs.
func (c *Cluster) ManagerLogs() []string {
	var paths []string
	for _, node := range c.Managers {
		if p := node.process(); p != nil {
			paths = append(paths, p.LogPath())
		}
	}
	return paths
}

// Close ends everything.
func (c *Cluster) Close() error {
	c.cancel()
	err := c.ControlPlane.Close()
	c.running.Wait()
	http.DefaultClient.CloseIdleConnections()
	if c.Webhooks != nil {
		err = errors.Join(err, c.Webhooks.Close())
	}
	return errors.Join(err, c.recorder.stop())
}
