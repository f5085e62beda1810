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
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

func TestUnfinished(t *testing.T) {
	byHand := migrationOf(widgets, "by-hand")
	byHand.Spec.Target = nil
	promising := stateOf(widgets, "7")
	promising.Status.Migration = &migrationv1alpha1.MigrationReference{Name: "promised"}
	keptItsPromise := stateOf(gadgets, "8")
	keptItsPromise.Status.Migration = &migrationv1alpha1.MigrationReference{Name: "running", UID: "uid-running"}
	stuck := migrationOf(gadgets, "stuck")
	stuck.Status.Conditions = []migrationv1alpha1.MigrationCondition{{
		Type: migrationv1alpha1.MigrationRunning, Status: corev1.ConditionTrue, Reason: migrationv1alpha1.MigrationReasonNoProgress,
	}}
	f := newFixture(t)
	f.cache(t, stuck, byHand, promising, keptItsPromise, migrationOf(gadgets, "running"),
		endedAs(migrationv1alpha1.MigrationSucceeded, "succeeded"), endedAs(migrationv1alpha1.MigrationFailed, "failed"), endedAs(migrationv1alpha1.MigrationRunning, "begun"))
	checkUnfinished(t, f, "begun", "promised", "running")

	// It is created, and the state says nothing about that yet.
	f.cache(t, migrationOf(widgets, "promised"))
	checkUnfinished(t, f, "begun", "promised", "running")
	f.cache(t, endedAs(migrationv1alpha1.MigrationSucceeded, "promised"))
	checkUnfinished(t, f, "begun", "running")

	// What was written and is not in the cache yet counts as well.
	own := stateOf(schema.GroupResource{Resource: "secrets"}, "20")
	own.Status.Migration = &migrationv1alpha1.MigrationReference{Name: "just-promised"}
	f.own.stored(schema.GroupResource{Resource: "secrets"}, own)
	checkUnfinished(t, f, "begun", "just-promised", "running")
}

func checkUnfinished(t *testing.T, f *fixture, want ...string) {
	t.Helper()
	got, err := f.unfinished()
	if err != nil {
		t.Fatal(err)
	}
	if !got.HasAll(want...) || got.Len() != len(want) {
		t.Errorf("unfinished: %v, want %v", got.UnsortedList(), want)
	}
}

func endedAs(condition migrationv1alpha1.MigrationConditionType, name string) *migrationv1alpha1.StorageVersionMigration {
	migration := migrationOf(gadgets, name)
	migration.Status.Conditions = []migrationv1alpha1.MigrationCondition{{Type: condition, Status: corev1.ConditionTrue}}
	return migration
}

// TestSlots has more migrations due than may be unfinished, and a queue that is worked off by hand.
func TestSlots(t *testing.T) {
	f := newFixture(t)
	f.options.MaxUnfinished = 2
	// The lower the number in a name, the earlier its turn.
	f.decide = func(in Input) Decision {
		if promise(in.State) != "" {
			return Decision{}
		}
		d := Decision{Due: true, Priority: int(in.Observation.Resource.Resource[1] - '0')}
		if in.Slot {
			d.State, d.Status = UpdateState, migrationv1alpha1.StorageStateStatus{Migration: &migrationv1alpha1.MigrationReference{Name: "of-" + in.State.Name}}
		}
		return d
	}
	for _, name := range []string{"r4", "r3", "r2", "r1"} {
		resource := schema.GroupResource{Resource: name}
		state := stateOf(resource, "7")
		if err := f.client.Tracker().Add(state); err != nil {
			t.Fatal(err)
		}
		f.cache(t, state)
		f.queue.Add(resource)
	}
	work := func() {
		for f.queue.Len() > 0 {
			f.processNext(f.ctx)
		}
	}

	work()
	checkUnfinished(t, f, "of-r1", "of-r2")
	if waiting := f.waiting.Load(); waiting != 2 {
		t.Errorf("%d wait, want 2", waiting)
	}

	// A migration ends; the event about it is the last thing in the queue.
	f.cache(t, endedAs(migrationv1alpha1.MigrationSucceeded, "of-r1"))
	f.queue.Add(schema.GroupResource{Resource: "r1"})
	work()
	checkUnfinished(t, f, "of-r2", "of-r3")

	// In a quiet moment a migration gets its slot at once.
	f.cache(t, endedAs(migrationv1alpha1.MigrationFailed, "of-r2"))
	f.queue.Add(schema.GroupResource{Resource: "r4"})
	work()
	checkUnfinished(t, f, "of-r3", "of-r4")
	if waiting := f.waiting.Load(); waiting != 0 {
		t.Errorf("%d wait, want none", waiting)
	}
}

// TestFailedSyncGivesUpItsSlot has a first in line that cannot be written.
func TestFailedSyncGivesUpItsSlot(t *testing.T) {
	f := newFixture(t)
	f.options.MaxUnfinished = 1
	f.decide = func(in Input) Decision {
		d := Decision{Due: promise(in.State) == "", Priority: int(in.Observation.Resource.Resource[1] - '0')}
		if in.Slot && d.Due {
			d.State, d.Status = UpdateState, migrationv1alpha1.StorageStateStatus{Migration: &migrationv1alpha1.MigrationReference{Name: "of-" + in.State.Name}}
		}
		return d
	}
	f.client.PrependReactor("update", "storagestates", func(action clienttesting.Action) (bool, runtime.Object, error) {
		return metaOf(action.(clienttesting.UpdateActionImpl).GetObject()).GetName() == "r1", nil, apierrors.NewInternalError(errors.New("etcd"))
	})
	for _, name := range []string{"r1", "r2"} {
		state := stateOf(schema.GroupResource{Resource: name}, "7")
		if err := f.client.Tracker().Add(state); err != nil {
			t.Fatal(err)
		}
		f.cache(t, state)
		f.queue.Add(schema.GroupResource{Resource: name})
	}
	for f.queue.Len() > 0 {
		f.processNext(f.ctx)
	}
	checkUnfinished(t, f, "of-r2")
}
