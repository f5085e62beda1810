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

package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// Watched keeps the StorageStates and migrations of a cluster up to date.
type Watched struct {
	states, migrations cache.Store // states is nil if they are not watched.
}

// Watch follows StorageStates and migrations, beginning with what was read, until ctx ends. It returns an error if the
// person may not watch them. It retries later failures.
func (c *Clients) Watch(ctx context.Context, read *Cluster) (*Watched, error) {
	w, err := c.WatchMigrations(ctx, read)
	if err != nil {
		return nil, err
	}
	w.states = cache.NewStore(cache.MetaNamespaceKeyFunc)
	for i := range read.States {
		_ = w.states.Add(&read.States[i]) // The key of an object is its name.
	}
	return w, follow(ctx, "StorageStates", c.Migration.StorageStates(), &migrationv1alpha1.StorageState{}, w.states)
}

// WatchMigrations is Watch without the StorageStates, which remain as they were read.
func (c *Clients) WatchMigrations(ctx context.Context, read *Cluster) (*Watched, error) {
	w := &Watched{migrations: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	for i := range read.Migrations {
		_ = w.migrations.Add(&read.Migrations[i])
	}
	return w, follow(ctx, "StorageVersionMigrations", c.Migration.StorageVersionMigrations(),
		&migrationv1alpha1.StorageVersionMigration{}, w.migrations)
}

// listWatcher is a client of one kind. L is the type of its lists.
type listWatcher[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// follow tries a watch first, because a Reflector would retry a forbidden watch forever.
func follow[L runtime.Object](
	ctx context.Context, what string, client listWatcher[L], object runtime.Object, store cache.Store,
) error {
	tried, err := client.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watching %s: %w", what, Explain(err))
	}
	tried.Stop()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, o)
		},
		WatchFuncWithContext: client.Watch,
	}
	// The Reflector tries again, and the commands say what they cannot read.
	go cache.NewReflector(lw, object, store, 0).RunWithContext(klog.NewContext(ctx, logr.Discard()))
	return nil
}

// lookInterval is how often a command looks at what has changed. Migrations save their progress about as often.
const lookInterval = time.Second

// Follow looks once a second until look says that nothing is left, or ctx ends. In the end the line of Overwrite goes.
func (e *Env) Follow(ctx context.Context, look func() (done bool, err error)) error {
	defer e.Overwrite("")
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-e.Clock.After(lookInterval):
		}
		if done, err := look(); done || err != nil {
			return err
		}
	}
}

// Update brings a Cluster up to date.
func (w *Watched) Update(cluster *Cluster) {
	if w.states != nil {
		cluster.States = nil
		for _, object := range w.states.List() {
			cluster.States = append(cluster.States, *object.(*migrationv1alpha1.StorageState))
		}
	}
	cluster.Migrations = nil
	for _, object := range w.migrations.List() {
		cluster.Migrations = append(cluster.Migrations, *object.(*migrationv1alpha1.StorageVersionMigration))
	}
	cluster.addNamed()
}
