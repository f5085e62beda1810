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

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/svm-api/client/clientset/versioned"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/samples"
)

const (
	pluginUser = "plugin"
	masters    = "system:masters"
	// groups is how many groups the definitions are in.
	groups   = 50
	creators = 8
	// payload is the size of an object.
	payload = 1500
	perPut  = 100
	// builtIn is at least how many built-in resources have states.
	builtIn = 50

	// auditPolicy records only requests of those who are measured.
	auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ["` + user + `", "` + pluginUser + `"]
- level: None
`
)

// cluster is what all phases share.
type cluster struct {
	options
	cp           *controlplane.ControlPlane
	extensions   apiextensions.Interface
	migration    versioned.Interface
	manager      *controlplane.Process
	adminConfig  string
	pluginConfig string
	// full is the resource that has objects.
	full schema.GroupResource
	// left is how many states were not as wanted when the patience of a phase ended.
	left int
}

// start starts a control plane, and installs what the static pod needs.
func start(ctx context.Context, o options) (c *cluster, err error) {
	c = &cluster{options: o, full: name(0)}
	c.cp, err = controlplane.New(ctx, controlplane.Config{
		Dir: o.dir, Servers: []controlplane.Server{{AuditPolicy: auditPolicy}},
	})
	if err != nil {
		return nil, fmt.Errorf("starting a control plane: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.cp.Close())
		}
	}()
	if c.extensions, err = apiextensions.NewForConfig(c.cp.AdminConfig()); err != nil {
		return nil, err
	}
	if c.migration, err = versioned.NewForConfig(c.cp.AdminConfig()); err != nil {
		return nil, err
	}
	c.adminConfig = filepath.Join(c.cp.Dir(), "admin.kubeconfig")
	c.pluginConfig = filepath.Join(c.cp.Dir(), "plugin.kubeconfig")
	if err := c.cp.WriteKubeconfig(c.adminConfig, c.cp.AdminConfig()); err != nil {
		return nil, err
	}
	if err := c.cp.WriteKubeconfig(c.pluginConfig, c.cp.Config(pluginUser, masters)); err != nil {
		return nil, err
	}
	if _, err := c.cp.StartControllerManager("--controllers=clusterrole-aggregation-controller"); err != nil {
		return nil, err
	}
	if err := c.kubectl(ctx, nil, "apply", "-k", "build/manifests/overlays/static-pod"); err != nil {
		return nil, err
	}
	return c, c.kubectl(ctx, nil, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
}

func (c *cluster) kubectl(ctx context.Context, in []byte, args ...string) error {
	command := exec.CommandContext(ctx, c.binary("kubectl"), append(args, "--kubeconfig="+c.adminConfig)...)
	command.Stdin = bytes.NewReader(in)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %v: %w\n%s", args, err, out)
	}
	return nil
}

// name is the name of a custom resource.
func name(n int) schema.GroupResource {
	return schema.GroupResource{
		Group: fmt.Sprintf("group-%02d.example.com", n%groups), Resource: fmt.Sprintf("things%04d", n),
	}
}

// isCustom tells the states of the definitions, and isLeft those of resources that nobody serves.
func (c *cluster) isCustom(s *v1alpha1.StorageState) bool {
	return strings.HasSuffix(s.Spec.Resource.Group, ".example.com")
}

func (c *cluster) isLeft(s *v1alpha1.StorageState) bool { return strings.HasPrefix(s.Name, "left") }

// unserved is how many states of resources that nobody serves there are.
func (c *cluster) unserved() int { return max(0, c.states-c.definitions-builtIn) }

// want is how many states there are at least.
func (c *cluster) want() int { return c.definitions + builtIn + c.unserved() }

// createDefinitions creates the definitions, and states of resources that nobody serves.
func (c *cluster) createDefinitions(ctx context.Context) error {
	if err := c.createStates(ctx); err != nil {
		return err
	}
	client := c.extensions.ApiextensionsV1().CustomResourceDefinitions()
	if err := each(c.definitions, func(n int) error {
		resource := name(n)
		kind := strings.ToUpper(resource.Resource[:1]) + resource.Resource[1:]
		_, err := client.Create(ctx, samples.Definition(resource, kind, "v1", "v1", "v2"), metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	for {
		list, err := client.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		established := 0
		for i := range list.Items {
			for _, condition := range list.Items[i].Status.Conditions {
				if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
					established++
				}
			}
		}
		if established >= c.definitions {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(poll):
		}
	}
}

func (c *cluster) createStates(ctx context.Context) error {
	client := c.migration.MigrationV1alpha1().StorageStates()
	return each(c.unserved(), func(n int) error {
		resource := v1alpha1.GroupResource{Group: "apps", Resource: fmt.Sprintf("left%04d", n)}
		state := &v1alpha1.StorageState{
			ObjectMeta: metav1.ObjectMeta{Name: resource.StorageStateName()},
			Spec:       v1alpha1.StorageStateSpec{Resource: resource},
		}
		_, err := client.Create(ctx, state, metav1.CreateOptions{})
		return err
	})
}

// each calls do with the numbers below n, some at a time.
func each(n int, do func(n int) error) error {
	var group errgroup.Group
	group.SetLimit(creators)
	for i := range n {
		group.Go(func() error { return do(i) })
	}
	return group.Wait()
}

// fill puts the objects into etcd as the API server would, and makes the definition store another version.
func (c *cluster) fill(ctx context.Context) error {
	kind := strings.ToUpper(c.full.Resource[:1]) + c.full.Resource[1:]
	created := metav1.Now().Rfc3339Copy()
	if err := each((c.objects+perPut-1)/perPut, func(chunk int) error {
		var puts []clientv3.Op
		for n := chunk * perPut; n < min(c.objects, (chunk+1)*perPut); n++ {
			object := map[string]any{
				"apiVersion": c.full.Group + "/v1", "kind": kind,
				"metadata": metav1.ObjectMeta{
					Name: fmt.Sprintf("object-%07d", n), Namespace: metav1.NamespaceDefault, Generation: 1,
					UID: types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", n)), CreationTimestamp: created,
				},
				"spec": map[string]string{"payload": strings.Repeat("x", payload)},
			}
			raw, err := json.Marshal(object)
			if err != nil {
				return err
			}
			key := fmt.Sprintf("/registry/%s/%s/default/object-%07d", c.full.Group, c.full.Resource, n)
			puts = append(puts, clientv3.OpPut(key, string(raw)))
		}
		_, err := c.cp.Etcd().Client().Txn(ctx).Then(puts...).Commit()
		return err
	}); err != nil {
		return err
	}
	role, err := exec.CommandContext(ctx, c.binary("kubectl-svm"), "rbac", "--kubeconfig="+c.adminConfig).Output()
	if err != nil {
		return fmt.Errorf("kubectl svm rbac: %w", err)
	}
	if err := c.kubectl(ctx, role, "apply", "--server-side", "-f", "-"); err != nil {
		return err
	}
	patch := `[{"op": "replace", "path": "/spec/versions/0/storage", "value": false},
		{"op": "replace", "path": "/spec/versions/1/storage", "value": true}]`
	_, err = c.extensions.ApiextensionsV1().CustomResourceDefinitions().
		Patch(ctx, c.full.String(), types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// startManager starts a manager with the flags of the static pod, but a short settle period.
func (c *cluster) startManager(name string, args ...string) (err error) {
	kubeconfig := filepath.Join(c.cp.Dir(), name+".kubeconfig")
	if err := c.cp.WriteKubeconfig(kubeconfig, c.cp.Config(user)); err != nil {
		return err
	}
	c.manager, err = c.cp.StartProcess(controlplane.Program{
		Name: name, Path: c.binary("svm-controller-manager"),
		Args: append([]string{
			"--kubeconfig=" + kubeconfig, "--bind-address=127.0.0.1", "--secure-port=0",
			// On a busy machine a leader may lose its lease, and this measures one process.
			"--leader-elect=false",
			"--settle-period=5s",
		}, args...),
	})
	return err
}

func (c *cluster) replaceManager(name string, args ...string) error {
	if err := c.manager.Stop(); err != nil {
		return err
	}
	return c.startManager(name, args...)
}

// requests are those since a moment.
func (c *cluster) requests(since time.Time) (controlplane.RequestCounts, error) {
	counts, err := c.cp.Requests(controlplane.RequestFilter{Since: since})
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
	}
	return counts, err
}
