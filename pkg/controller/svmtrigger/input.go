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

	"sigs.k8s.io/svm-api/migration/v1alpha1"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// Input is everything that a decision about one resource depends on.
type Input struct {
	// Observation is what the servers write.
	Observation storageversion.Observation
	// State is the StorageState of the resource, nil if there is none.
	State *v1alpha1.StorageState
	// SharedBy is the StorageState of Observation.SharedBy where that is another resource, nil if there is none.
	SharedBy *v1alpha1.StorageState
	// Migrations are all of the resource, and of Observation.SharedBy where that is another one.
	Migrations []*v1alpha1.StorageVersionMigration
	// AutoMigrate is true if the administrator lets the trigger create migrations of this resource.
	AutoMigrate bool
	// Now is the time of the decision.
	Now time.Time
	// Periods are the same in all decisions.
	Periods Periods
}

// Periods are the durations that decisions depend on.
type Periods struct {
	// Settle is how long the servers must write one encoding before they count as agreed: as long as a write that an
	// API server accepted earlier can take to land, and the servers to notice a change.
	Settle time.Duration
	// Hold is how long an observation may be incomplete before a decision reports that.
	Hold time.Duration
	// Poll is how often the observer reads what it cannot watch. Evidence that cannot be compared with later evidence
	// is valid for that long.
	Poll time.Duration
	// Heartbeat is how often a state is written although nothing changed.
	Heartbeat time.Duration
	// MinBackoff and MaxBackoff bound the time from a failed migration to the next.
	MinBackoff, MaxBackoff time.Duration
}
