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
	"context"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	clienttesting "k8s.io/client-go/testing"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// soon is how long several steps may take on a busy machine.
const soon = 5 * time.Minute

// run runs the controller until the test ends, and then looks for what it left behind.
func (f *fixture) run(t *testing.T) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	ctx, cancel := context.WithCancel(f.ctx)
	f.factory.StartWithContext(ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	// The fake client shows no watch what happened before it.
	for watches := 0; watches < 2; time.Sleep(time.Millisecond) {
		watches = len(slices.DeleteFunc(f.client.Actions(), func(a clienttesting.Action) bool {
			return a.GetVerb() != "watch"
		}))
	}
	t.Cleanup(func() {
		cancel()
		<-done
		f.factory.Shutdown()
		goleak.VerifyNone(t, before)
	})
}

// seen is what an observer sees of widgets with the storage version v1.
func seen() storageversion.Observation {
	return storageversion.Observation{
		Resource: widgets, Time: start, ReadAt: start, Class: storageversion.Custom,
		Presence: storageversion.Served,
		Sightings: []storageversion.Sighting{{
			Evidence: migrationv1alpha1.StorageEvidence{
				Source: migrationv1alpha1.EvidenceFromCustomResourceDefinition,
				CustomResourceDefinition: &migrationv1alpha1.CustomResourceDefinitionEvidence{UID: "crd", Generation: 1,
					StoredVersions: []string{"v1"}},
			},
			Writing: []string{v1}, Stored: []string{v1},
		}},
		Versions: map[string]string{v1: "example.com/v1"}, ServedVersions: []string{"v1"},
	}
}

// TestFromTheFirstSightToTheEnd runs the controller as it is on what informers and the observer deliver.
func TestFromTheFirstSightToTheEnd(t *testing.T) {
	f := newFixture(t)
	f.observations.see(seen())
	f.run(t)

	state := f.until(t, "it waits for agreement", func(state *migrationv1alpha1.StorageState) bool {
		return reason(state, migrationv1alpha1.StorageStateAgreed) == migrationv1alpha1.StateReasonSettling
	})
	if diff := cmp.Diff([]string{migrationv1alpha1.Unknown, v1}, state.Status.PersistedStorageVersionHashes); diff != "" {
		t.Errorf("persisted (-want +got):\n%s", diff)
	}
	state = f.until(t, "a migration is created and recorded", func(state *migrationv1alpha1.StorageState) bool {
		f.clock.Step(time.Second)
		return state.Status.Migration != nil && state.Status.Migration.UID != ""
	})
	if shown := shownGauges(t)["storage_states unknown"]; shown != 1 {
		t.Errorf("the metrics of a controller that runs show %v states, want 1", shown)
	}
	migrations := f.client.MigrationV1alpha1().StorageVersionMigrations()
	migration, err := migrations.Get(f.ctx, state.Status.Migration.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if settled := start.Add(storageversion.DefaultSettlePeriod); f.clock.Now().Before(settled) {
		t.Errorf("a migration was created before %v", settled)
	}

	migration = migration.DeepCopy()
	migration.Status.Target = migration.Spec.Target
	now := metav1.NewTime(f.clock.Now())
	migration.Status.StartTime = &now
	migration.Status.Conditions = []migrationv1alpha1.MigrationCondition{{Type: migrationv1alpha1.MigrationSucceeded,
		Status: corev1.ConditionTrue}}
	if _, err := migrations.UpdateStatus(f.ctx, migration, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	state = f.until(t, "it is migrated", func(state *migrationv1alpha1.StorageState) bool {
		return meta.IsStatusConditionTrue(state.Status.Conditions, migrationv1alpha1.StorageStateMigrated)
	})
	if diff := cmp.Diff([]string{v1}, state.Status.PersistedStorageVersionHashes); diff != "" {
		t.Errorf("persisted (-want +got):\n%s", diff)
	}

	if err := f.client.MigrationV1alpha1().StorageStates().Delete(f.ctx, state.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.until(t, "a state that somebody deleted starts over", func(anew *migrationv1alpha1.StorageState) bool {
		return anew.UID != state.UID && anew.Status.Epoch == 1 &&
			anew.Status.PersistedStorageVersionHashes[0] == migrationv1alpha1.Unknown
	})

	gone := seen()
	gone.Presence, gone.Sightings = storageversion.Deleted, nil
	f.observations.see(gone)
	if err := wait.PollUntilContextTimeout(f.ctx, 10*time.Millisecond, soon, true,
		func(ctx context.Context) (bool, error) {
			_, err := f.client.MigrationV1alpha1().StorageStates().Get(ctx, state.Name, metav1.GetOptions{})
			return apierrors.IsNotFound(err), nil
		}); err != nil {
		t.Errorf("the state outlives its definition: %v", err)
	}
}

// until waits until the state of widgets is as it is to be.
func (f *fixture) until(
	t *testing.T, what string, is func(*migrationv1alpha1.StorageState) bool,
) *migrationv1alpha1.StorageState {
	t.Helper()
	var state *migrationv1alpha1.StorageState
	err := wait.PollUntilContextTimeout(f.ctx, 10*time.Millisecond, soon, true,
		func(ctx context.Context) (bool, error) {
			got, err := f.client.MigrationV1alpha1().StorageStates().Get(ctx, widgets.String(), metav1.GetOptions{})
			if err != nil {
				return false, nil // not yet
			}
			state = got
			return is(got), nil
		})
	if err != nil {
		t.Fatalf("never: %s: %v\n%+v", what, err, state)
	}
	return state
}

func reason(state *migrationv1alpha1.StorageState, conditionType string) string {
	if condition := meta.FindStatusCondition(state.Status.Conditions, conditionType); condition != nil {
		return condition.Reason
	}
	return ""
}

// TestEventsLeadToASync has a change of everything that decisions depend on.
func TestEventsLeadToASync(t *testing.T) {
	for name, event := range map[string]func(f *fixture) error{
		"the observation changes": func(f *fixture) error { f.observations.see(seen()); return nil },
		"an annotation is set":    pause,
		"the state is deleted": func(f *fixture) error {
			return f.client.MigrationV1alpha1().StorageStates().Delete(f.ctx, widgets.String(), metav1.DeleteOptions{})
		},
		"a migration is created": func(f *fixture) error {
			_, err := f.client.MigrationV1alpha1().StorageVersionMigrations().Create(f.ctx, migrationOf(widgets, "new"),
				metav1.CreateOptions{})
			return err
		},
		"a migration is deleted": func(f *fixture) error {
			return f.client.MigrationV1alpha1().StorageVersionMigrations().Delete(f.ctx, "old", metav1.DeleteOptions{})
		},
		"a migration ends": func(f *fixture) error {
			migration := migrationOf(widgets, "other")
			migration.Status.Conditions = []migrationv1alpha1.MigrationCondition{{Type: migrationv1alpha1.MigrationFailed,
				Status: corev1.ConditionTrue}}
			_, err := f.client.MigrationV1alpha1().StorageVersionMigrations().UpdateStatus(f.ctx, migration,
				metav1.UpdateOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, stateOf(widgets, "7"), migrationOf(widgets, "old"), migrationOf(widgets, "other"))
			f.observations.see(seen())
			synced := make(chan schema.GroupResource, 100)
			f.decide = func(in Input) Decision { synced <- in.Observation.Resource; return Decision{} }
			f.run(t)
			await(t, synced, widgets)
			drain(t, f, synced)
			if err := event(f); err != nil {
				t.Fatal(err)
			}
			await(t, synced, widgets)
		})
	}
}

func pause(f *fixture) error {
	states := f.client.MigrationV1alpha1().StorageStates()
	state, err := states.Get(f.ctx, widgets.String(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	state = state.DeepCopy()
	state.Annotations[migrationv1alpha1.PausedAnnotation] = "true"
	_, err = states.Update(f.ctx, state, metav1.UpdateOptions{})
	return err
}

func await(t *testing.T, synced <-chan schema.GroupResource, want schema.GroupResource) {
	t.Helper()
	deadline := time.After(soon)
	for {
		select {
		case got := <-synced:
			if got == want {
				return
			}
		case <-deadline:
			t.Fatalf("%v was not looked at", want)
		}
	}
}

// drain waits until the controller has looked at a resource that was enqueued after all others.
func drain(t *testing.T, f *fixture, synced <-chan schema.GroupResource) {
	t.Helper()
	last := schema.GroupResource{Resource: "last"}
	f.queue.Add(last)
	await(t, synced, last)
}

func TestNothingIsDecidedBeforeAllIsKnown(t *testing.T) {
	f := newFixture(t, stateOf(widgets, "7"))
	f.observations.askedInVain = 2
	known := make(chan bool, 100)
	f.decide = func(Input) Decision {
		f.observations.mu.Lock()
		defer f.observations.mu.Unlock()
		known <- f.observations.askedInVain == 0
		return Decision{}
	}
	f.run(t)
	select {
	case was := <-known:
		if !was {
			t.Error("decided while the observer did not know everything")
		}
	case <-time.After(soon):
		t.Error("nothing was decided")
	}
}

// TestRunEndsAfterTheLastSync ends the controller in the middle of a sync.
func TestRunEndsAfterTheLastSync(t *testing.T) {
	f := newFixture(t, stateOf(widgets, "7"))
	ctx, cancel := context.WithCancel(f.ctx)
	var ended atomic.Bool
	f.decide = func(Input) Decision {
		cancel()
		for !f.queue.ShuttingDown() {
			runtime.Gosched()
		}
		for range 1000 {
			runtime.Gosched()
		}
		ended.Store(true)
		return Decision{}
	}
	f.factory.StartWithContext(ctx)
	_ = f.Run(ctx)
	if !ended.Load() {
		t.Error("Run returned before its worker")
	}
	f.factory.Shutdown()
}
