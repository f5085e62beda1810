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
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/bench/custom"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	poll  = 100 * time.Millisecond
	chunk = 500
)

// contender is somebody who migrates.
type contender struct {
	// migrate returns when all objects are rewritten.
	migrate func(ctx context.Context) error
	// process is what does it, nil if that is this one.
	process *controlplane.Process
	// statusWrites is how often the progress of the last migration was written, nil if it is not.
	statusWrites func(ctx context.Context) int
}

// figures are of one run.
type figures struct {
	// took is from when the migration was asked for to when it was said to be done, wrote from the first rewrite to the last.
	took, wrote, server, client time.Duration
	peak                        int64
	statusWrites                int
}

func newContender(ctx context.Context, cp *controlplane.ControlPlane, resource *custom.Resource, name string) (*contender, error) {
	kind, number, _ := strings.Cut(name, "-")
	n := 0
	if number != "" && kind != "in" {
		var err error
		if n, err = strconv.Atoi(number); err != nil {
			return nil, err
		}
	}
	switch kind {
	case "naked":
		return &contender{migrate: func(ctx context.Context) error { return rewriteAll(ctx, cp, resource, n) }}, nil
	case "manager":
		return newManager(ctx, cp, resource)
	case "adaptive":
		return newManager(ctx, cp, resource, "--max-rewrites-per-second=0")
	case "unpaced":
		return newManager(ctx, cp, resource, "--max-rewrites-per-second=0", "--unpaced-rewrites", fmt.Sprintf("--max-concurrent-rewrites=%d", n))
	case "in":
		return newInTree(ctx, cp, resource)
	default:
		return nil, errors.New("there is no such run")
	}
}

// run makes a contender ready, flips the storage version, and measures the migration.
func run(ctx context.Context, cp *controlplane.ControlPlane, resource *custom.Resource, name string) (f *figures, err error) {
	c, err := newContender(ctx, cp, resource, name)
	if err != nil {
		return nil, err
	}
	if c.process != nil {
		defer func() { err = errors.Join(err, c.process.Kill()) }()
	}
	if err := resource.Flip(ctx); err != nil {
		return nil, err
	}
	wrote := watchWrites(ctx, cp, resource)
	before, err := c.usage()
	if err != nil {
		return nil, err
	}
	began, server := time.Now(), serverCPU(cp)
	if err := c.migrate(ctx); err != nil {
		return nil, err
	}
	f = &figures{took: time.Since(began), server: serverCPU(cp) - server, wrote: wrote()}
	after, err := c.usage()
	if err != nil {
		return nil, err
	}
	f.client, f.peak = after.CPU-before.CPU, after.PeakMemory
	if c.statusWrites != nil {
		f.statusWrites = c.statusWrites(ctx)
	}
	return f, nil
}

// usage is what the contender has used so far.
func (c *contender) usage() (controlplane.Usage, error) {
	if c.process != nil {
		return c.process.Usage()
	}
	var usage syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage)
	return controlplane.Usage{CPU: time.Duration(usage.Utime.Nano() + usage.Stime.Nano())}, err
}

// rewriteAll rewrites all objects with n clients.
func rewriteAll(ctx context.Context, cp *controlplane.ControlPlane, resource *custom.Resource, n int) error {
	config := rest.CopyConfig(cp.AdminConfig())
	config.QPS = -1
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return err
	}
	objects := client.Resource(resource.Current)
	var group errgroup.Group
	group.SetLimit(n)
	for token := ""; ; {
		list, err := objects.List(ctx, metav1.ListOptions{Limit: chunk, Continue: token})
		if err != nil {
			return err
		}
		for i := range list.Items {
			object := &list.Items[i]
			group.Go(func() error {
				patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q}}`, object.UID, object.ResourceVersion)
				_, err := objects.Namespace(object.Namespace).Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{})
				return err
			})
		}
		if token = list.Continue; token == "" {
			return group.Wait()
		}
	}
}

// watchWrites returns a function that says how long it took from the first write of an object to the last one.
func watchWrites(ctx context.Context, cp *controlplane.ControlPlane, resource *custom.Resource) func() time.Duration {
	ctx, cancel := context.WithCancel(ctx)
	prefix := filepath.Join("/registry", resource.Current.Group, resource.Current.Resource) + "/"
	var first, last time.Time
	done := make(chan struct{})
	watch := cp.Etcd().Client().Watch(clientv3.WithRequireLeader(ctx), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	go func() {
		defer close(done)
		for response := range watch {
			for _, event := range response.Events {
				if strings.HasSuffix(string(event.Kv.Key), "/"+custom.Probe) {
					continue
				}
				if last = time.Now(); first.IsZero() {
					first = last
				}
			}
		}
	}()
	return func() time.Duration {
		time.AfterFunc(poll, cancel) // what was written has not all been heard of
		<-done
		return last.Sub(first)
	}
}

func serverCPU(cp *controlplane.ControlPlane) time.Duration {
	var used time.Duration
	for _, process := range []*controlplane.Process{cp.Etcd().Process(), cp.Servers()[0].Process()} {
		if usage, err := process.Usage(); err == nil {
			used += usage.CPU
		}
	}
	return used
}
