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
	"cmp"
	"slices"
	"time"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// This file decides in which order migrations run. There are --concurrent-migrations slots. All other migrations that
// may write wait in the ready queue. Waiting costs nothing: the order is computed when a slot becomes free.

// priority is the first criterion of the order. A lower priority comes first.
type priority int

const (
	// begun migrations come first, so that few are half done.
	begun priority = iota + 1
	// awaited migrations are those that a person waits for: a person created them, or the CustomResourceDefinition lists
	// several stored versions, and none of them can be removed before the migration.
	awaited
	// newEncoding: the servers write another encoding since the last migration.
	newEncoding
	// unexplored resources may be stored in any encoding. After the installation all resources are unexplored.
	unexplored
	// long migrations had a turn and are not done. They come late, so that small ones do not wait for them.
	long
	// stuck migrations made no progress in their last run. They come after all others, however many there are.
	stuck
)

// rank is what the order of migrations depends on.
type rank struct {
	priority priority
	// since is when the migration was created. For a stuck or long migration it is when it may run again, so that those
	// that come late take turns.
	since time.Time
	name  string
}

// withoutPriority returns the rank by age. Stuck migrations still come last.
func (a rank) withoutPriority() rank {
	if a.priority != stuck {
		a.priority = begun
	}
	return a
}

func (a rank) compare(b rank) int {
	return cmp.Or(cmp.Compare(a.priority, b.priority), a.since.Compare(b.since), cmp.Compare(a.name, b.name))
}

// rankOf returns the rank of a migration. state is the StorageState of its resource, or nil.
func rankOf(
	m *migrationv1alpha1.StorageVersionMigration, state *migrationv1alpha1.StorageState, memory runMemory,
) rank {
	r := rank{priority: unexplored, since: m.CreationTimestamp.Time, name: m.Name}
	switch {
	case memory.stuck:
		r.priority, r.since = stuck, memory.notBefore
	case memory.hadTurn:
		r.priority, r.since = long, memory.notBefore
	case m.Begun():
		r.priority = begun
	case !m.HasEpoch(), state != nil && len(state.Status.Evidence.StoredVersions()) > 1:
		r.priority = awaited
	case state != nil && !slices.Contains(state.Status.PersistedStorageVersionHashes, storageversion.Unknown):
		r.priority = newEncoding
	}
	return r
}

// readyOrder implements workqueue.Queue. Ranks change while names wait, so Pop compares them and Push does not.
type readyOrder struct {
	names []string
	rank  func(name string) rank
	pops  int
}

// oldestEvery is how often the migration that has waited longest comes next. Otherwise migrations that are created
// again and again, for instance because somebody changes definitions, would keep others from running.
const oldestEvery = 3

// Touch implements workqueue.Queue.
func (*readyOrder) Touch(string) {}

// Push implements workqueue.Queue.
func (q *readyOrder) Push(name string) { q.names = append(q.names, name) }

// Len implements workqueue.Queue.
func (q *readyOrder) Len() int { return len(q.names) }

// Pop implements workqueue.Queue.
func (q *readyOrder) Pop() string {
	q.pops++
	first := slices.MinFunc(q.names, func(a, b string) int {
		one, other := q.rank(a), q.rank(b)
		if q.pops%oldestEvery == 0 {
			one, other = one.withoutPriority(), other.withoutPriority()
		}
		return one.compare(other)
	})
	q.names = slices.DeleteFunc(q.names, func(name string) bool { return name == first })
	return first
}
