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
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// TestALeaderWithAnotherClock has a leader change its host just after the storage version changed.
func TestALeaderWithAnotherClock(t *testing.T) {
	for name, ahead := range map[string]time.Duration{"ahead": 2 * time.Hour, "behind": -2 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t)
			l.decide()
			l.after(time.Minute)
			l.ends(l.migration(), migrationv1alpha1.MigrationSucceeded, "")
			l.decide()
			l.flip("v2")
			l.decide()
			if l.in.State.Status.Epoch != 2 {
				t.Fatalf("epoch %d, want 2", l.in.State.Status.Epoch)
			}

			l.in.Now = l.in.Now.Add(ahead)
			l.memory = Memory{}
			l.unwatched()
			l.define()
			l.decide()
			l.after(periods.Settle - time.Second)
			if len(l.created) != 1 {
				t.Fatal("a write that began earlier may still land, and there is a migration")
			}
			l.after(time.Second)
			l.ends(l.migration(), migrationv1alpha1.MigrationSucceeded, "")
			l.decide()
			if status := &l.in.State.Status; !status.Migrated() || status.Epoch != 2 {
				t.Errorf("epoch %d, persisted %q", status.Epoch, status.PersistedStorageVersionHashes)
			}

			// Another leader has the clock of the first again. It believes what was found out.
			l.in.Now = l.in.Now.Add(-ahead)
			l.memory = Memory{}
			writes := l.writes
			if l.decide(); l.writes > writes+1 {
				t.Errorf("%d writes", l.writes-writes)
			}
			if status := &l.in.State.Status; !status.Migrated() || status.Epoch != 2 {
				t.Errorf("epoch %d, persisted %q", status.Epoch, status.PersistedStorageVersionHashes)
			}
		})
	}
}

// TestMadeUpResources has people create and delete migrations of resources that nobody serves.
func TestMadeUpResources(t *testing.T) {
	memory := Memory{}
	for i := range 10 {
		resource := schema.GroupResource{Resource: fmt.Sprintf("made-up-%d", i)}
		in := Input{Now: start}
		in.Observation.Resource, in.Observation.Presence = resource, storageversion.NotServed
		in.Migrations = []*migrationv1alpha1.StorageVersionMigration{{}}
		memory.Update(&in)
		in.Migrations = nil
		memory.Update(&in)
	}
	if len(memory) > 0 {
		t.Errorf("%d resources are remembered", len(memory))
	}
}

// TestPauseEndsWithItsDefinition has the cache show a state that the trigger deleted for a while longer, when the
// definition exists again.
func TestPauseEndsWithItsDefinition(t *testing.T) {
	memory, paused := Memory{}, stateOf(widgets, "1")
	paused.Spec.Paused = true
	update := func(presence storageversion.Presence, state *migrationv1alpha1.StorageState) Input {
		in := Input{Now: start, State: state}
		in.Observation.Resource, in.Observation.Presence = widgets, presence
		memory.Update(&in)
		return in
	}
	update(storageversion.Served, paused)
	if in := update(storageversion.Served, nil); in.DeletedState == nil {
		t.Error("the pause ends when somebody deletes the state")
	}
	update(storageversion.Deleted, paused)
	memory.ForgetDeleted(widgets)
	update(storageversion.Deleted, paused)
	update(storageversion.Served, paused)
	if in := update(storageversion.Served, nil); in.DeletedState != nil {
		t.Error("the pause outlives the definition")
	}
}
