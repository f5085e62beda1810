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
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/bench/contender"
	"sigs.k8s.io/svm-controller-manager/test/bench/custom"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	chunk  = 500
	inTree = "in-tree"
)

// figures are of one run.
type figures struct {
	// took is from when the migration was asked for to when it was said to be done, wrote from the first rewrite to the
	// last.
	took, wrote, server, client time.Duration
	peak                        int64
	statusWrites                int
}

func newContender(
	ctx context.Context, cp *controlplane.ControlPlane, resource *custom.Resource, name string,
) (*contender.Contender, error) {
	kind, number, _ := strings.Cut(name, "-")
	if name == inTree {
		kind, number = inTree, ""
	}
	n := 0
	if number != "" {
		var err error
		if n, err = strconv.Atoi(number); err != nil {
			return nil, err
		}
	}
	switch kind {
	case "naked":
		return &contender.Contender{Migrate: func(ctx context.Context) error { return rewriteAll(ctx, cp, resource, n) }}, nil
	case "manager":
		return contender.NewManager(ctx, cp, resource)
	case "unpaced":
		return contender.NewManager(ctx, cp, resource, "--unpaced-rewrites", fmt.Sprintf("--max-concurrent-rewrites=%d", n))
	case inTree:
		return contender.NewInTree(cp, resource)
	default:
		return nil, errors.New("there is no such run")
	}
}

// run makes a contender ready, flips the storage version, and measures the migration.
func run(
	ctx context.Context, cp *controlplane.ControlPlane, resource *custom.Resource, name string,
) (f *figures, err error) {
	c, err := newContender(ctx, cp, resource, name)
	if err != nil {
		return nil, err
	}
	if c.Process != nil {
		defer func() { err = errors.Join(err, c.Process.Kill()) }()
	}
	if name == inTree {
		if err := c.Migrate(ctx); err != nil {
			return nil, fmt.Errorf("warming up: %w", err)
		}
	}
	if err := resource.Flip(ctx); err != nil {
		return nil, err
	}
	writes := contender.WatchWrites(ctx, cp, resource)
	before, err := usage(c)
	if err != nil {
		return nil, err
	}
	began, server := time.Now(), serverCPU(cp)
	if err := c.Migrate(ctx); err != nil {
		return nil, err
	}
	f = &figures{took: time.Since(began), server: serverCPU(cp) - server}
	if times := writes.End(); len(times) > 0 {
		f.wrote = times[len(times)-1].Sub(times[0])
	}
	after, err := usage(c)
	if err != nil {
		return nil, err
	}
	f.client, f.peak = after.CPU-before.CPU, after.PeakMemory
	if c.StatusWrites != nil {
		f.statusWrites = c.StatusWrites(ctx)
	}
	return f, nil
}

// usage is what the contender has used so far.
func usage(c *contender.Contender) (controlplane.Usage, error) {
	if c.Process != nil {
		return c.Process.Usage()
	}
	var own syscall.Rusage
	err := syscall.Getrusage(syscall.RUSAGE_SELF, &own)
	return controlplane.Usage{CPU: time.Duration(own.Utime.Nano() + own.Stime.Nano())}, err
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
				namespaced := objects.Namespace(object.Namespace)
				_, err := namespaced.Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{})
				return err
			})
		}
		if token = list.Continue; token == "" {
			return group.Wait()
		}
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
