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
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

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
	for _, m := range c.cluster.caches.MigrationsOf(resource) {
		c.queue.Add(m.Name)
	}
}

// migrationChanged stops the run of a migration that is gone or that somebody else ended, and queues what it concerns.
func (c *Controller) migrationChanged(m *migrationv1alpha1.StorageVersionMigration) {
	cached, run := c.cluster.caches.Migration(m.Name), c.runs.ofMigration(m)
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
