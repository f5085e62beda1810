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

package controller

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	migrationinformers "sigs.k8s.io/svm-api/client/informers/externalversions/migration/v1alpha1"
	migrationlisters "sigs.k8s.io/svm-api/client/listers/migration/v1alpha1"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// Caches have the StorageStates and the StorageVersionMigrations. Callers must not change what they return.
type Caches struct {
	States     migrationlisters.StorageStateLister
	Migrations migrationlisters.StorageVersionMigrationLister

	informers migrationinformers.Interface
	// byResource is the name of an index of migrations. Controllers share informers, so each has an index of its own.
	byResource string
}

// NewCaches returns the caches of a controller.
func NewCaches(informers migrationinformers.Interface, controllerName string) (*Caches, error) {
	c := &Caches{
		States:     informers.StorageStates().Lister(),
		Migrations: informers.StorageVersionMigrations().Lister(),
		informers:  informers,
		byResource: controllerName + "-resource",
	}
	typed := informers.StorageVersionMigrations().TypedInformer()
	err := typed.AddTypedIndexers(migrationinformers.StorageVersionMigrationIndexers{
		c.byResource: func(m *migrationv1alpha1.StorageVersionMigration) ([]string, error) {
			return []string{m.GroupResource().String()}, nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("indexing migrations: %w", err)
	}
	return c, nil
}

// Listen registers event handlers. They call stateChanged for each StorageState, and migrationChanged for each
// migration, that is added, changed or deleted. The returned functions report whether the handlers were called for
// everything that the caches had at first.
func (c *Caches) Listen(
	ctx context.Context, stateChanged func(schema.GroupResource),
	migrationChanged func(*migrationv1alpha1.StorageVersionMigration),
) ([]cache.InformerSynced, error) {
	logger := klog.FromContext(ctx)
	// A state is about the resource in its name, whatever its spec says.
	named := func(name string) { stateChanged(schema.ParseGroupResource(name)) }
	typedStates := c.informers.StorageStates().TypedInformer()
	states, err := typedStates.AddTypedEventHandler(migrationinformers.StorageStateHandlerFuncs{
		AddFunc:    func(state *migrationv1alpha1.StorageState) { named(state.Name) },
		UpdateFunc: func(_, state *migrationv1alpha1.StorageState) { named(state.Name) },
		DeleteFunc: func(state migrationinformers.DeletedStorageState) { named(state.GetObjectName().Name) },
	}, cache.HandlerOptions{Logger: &logger})
	if err != nil {
		return nil, fmt.Errorf("listening to storage states: %w", err)
	}
	typedMigrations := c.informers.StorageVersionMigrations().TypedInformer()
	migrations, err := typedMigrations.AddTypedEventHandler(migrationinformers.StorageVersionMigrationHandlerFuncs{
		AddFunc: migrationChanged,
		UpdateFunc: func(before, m *migrationv1alpha1.StorageVersionMigration) {
			if before.UID != m.UID {
				migrationChanged(before)
			}
			migrationChanged(m)
		},
		DeleteFunc: func(m migrationinformers.DeletedStorageVersionMigration) {
			if m.OptionalObj != nil {
				migrationChanged(m.OptionalObj)
			}
		},
	}, cache.HandlerOptions{Logger: &logger})
	if err != nil {
		return nil, fmt.Errorf("listening to migrations: %w", err)
	}
	return []cache.InformerSynced{states.HasSynced, migrations.HasSynced}, nil
}

// State returns the StorageState of a resource, or nil if there is none. A cache has no other error.
func (c *Caches) State(resource schema.GroupResource) *migrationv1alpha1.StorageState {
	state, _ := c.States.Get(resource.String())
	return state
}

// Migration returns the migration of a name, or nil if there is none. A cache has no other error.
func (c *Caches) Migration(name string) *migrationv1alpha1.StorageVersionMigration {
	migration, _ := c.Migrations.Get(name)
	return migration
}

// MigrationsOf returns the migrations of a resource, sorted by name.
func (c *Caches) MigrationsOf(resource schema.GroupResource) []*migrationv1alpha1.StorageVersionMigration {
	indexer := c.informers.StorageVersionMigrations().TypedInformer().GetTypedIndexer()
	migrations, err := indexer.ByTypedIndex(c.byResource, resource.String())
	if err != nil {
		panic(err) // NewCaches has added the index.
	}
	slices.SortFunc(migrations, func(a, b *migrationv1alpha1.StorageVersionMigration) int {
		return cmp.Compare(a.Name, b.Name)
	})
	return migrations
}
