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
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// TestSyncsEnd wants a limit for syncs: a request that nobody answers must not hold up the only worker for ever.
func TestSyncsEnd(t *testing.T) {
	if f := newFixture(t); f.queue.Timeout != controller.SyncTimeout {
		t.Errorf("a sync ends after %v, want %v", f.queue.Timeout, controller.SyncTimeout)
	}
}

// TestNextSyncWaitsForTheLastWrite has a cache that is behind: nothing is decided on a state that was replaced.
func TestNextSyncWaitsForTheLastWrite(t *testing.T) {
	state := stateOf(widgets, "7")
	f := newFixture(t, state)
	f.cache(t, state)
	var epochs []int64
	f.decide = func(in Input) Decision {
		epochs = append(epochs, in.State.Status.Epoch)
		status := in.State.Status
		status.Epoch++
		return Decision{StateAction: UpdateState, Status: status}
	}
	sync := func() time.Time {
		t.Helper()
		again, err := f.sync(f.ctx, widgets)
		if err != nil {
			t.Fatal(err)
		}
		return again
	}
	sync()
	if again := sync(); !again.Equal(start.Add(minRetry)) || len(epochs) != 1 {
		t.Errorf("decided on epochs %v, looks again at %v", epochs, again)
	}
	f.cache(t, f.stored(t, widgets))
	sync()
	if diff := cmp.Diff([]int64{0, 1}, epochs); diff != "" {
		t.Errorf("epochs decided on (-want +got):\n%s", diff)
	}
}

// TestNextSyncWaitsForTheMigration has a cache that does not show the migration that was just created.
func TestNextSyncWaitsForTheMigration(t *testing.T) {
	state := stateOf(widgets, "7")
	f := newFixture(t, state)
	f.cache(t, state, migrationOf(gadgets, "other"))
	decisions := 0
	f.decide = func(Input) Decision {
		decisions++
		return Decision{Create: migrationOf(widgets, "due")}
	}
	for range 3 {
		if _, err := f.sync(f.ctx, widgets); err != nil {
			t.Fatal(err)
		}
	}
	if decisions != 1 {
		t.Errorf("%d decisions before the cache shows the migration, want 1", decisions)
	}
}

// TestObserve has migrations of several resources, and a resource that shares its storage.
func TestObserve(t *testing.T) {
	f := newFixture(t)
	f.cache(t, stateOf(widgets, "7"), stateOf(gadgets, "8"), migrationOf(widgets, "of-widgets"),
		migrationOf(gadgets, "of-gadgets"))
	f.observations.see(storageversion.Observation{Resource: widgets, SharedWith: []schema.GroupResource{gadgets}})

	in := f.observe(widgets)
	if in.State.Name != "widgets.example.com" || len(in.Migrations) != 1 || in.Migrations[0].Name != "of-widgets" {
		t.Errorf("got state %v and migrations %v", in.State, in.Migrations)
	}
	if !in.Now.Equal(start) || in.Periods != DefaultPeriods() || !in.AutoMigrate {
		t.Errorf("got %v, %v, %t", in.Now, in.Periods, in.AutoMigrate)
	}

	f.options.AutoMigrate, _ = ParseSelection([]string{"*", "-gadgets.example.com"})
	if in = f.observe(widgets); in.AutoMigrate {
		t.Error("a storage is migrated although it was asked to leave out one of the resources in it")
	}
}

// TestFieldsThatAreRefused has definitions of another program. The API server refuses fields if it is asked to, and
// otherwise drops them.
func TestFieldsThatAreRefused(t *testing.T) {
	state := stateOf(widgets, "7")
	for name, decision := range map[string]Decision{
		"a state is created":     {StateAction: CreateState},
		"a status is written":    {StateAction: UpdateState},
		"a migration is created": {Create: migrationOf(widgets, "due")},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, state)
			f.cache(t, state)
			f.client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
				validation := ""
				switch a := action.(type) {
				case clienttesting.CreateActionImpl:
					validation = a.GetCreateOptions().FieldValidation
				case clienttesting.UpdateActionImpl:
					validation = a.GetUpdateOptions().FieldValidation
				}
				return validation == metav1.FieldValidationStrict, nil,
					apierrors.NewBadRequest(`strict decoding error: unknown field "spec.target"`)
			})
			f.decide = func(Input) Decision { return decision }
			if _, err := f.sync(f.ctx, widgets); controller.EndsManager(err) == nil {
				t.Errorf("the error is %v", err)
			}
		})
	}
}
