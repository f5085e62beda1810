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

package svmigrator

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	migrationinformers "sigs.k8s.io/svm-api/client/informers/externalversions/migration/v1alpha1"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// migrationsByResource is an index of the cache, which other controllers share.
const migrationsByResource = "svmigrator-resource"

// listen queues a migration when anything changes that a decision about it depends on. It stops a run that must stop at
// once, whatever the workers are doing.
func (c *Controller) listen(
	ctx context.Context, states migrationinformers.StorageStateIndexInformer,
	migrations migrationinformers.StorageVersionMigrationIndexInformer,
) error {
	err := migrations.AddTypedIndexers(migrationinformers.StorageVersionMigrationIndexers{
		migrationsByResource: func(m *migrationv1alpha1.StorageVersionMigration) ([]string, error) {
			return []string{m.GroupResource().String()}, nil
		},
	})
	if err != nil {
		return fmt.Errorf("adding an index: %w", err)
	}
	c.cluster.observer.Subscribe(c.resourceChanged)

	logger := klog.FromContext(ctx)
	stateChanged := func(name string) { c.resourceChanged(schema.ParseGroupResource(name)) }
	statesListener, err := states.AddTypedEventHandler(migrationinformers.StorageStateHandlerFuncs{
		AddFunc:    func(state *migrationv1alpha1.StorageState) { stateChanged(state.Name) },
		UpdateFunc: func(_, state *migrationv1alpha1.StorageState) { stateChanged(state.Name) },
		DeleteFunc: func(state migrationinformers.DeletedStorageState) { stateChanged(state.GetObjectName().Name) },
	}, cache.HandlerOptions{Logger: &logger})
	if err != nil {
		return fmt.Errorf("listening to storage states: %w", err)
	}
	migrationsListener, err := migrations.AddTypedEventHandler(migrationinformers.StorageVersionMigrationHandlerFuncs{
		AddFunc: c.migrationChanged,
		UpdateFunc: func(before, m *migrationv1alpha1.StorageVersionMigration) {
			if before.UID != m.UID {
				c.migrationChanged(before)
			}
			c.migrationChanged(m)
		},
		DeleteFunc: func(m migrationinformers.DeletedStorageVersionMigration) {
			if m.OptionalObj != nil {
				c.migrationChanged(m.OptionalObj)
			}
		},
	}, cache.HandlerOptions{Logger: &logger})
	if err != nil {
		return fmt.Errorf("listening to migrations: %w", err)
	}
	c.synced = []cache.InformerSynced{c.cluster.observer.HasSynced, statesListener.HasSynced, migrationsListener.HasSynced}
	return nil
}

// resourceChanged stops the run of a resource if it may not write any more, and queues all migrations of the resource.
func (c *Controller) resourceChanged(resource schema.GroupResource) {
	if run := c.runs.of(resource); run != nil {
		if m := run.bound.Load(); m != nil && c.cluster.decideCached(m).Verdict != Go {
			run.stop(errStopped)
		}
	}
	c.enqueueResource(resource)
}

// enqueueResource queues all migrations of a resource.
func (c *Controller) enqueueResource(resource schema.GroupResource) {
	for _, m := range c.migrationsOf(resource) {
		c.queue.Add(m.Name)
	}
}

// migrationsOf returns the cached migrations of a resource.
func (c *Controller) migrationsOf(resource schema.GroupResource) []*migrationv1alpha1.StorageVersionMigration {
	migrations, err := c.migrationIndexer.ByTypedIndex(migrationsByResource, resource.String())
	if err != nil {
		panic(err) // listen has added the index.
	}
	return migrations
}

// migrationChanged stops the run of a migration that is gone or that somebody else ended, and queues what it concerns.
func (c *Controller) migrationChanged(m *migrationv1alpha1.StorageVersionMigration) {
	cached, run := c.cluster.migration(m.Name), c.runs.ofMigration(m)
	gone := cached == nil || cached.UID != m.UID || cached.DeletionTimestamp != nil
	ended := gone || m.Finished()
	switch {
	case run != nil && ended && (gone || !run.ending.Load()):
		run.stop(errMigrationGone)
	case run != nil && !ended:
		return // The run writes the status all the time.
	}
	c.queue.Add(m.Name)
	if ended {
		c.runs.forget(m.UID)
		c.enqueueResource(m.GroupResource()) // Others may have waited for the end of this one.
	}
}
