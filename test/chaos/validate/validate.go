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

package validate

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/chaos/failpoint"
	"sigs.k8s.io/svm-controller-manager/test/chaos/model"
)

// Limits are what the judgement depends on besides the record.
type Limits struct {
	// Grace is how long an encoding may be stored of which the state says nothing, while nothing is broken.
	Grace time.Duration
	// Recovery is how long after the end of a fault something still counts as broken.
	Recovery time.Duration
	// Notice is how long a migration may go on after a change that ends it if something is broken meanwhile, and
	// NoticeAtOnce if nothing is.
	Notice, NoticeAtOnce time.Duration
	// Chunk and Workers bound how many objects a migration rewrites again after a fault.
	Chunk, Workers int
}

// Violation is a promise that was broken.
type Violation struct {
	Promise  string    `json:"promise"`
	Resource string    `json:"resource"`
	Era      int       `json:"era"`
	Revision int64     `json:"revision"`
	Time     time.Time `json:"time"`
	Message  string    `json:"message"`
}

func (v Violation) String() string {
	return fmt.Sprintf("%s: %s: at revision %d (era %d, %s): %s",
		v.Promise, v.Resource, v.Revision, v.Era, v.Time.Format("15:04:05.000"), v.Message)
}

// Result is what the validators found and counted.
type Result struct {
	Violations []Violation
	// Revisions and Objects count what was compared.
	Revisions, Objects int
	// Rewrites counts the writes that changed only the encoding of an object.
	Rewrites int
	// Patches counts the requests of managers that the servers answered well, and Repeated those of them that were for an
	// object that had been rewritten in the same migration.
	Patches, Repeated int
	// Migrations counts those that ended, by outcome and reason.
	Migrations map[string]int
	// Sharp counts writes of objects at a time when the state excluded encodings.
	Sharp int
	// Missing is the longest time for which an encoding was stored that the state did not list, broken or not.
	Missing time.Duration
}

// All judges a record.
func All(record model.Record, limits Limits) Result {
	result := Result{Migrations: map[string]int{}}
	for era := range record.Eras {
		j := newJudge(record, limits, era, &result)
		j.run()
	}
	return result
}

// judge judges one era.
type judge struct {
	record model.Record
	limits Limits
	era    int
	result *Result
	world  *model.World

	now       model.Revision
	writes    map[int64]model.Request
	missing   map[encoding]time.Time
	changes   map[string][]model.Revision // of the version that servers write, by resource
	runs      map[string]*run
	deletions map[object]int
	live      bool              // the revision is of this era
	droppable map[encoding]bool // versions of which mayBeDropped has told
	leader    string
	elections []time.Time
}

type encoding struct{ resource, version string }

type object struct{ resource, name string }

func newJudge(record model.Record, limits Limits, era int, result *Result) *judge {
	j := &judge{
		record: record, limits: limits, era: era, result: result, world: model.NewWorld(),
		writes: map[int64]model.Request{}, missing: map[encoding]time.Time{}, changes: map[string][]model.Revision{},
		runs: map[string]*run{}, deletions: map[object]int{}, droppable: map[encoding]bool{},
	}
	for _, r := range record.Requests {
		j.writes[r.Write] = r
	}
	return j
}

func (j *judge) run() {
	revisions, base := j.record.Revisions(j.era)
	for i, revision := range revisions {
		j.now, j.live = revision, i >= base
		if j.live {
			j.result.Revisions++
		}
		switch {
		case revision.Object != nil:
			j.written(*revision.Object)
		case revision.State != nil:
			j.stateWritten(*revision.State)
		case revision.Migration != nil:
			j.migrationWritten(*revision.Migration)
		case revision.Definition != nil:
			j.definitionWritten(*revision.Definition)
		case revision.Leader != nil && revision.Leader.Holder != j.leader:
			j.leader = revision.Leader.Holder
			if j.leader != "" { // nobody, after a leader has released the Lease
				j.elections = append(j.elections, revision.Seen)
			}
		case revision.Change != nil:
			j.changes[revision.Change.Resource] = append(j.changes[revision.Change.Resource], revision)
		}
	}
	j.closeMissing()
	j.acknowledged()
	j.counted()
}

func (j *judge) written(o model.Object) {
	before, existed := j.world.Objects[o.Resource][o.Name]
	j.unchanged(o, before.Object, existed)
	j.world.Apply(j.now)
	for _, r := range j.runs {
		if r.resource == o.Resource && !r.ended {
			r.names[o.Name] = true
		}
	}
	j.covered(o.Resource)
	j.mayBeDropped(o.Resource)
}

func (j *judge) stateWritten(s model.State) {
	before := j.world.States[s.Name]
	j.world.Apply(j.now)
	if resource, known := resourceOf(s.Name); known {
		j.shrunk(resource, before, s.StorageState)
		j.covered(resource.Resource)
	}
}

func (j *judge) definitionWritten(d model.Definition) {
	if before, existed := j.world.Definitions[d.Resource]; existed && before.Storage != d.Storage {
		j.changes[d.Resource] = append(j.changes[d.Resource], j.now)
	}
	j.world.Apply(j.now)
	j.mayBeDropped(d.Resource)
}

func (j *judge) violated(promise, resource, format string, args ...any) {
	if !j.live {
		return
	}
	j.result.Violations = append(j.result.Violations, Violation{
		promise, resource, j.era, j.now.Number, j.now.Seen, fmt.Sprintf(format, args...),
	})
}

// calm is how much of a time nothing was broken that managers depend on.
func calm(faults []model.Fault, from, to time.Time, recovery time.Duration) time.Duration {
	sorted := slices.SortedFunc(slices.Values(faults), func(a, b model.Fault) int { return a.Start.Compare(b.Start) })
	var total time.Duration
	for _, f := range sorted {
		if !failpoint.Disturbs(f.Kind) {
			continue
		}
		if f.Start.After(from) {
			total += max(0, earlier(f.Start, to).Sub(from))
		}
		if end := f.End.Add(recovery); end.After(from) {
			from = end
		}
	}
	return total + max(0, to.Sub(from))
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func resourceOf(state string) (model.Resource, bool) {
	for _, r := range model.Resources {
		if r.GroupResource.String() == state {
			return r, true
		}
	}
	return model.Resource{}, false
}

// certain says that the state excludes encodings that it does not list. A list that is empty means Unknown.
func certain(state *v1alpha1.StorageState) bool {
	persisted := state.Status.PersistedStorageVersionHashes
	return len(persisted) > 0 && !slices.Contains(persisted, v1alpha1.Unknown)
}

func covers(state *v1alpha1.StorageState, hash string) bool {
	return !certain(state) || slices.Contains(state.Status.PersistedStorageVersionHashes, hash)
}

func words(state *v1alpha1.StorageState) string {
	var said []string
	for _, c := range state.Status.Conditions {
		said = append(said, fmt.Sprintf("%s=%s (%s: %s)", c.Type, c.Status, c.Reason, c.Message))
	}
	return fmt.Sprintf("the state lists %v, current %s, epoch %d, %s", state.Status.PersistedEncodingVersions,
		state.Status.CurrentEncodingVersion, state.Status.Epoch, strings.Join(said, ", "))
}

// Converged says what is not migrated yet, when the servers write these versions.
func Converged(world *model.World, storage func(model.Resource) string) error {
	for _, r := range model.Resources {
		version := storage(r)
		state := world.States[r.GroupResource.String()]
		if state == nil {
			return fmt.Errorf("there is no state of %s", r)
		}
		if !slices.Equal(state.Status.PersistedStorageVersionHashes, []string{r.Hash(version)}) || !migrated(state) {
			return fmt.Errorf("%s is written in %s, and %s", r, version, words(state))
		}
		for encoding, count := range world.Encodings[r.Resource] {
			if encoding != version {
				return fmt.Errorf("%d %s are stored in %s, not in %s", count, r, encoding, version)
			}
		}
		if stored := world.Definitions[r.Resource].Stored; r.Custom() && !slices.Equal(stored, []string{version}) {
			return fmt.Errorf("status.storedVersions of %s is %v, not %s", r, stored, version)
		}
	}
	return nil
}

func migrated(state *v1alpha1.StorageState) bool {
	return slices.ContainsFunc(state.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == v1alpha1.StorageStateMigrated && c.Status == metav1.ConditionTrue
	})
}
