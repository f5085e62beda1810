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
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// Who can be compared. The names are those of the tables.
const (
	ours       = "ours"
	oursLifted = "ours, lifted"
	// evenly is followed by the rewrites in a second, for example "even, 90". They are sent one at a time, at even
	// intervals.
	evenly     = "even, "
	inTree     = "in-tree"
	ksvm       = "ksvm"
	ksvmLifted = "ksvm, lifted"
	naked1     = "naked, 1"
	naked64    = "naked, 64"
)

const (
	// inTreeUser is who the migrator of kube-controller-manager is. The garbage collector, which it needs, is another.
	inTreeUser = "system:serviceaccount:kube-system:storage-version-migrator-controller"
	succeeded  = "Succeeded"
	failed     = "Failed"
	// patience is how long a migration may take, and deniedPatience how long one that cannot write all objects.
	patience       = 45 * time.Minute
	deniedPatience = 3 * time.Minute
)

// controllersToRun are those of kube-controller-manager that its migrator needs.
const controllersToRun = "--controllers=garbage-collector-controller,storage-version-migrator-controller," +
	"serviceaccount-token-controller"

// contender is somebody who migrates, in processes of its own.
type contender struct {
	// user is who it is to the API server.
	user string
	// start starts its processes. It does so again after they were killed.
	start func() ([]*controlplane.Process, error)
	// ask asks for a migration of all widgets.
	ask func(ctx context.Context) error
	// outcome is how that migration ended, empty while it goes on, and what it tells.
	outcome func(ctx context.Context) (outcome, told string, err error)
	// forget deletes that migration, so that nobody goes on with it.
	forget func(ctx context.Context) error

	running []*controlplane.Process
	// ended is what processes used that were killed.
	ended controlplane.Usage
}

// newContender makes a contender, which does not run yet. controllers is the kube-controller-manager that runs.
func (b *bench) newContender(w *widgets, name string, controllers *controlplane.Process) (*contender, error) {
	switch name {
	case naked1, naked64:
		return newNaked(w, strings.TrimPrefix(name, "naked, ")), nil
	case inTree:
		return newInTree(w, controllers), nil
	}
	programs, err := b.programs(w.cp, name, false)
	if err != nil {
		return nil, err
	}
	return newExternal(w, programs), nil
}

// programs are what a contender runs that knows the migration API. Those that are unattended find out themselves what
// is to be migrated.
func (b *bench) programs(cp *controlplane.ControlPlane, name string, unattended bool) ([]controlplane.Program, error) {
	kubeconfig, err := kubeconfigOf(cp, externalUser)
	if err != nil {
		return nil, err
	}
	kubeconfig = "--kubeconfig=" + kubeconfig
	manager, err := controlplane.Binary(names.Manager)
	if err != nil {
		return nil, err
	}
	args := []string{kubeconfig, "--secure-port=0", "--leader-elect=false"}
	if !unattended {
		// Without its trigger the manager has to see the agreement of the servers itself before it writes.
		args = append(args, "--controllers=svmigrator", "--settle-period=1s")
	}
	migrator, trigger := filepath.Join(b.ksvm, "migrator"), filepath.Join(b.ksvm, "trigger")
	if perSecond, even := strings.CutPrefix(name, evenly); even {
		args = append(args, "--unpaced-rewrites", "--max-concurrent-rewrites=1", "--max-rewrites-per-second="+perSecond)
		return []controlplane.Program{{Name: "manager", Path: manager, Args: args}}, nil
	}
	switch name {
	case ours:
		return []controlplane.Program{{Name: "manager", Path: manager, Args: args}}, nil
	case oursLifted:
		args = append(args, "--unpaced-rewrites", "--max-concurrent-rewrites=64", "--max-storage-growth=0")
		return []controlplane.Program{{Name: "manager", Path: manager, Args: args}}, nil
	case ksvm: // with the flags of its manifest
		programs := []controlplane.Program{
			{Name: "migrator", Path: migrator, Args: []string{kubeconfig, "--kube-api-qps=40", "--kube-api-burst=1000"}},
		}
		if unattended {
			programs = append(programs, controlplane.Program{Name: "trigger", Path: trigger, Args: []string{kubeconfig}})
		}
		return programs, nil
	case ksvmLifted:
		return []controlplane.Program{
			{Name: "migrator", Path: migrator, Args: []string{kubeconfig, "--kube-api-qps=100000", "--kube-api-burst=100000"}},
		}, nil
	}
	return nil, fmt.Errorf("there is no contender %q", name)
}

// externalUser is who contenders with a kubeconfig are. Members of system:masters are exempt from flow control.
const externalUser = "contender"

func kubeconfigOf(cp *controlplane.ControlPlane, user string) (string, error) {
	path := filepath.Join(cp.Dir(), user+".kubeconfig")
	return path, cp.WriteKubeconfig(path, cp.Config(user, "system:masters"))
}

// newExternal makes a contender of programs that know the migration API.
func newExternal(w *widgets, programs []controlplane.Program) *contender {
	c := newAsked(w, v1alpha1.SchemeGroupVersion, func() map[string]any {
		return map[string]any{"group": group, "version": w.current.Version, "resource": w.current.Resource}
	})
	c.user = externalUser
	c.start = func() (running []*controlplane.Process, err error) {
		for _, program := range programs {
			process, err := w.cp.StartProcess(program)
			if err != nil {
				return running, err
			}
			running = append(running, process)
		}
		return running, nil
	}
	return c
}

// newInTree makes a contender of kube-controller-manager, which may run already.
func newInTree(w *widgets, controllers *controlplane.Process) *contender {
	c := newAsked(w, storagemigrationv1.SchemeGroupVersion, func() map[string]any {
		return map[string]any{"group": group, "resource": w.current.Resource}
	})
	c.user = inTreeUser
	c.start = func() ([]*controlplane.Process, error) {
		if controllers != nil && controllers.Running() {
			return []*controlplane.Process{controllers}, nil
		}
		process, err := w.cp.StartControllerManager(controllersToRun)
		return []*controlplane.Process{process}, err
	}
	create := c.ask
	c.ask = func(ctx context.Context) error {
		if err := create(ctx); err != nil {
			return err
		}
		// It notes a resource version, and waits until the cache of the garbage collector is as new. That takes minutes where
		// nobody writes the resource. So somebody does, once the resource version is noted.
		err := wait.PollUntilContextTimeout(ctx, poll, patience, true, func(ctx context.Context) (bool, error) {
			_, told, err := c.outcome(ctx)
			return strings.Contains(told, `"resourceVersion"`), err
		})
		return errors.Join(err, w.settled(ctx))
	}
	return c
}

// newAsked makes a contender that is asked for a migration by an object of an API, which names the resource.
func newAsked(w *widgets, api schema.GroupVersion, resource func() map[string]any) *contender {
	migrations := w.dynamic.Resource(api.WithResource("storageversionmigrations"))
	var name string
	return &contender{
		ask: func(ctx context.Context) error {
			m := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"resource": resource()}}}
			m.SetGroupVersionKind(api.WithKind("StorageVersionMigration"))
			m.SetGenerateName("bench-")
			m, err := migrations.Create(ctx, m, metav1.CreateOptions{})
			if err == nil {
				name = m.GetName()
			}
			return err
		},
		outcome: func(ctx context.Context) (outcome, told string, err error) {
			m, err := migrations.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return "", "", err
			}
			return outcomeOf(m.Object["status"])
		},
		forget: func(ctx context.Context) error { return migrations.Delete(ctx, name, metav1.DeleteOptions{}) },
	}
}

// newNaked makes a contender of clients that send the rewrites and nothing else.
func newNaked(w *widgets, clients string) *contender {
	c := &contender{
		user:   asNaked,
		start:  func() ([]*controlplane.Process, error) { return nil, nil },
		forget: func(context.Context) error { return nil },
	}
	c.ask = func(context.Context) error {
		process, err := startSelf(w.cp, asNaked, "-at="+clients, "-version="+w.current.Version)
		c.running = []*controlplane.Process{process}
		return err
	}
	c.outcome = func(context.Context) (string, string, error) {
		log := c.running[0].Log()
		if !c.running[0].Running() {
			return "", "", errors.New(log)
		}
		if strings.Contains(log, nakedDone) {
			return succeeded, "", nil
		}
		return "", "", nil
	}
	return c
}

// outcomeOf reads the outcome from the status of a migration, whatever its API is, and returns that as JSON as well.
func outcomeOf(status any) (outcome, told string, err error) {
	var common struct {
		Conditions []struct{ Type, Status string }
	}
	raw, err := json.Marshal(status)
	if err == nil {
		err = json.Unmarshal(raw, &common)
	}
	for _, c := range common.Conditions {
		if c.Status == "True" && (c.Type == succeeded || c.Type == failed) {
			outcome = c.Type
		}
	}
	return outcome, string(raw), err
}

// begin starts the processes.
func (c *contender) begin() (err error) {
	c.running, err = c.start()
	return err
}

// kill ends the processes with SIGKILL.
func (c *contender) kill() error {
	used, errs := c.usage()
	c.ended = used
	for _, process := range c.running {
		if process.Running() {
			errs = errors.Join(errs, process.Kill())
		}
	}
	c.running = nil
	return errs
}

// usage is what all processes used so far.
func (c *contender) usage() (controlplane.Usage, error) {
	sum := c.ended
	for _, process := range c.running {
		used, err := process.Usage()
		if err != nil {
			return sum, err
		}
		sum.CPU += used.CPU
		sum.Received += used.Received
		sum.Sent += used.Sent
		sum.PeakMemory = max(sum.PeakMemory, used.PeakMemory)
	}
	return sum, nil
}

// await waits until the migration has ended. Its outcome is empty if that takes longer than the given time.
func (c *contender) await(ctx context.Context, within time.Duration) (outcome, told string, err error) {
	err = wait.PollUntilContextTimeout(ctx, poll, within, true, func(ctx context.Context) (bool, error) {
		for _, process := range c.running {
			if !process.Running() {
				return false, fmt.Errorf("%s ended by itself, see %s", process.Name(), process.LogPath())
			}
		}
		outcome, told, err = c.outcome(ctx)
		return outcome != "", err
	})
	if wait.Interrupted(err) && ctx.Err() == nil {
		err = nil
	}
	return outcome, told, err
}
