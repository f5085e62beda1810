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

package svmtrigger

import (
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// Input is everything that a decision about one resource depends on.
type Input struct {
	// Observation is what the servers write.
	Observation storageversion.Observation
	// State is the StorageState of the resource, nil if there is none.
	State *migrationv1alpha1.StorageState
	// DeletedState is the last state that this manager has seen, if State is nil.
	DeletedState *migrationv1alpha1.StorageState
	// Migrations are all of the resource.
	Migrations []*migrationv1alpha1.StorageVersionMigration
	// AutoMigrate is true if the administrator lets the trigger create migrations of this resource.
	AutoMigrate bool
	// CleanManagedFields is true if migrations of custom resources clean managedFields.
	CleanManagedFields bool
	// Now is the time of the decision.
	Now time.Time
	// EpochSeenAt is when this manager first saw the epoch of State, by its own clock.
	EpochSeenAt time.Time
	// MigrationsFinishedAt is when this manager first saw that a migration had finished, by its UID and by its own clock.
	MigrationsFinishedAt map[types.UID]time.Time

	Periods Periods
}

// observe reads all that a decision about the resource depends on. It sends no request.
func (c *Controller) observe(resource schema.GroupResource) Input {
	in := Input{
		Observation: c.observer.Observe(resource),
		State:       c.caches.State(resource),
		Migrations:  c.caches.MigrationsOf(resource),
		AutoMigrate: c.options.AutoMigrate.Selects(resource),
		Now:         c.clock.Now(),

		CleanManagedFields: c.options.CleanManagedFields,
		Periods:            c.options.Periods,
	}
	for _, other := range in.Observation.SharedWith {
		// A migration of one rewrites the objects of all, so the administrator must select all of them.
		in.AutoMigrate = in.AutoMigrate && c.options.AutoMigrate.Selects(other)
	}
	c.memory.Update(&in)
	return in
}
