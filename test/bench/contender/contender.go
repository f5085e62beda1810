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

// Package contender starts those who migrate, for benchmarks: the manager, and the migrator of kube-controller-manager.
package contender

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/svm-api/client/clientset/versioned"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/test/bench/custom"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	poll        = 100 * time.Millisecond
	readyWithin = time.Minute
	patience    = 20 * time.Minute
)

// Contender is somebody who migrates.
type Contender struct {
	// Migrate returns when all objects are rewritten.
	Migrate func(ctx context.Context) error
	// Process is what does it, nil if that is this one.
	Process *controlplane.Process
	// StatusWrites is how often the last migration was written, nil if that is not known.
	StatusWrites func(ctx context.Context) int
}

// NewManager starts the manager, and returns when its migrator runs.
func NewManager(
	ctx context.Context, cp *controlplane.ControlPlane, resource *custom.Resource, args ...string,
) (*Contender, error) {
	binary, err := controlplane.Binary(names.Manager)
	if err != nil {
		return nil, err
	}
	kubeconfig := filepath.Join(cp.Dir(), "manager.kubeconfig")
	if err := cp.WriteKubeconfig(kubeconfig, cp.Config("manager", "system:masters")); err != nil {
		return nil, err
	}
	client, err := versioned.NewForConfig(cp.AdminConfig())
	if err != nil {
		return nil, err
	}
	name := fmt.Sprintf("manager-%d", time.Now().UnixNano()) // or the log of an earlier one would show this one ready
	process, err := cp.StartProcess(controlplane.Program{Name: name, Path: binary, Args: append([]string{
		"--kubeconfig=" + kubeconfig, "--secure-port=0", "--leader-elect=false", "--controllers=svmigrator", "-v=2",
		"--settle-period=1s",
	}, args...)})
	if err != nil {
		return nil, err
	}
	err = wait.PollUntilContextTimeout(ctx, poll, readyWithin, true, func(context.Context) (bool, error) {
		if !process.Running() {
			return false, process.Wait()
		}
		return strings.Contains(process.Log(), "Controller runs"), nil
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("waiting until the manager runs: %w", err), process.Kill())
	}
	c := &Contender{Process: process}
	c.Migrate = func(ctx context.Context) error {
		m := &v1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"}}
		m.Spec.Resource = v1alpha1.GroupVersionResource{Group: resource.Current.Group, Resource: resource.Current.Resource}
		migrations := client.MigrationV1alpha1().StorageVersionMigrations()
		m, err := migrations.Create(ctx, m, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		c.StatusWrites = func(ctx context.Context) int { return statusWrites(ctx, cp, m.Name) }
		err = wait.PollUntilContextTimeout(ctx, poll, patience, true, func(ctx context.Context) (bool, error) {
			m, err = migrations.Get(ctx, m.Name, metav1.GetOptions{})
			return err == nil && m.Status.CompletionTime != nil, err
		})
		if err != nil {
			return err
		}
		if p := m.Status.Progress; p == nil || p.Rewritten == 0 || p.Denied > 0 {
			return fmt.Errorf("the migration ended with %+v", m.Status)
		}
		return nil
	}
	return c, nil
}

// statusWrites is how often the migration was written, as etcd counts.
func statusWrites(ctx context.Context, cp *controlplane.ControlPlane, name string) int {
	response, err := cp.Etcd().Client().Get(ctx, "/registry/migration.k8s.io/storageversionmigrations/"+name)
	if err != nil || len(response.Kvs) != 1 {
		return -1
	}
	return int(response.Kvs[0].Version) - 1
}

// NewInTree starts kube-controller-manager, whose migrator needs its garbage collector. The first migration warms it
// up: it waits for a cache of all objects. Each migration waits until that cache is as new as the migration, which
// takes minutes where nobody writes the resource. So Migrate writes it.
func NewInTree(cp *controlplane.ControlPlane, resource *custom.Resource) (*Contender, error) {
	client, err := kubernetes.NewForConfig(cp.AdminConfig())
	if err != nil {
		return nil, err
	}
	process, err := cp.StartControllerManager("",
		"--controllers=garbage-collector-controller,storage-version-migrator-controller,serviceaccount-token-controller")
	if err != nil {
		return nil, err
	}
	return &Contender{Process: process, Migrate: func(ctx context.Context) error {
		m := &storagemigrationv1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"}}
		m.Spec.Resource = metav1.GroupResource{Group: resource.Current.Group, Resource: resource.Current.Resource}
		migrations := client.StoragemigrationV1().StorageVersionMigrations()
		m, err := migrations.Create(ctx, m, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if err := resource.Settled(ctx); err != nil {
			return err
		}
		return wait.PollUntilContextTimeout(ctx, poll, patience, true, func(ctx context.Context) (bool, error) {
			live, err := migrations.Get(ctx, m.Name, metav1.GetOptions{})
			if err != nil {
				return false, err
			}
			if meta.IsStatusConditionTrue(live.Status.Conditions, string(storagemigrationv1.MigrationFailed)) {
				return false, fmt.Errorf("the migration failed: %+v", live.Status.Conditions)
			}
			return meta.IsStatusConditionTrue(live.Status.Conditions, string(storagemigrationv1.MigrationSucceeded)), nil
		})
	}}, nil
}
