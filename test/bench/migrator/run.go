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

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-api/client/clientset/versioned"
	"sigs.k8s.io/svm-api/migration/crds"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/test/bench/custom"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	patience = 20 * time.Minute
	poll     = 100 * time.Millisecond
	chunk    = 500
)

func install(ctx context.Context, cp *controlplane.ControlPlane) error {
	client, err := apiextensions.NewForConfig(cp.AdminConfig())
	if err != nil {
		return err
	}
	objects, err := crds.Objects()
	if err != nil {
		return err
	}
	for _, object := range objects {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, definition); err != nil {
			return err
		}
		if _, err := client.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, definition, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	migrations, err := versioned.NewForConfig(cp.AdminConfig())
	if err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, poll, time.Minute, true, func(ctx context.Context) (bool, error) {
		_, err := migrations.MigrationV1alpha1().StorageVersionMigrations().List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
}

func run(ctx context.Context, cp *controlplane.ControlPlane, resource *custom.Resource, name string, o options) (*figures, error) {
	kind, number, _ := strings.Cut(name, "-")
	n := 0
	if number != "" {
		var err error
		if n, err = strconv.Atoi(number); err != nil {
			return nil, err
		}
	}
	switch kind {
	case "naked":
		return runNaked(ctx, cp, resource, n)
	case "manager":
		return runManager(ctx, cp, resource)
	case "unpaced":
		return runManager(ctx, cp, resource, "--unpaced-rewrites", fmt.Sprintf("--max-concurrent-rewrites=%d", n))
	default:
		return nil, errors.New("there is no such run")
	}
}

// runNaked rewrites all objects with n clients.
func runNaked(ctx context.Context, cp *controlplane.ControlPlane, resource *custom.Resource, n int) (*figures, error) {
	config := rest.CopyConfig(cp.AdminConfig())
	config.QPS = -1
	client, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	objects := client.Resource(resource.Current)
	began, server, own := time.Now(), serverCPU(cp), ownCPU()
	var group errgroup.Group
	group.SetLimit(n)
	for token := ""; ; {
		list, err := objects.List(ctx, metav1.ListOptions{Limit: chunk, Continue: token})
		if err != nil {
			return nil, err
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
			break
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return &figures{took: time.Since(began), server: serverCPU(cp) - server, client: ownCPU() - own}, nil
}

// runManager has the manager do it. It is measured from when the migration has started, which it does when the servers were seen to
// agree.
func runManager(ctx context.Context, cp *controlplane.ControlPlane, resource *custom.Resource, args ...string) (f *figures, err error) {
	binary, err := controlplane.Binary(names.Manager)
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(cp.Dir(), "manager.kubeconfig")
	if err := cp.WriteKubeconfig(kubeconfig, cp.Config("manager", "system:masters")); err != nil {
		return nil, err
	}
	process, err := cp.StartProcess(controlplane.Program{Name: "manager", Path: binary, Args: append([]string{
		"--kubeconfig=" + kubeconfig, "--secure-port=0", "--leader-elect=false", "--controllers=svmigrator", "--settle-period=1s",
	}, args...)})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, process.Stop(), process.Wait()) }()
	client, err := versioned.NewForConfig(cp.AdminConfig())
	if err != nil {
		return nil, err
	}
	migrations := client.MigrationV1alpha1().StorageVersionMigrations()
	m := &v1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"}}
	m.Spec.Resource = v1alpha1.GroupVersionResource{Group: resource.Current.Group, Resource: resource.Current.Resource}
	if m, err = migrations.Create(ctx, m, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	until := func(done func(*v1alpha1.StorageVersionMigrationStatus) bool) error {
		return wait.PollUntilContextTimeout(ctx, poll, patience, true, func(ctx context.Context) (bool, error) {
			live, err := migrations.Get(ctx, m.Name, metav1.GetOptions{})
			return err == nil && done(&live.Status), err
		})
	}
	if err := until(func(s *v1alpha1.StorageVersionMigrationStatus) bool { return s.StartTime != nil }); err != nil {
		return nil, err
	}
	before, err := process.Usage()
	if err != nil {
		return nil, err
	}
	began, server := time.Now(), serverCPU(cp)
	if err := until(func(s *v1alpha1.StorageVersionMigrationStatus) bool { return s.CompletionTime != nil }); err != nil {
		return nil, err
	}
	took, server := time.Since(began), serverCPU(cp)-server
	after, err := process.Usage()
	if err != nil {
		return nil, err
	}
	if m, err = migrations.Get(ctx, m.Name, metav1.GetOptions{}); err != nil {
		return nil, err
	}
	if p := m.Status.Progress; p == nil || p.Rewritten == 0 || p.Denied > 0 {
		return nil, fmt.Errorf("the migration ended with %+v", m.Status)
	}
	return &figures{took: took, server: server, client: after.CPU - before.CPU, peak: after.PeakMemory, statusWrites: statusWrites(ctx, cp, m.Name)}, nil
}

// statusWrites is how often the migration was written, as etcd counts.
func statusWrites(ctx context.Context, cp *controlplane.ControlPlane, name string) int {
	response, err := cp.Etcd().Client().Get(ctx, "/registry/migration.k8s.io/storageversionmigrations/"+name)
	if err != nil || len(response.Kvs) != 1 {
		return -1
	}
	return int(response.Kvs[0].Version) - 1
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

func ownCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
