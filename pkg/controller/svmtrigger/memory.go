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

// Memory has the times at which this process learned the facts that it decides on. Times in objects are by the clocks
// of other hosts, and the clock of this one may be set. Only the time that passed in this process tells that a period
// is over.
type Memory map[schema.GroupResource]known

// known is since when this process has known things about one resource.
type known struct {
	state      types.UID
	epoch      int64
	epochAt    time.Time
	began      bool // while the process watched
	migrations map[types.UID]MigrationKnown
	// last is the state as it was last seen.
	last *migrationv1alpha1.StorageState
}

// MigrationKnown is since when a process has known a migration, and that it is finished. Zero if it is not.
type MigrationKnown struct {
	Since, Finished time.Time
}

// Forget makes the next state of the resource start without what people wrote on the last one.
func (m Memory) Forget(resource schema.GroupResource) {
	known := m[resource]
	known.last = nil
	m[resource] = known
}

// Recall completes an input with since when its facts are known.
func (m Memory) Recall(in *Input) {
	before, watched := m[in.Observation.Resource]
	now := known{epochAt: in.Now, began: watched, migrations: map[types.UID]MigrationKnown{}, last: before.last}
	if in.State == nil {
		in.Deleted = before.last
	} else {
		now.last = in.State
		now.state, now.epoch = in.State.UID, in.State.Status.Epoch
		if now.state == before.state && now.epoch == before.epoch {
			now.epochAt, now.began = before.epochAt, before.began
		}
	}
	for _, migration := range in.Migrations {
		one, was := before.migrations[migration.UID]
		if !was {
			one.Since = in.Now
		}
		if one.Finished.IsZero() && migration.Finished() {
			one.Finished = in.Now
		}
		now.migrations[migration.UID] = one
	}
	m[in.Observation.Resource] = now
	if in.Observation.Presence == storageversion.Deleted && now.last == nil && len(in.Migrations) == 0 {
		delete(m, in.Observation.Resource) // Names come and go in some clusters.
	}
	in.EpochKnown, in.EpochWatched, in.MigrationsKnown = now.epochAt, now.began, now.migrations
}
