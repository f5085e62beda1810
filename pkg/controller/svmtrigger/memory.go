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
	"cmp"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// Memory has the times at which this manager first saw the facts that it decides on. Times in objects are by the clocks
// of other hosts, and the clock of this host may be set. Only the time that has passed in this manager shows that a
// period is over.
type Memory map[schema.GroupResource]seenTimes

// seenTimes are what this manager saw of the state and the migrations of one resource, and when.
type seenTimes struct {
	state   types.UID
	epoch   int64
	epochAt time.Time
	// finishedAt is when each migration was first seen to have finished, by its uid.
	finishedAt map[types.UID]time.Time
	// last is the state as it was last seen. It is not the one with the uid deleted, which the cache may go on to show.
	last    *migrationv1alpha1.StorageState
	deleted types.UID
}

// ForgetDeleted makes the next state of the resource start without what people wrote on the last one.
func (m Memory) ForgetDeleted(resource schema.GroupResource) {
	one := m[resource]
	one.last, one.deleted = nil, one.state
	m[resource] = one
}

// Update notes when this manager first saw what is in the input, and sets the fields of the input that say so.
func (m Memory) Update(in *Input) {
	before := m[in.Observation.Resource]
	now := seenTimes{
		epochAt: in.Now, finishedAt: map[types.UID]time.Time{}, last: before.last, deleted: before.deleted,
	}
	if in.State == nil {
		in.DeletedState = before.last
	} else {
		if in.State.UID != before.deleted {
			now.last = in.State
		}
		now.state, now.epoch = in.State.UID, in.State.Status.Epoch
		if now.state == before.state && now.epoch == before.epoch {
			now.epochAt = before.epochAt
		}
	}
	for _, migration := range in.Migrations {
		if migration.Finished() {
			now.finishedAt[migration.UID] = cmp.Or(before.finishedAt[migration.UID], in.Now)
		}
	}
	m[in.Observation.Resource] = now
	unknown := in.State == nil && now.last == nil && len(in.Migrations) == 0
	if unknown && in.Observation.Presence != storageversion.Served {
		delete(m, in.Observation.Resource) // Names come and go in some clusters.
	}
	in.EpochSeenAt, in.MigrationsFinishedAt = now.epochAt, now.finishedAt
}
