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
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

func TestComplaints(t *testing.T) {
	down, other, invalid := apierrors.NewServiceUnavailable("down"), apierrors.NewForbidden(states, "x", nil), apierrors.NewInvalid(schema.GroupKind{}, "x", nil)
	for name, tc := range map[string]struct {
		failures []error
		every    time.Duration
		want     int
	}{
		"the same for every resource":           {[]error{down, down, down}, time.Second, 1},
		"the same, wrapped":                     {[]error{down, fmt.Errorf("creating: %w", down)}, time.Second, 1},
		"the same after a minute":               {[]error{down, down}, time.Minute, 2},
		"two kinds by turns":                    {[]error{down, other, down, other}, time.Second, 2},
		"an invalid write is always of its own": {[]error{invalid, invalid, invalid}, time.Second, 3},
	} {
		t.Run(name, func(t *testing.T) {
			logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
			f := newFixture(t)
			for _, failure := range tc.failures {
				f.complain(klog.NewContext(f.ctx, logger), failure)
				f.clock.Step(tc.every)
			}
			logged := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
			if got := strings.Count(logged, "Syncing failed"); got != tc.want {
				t.Errorf("%d lines, want %d:\n%s", got, tc.want, logged)
			}
		})
	}
}

// TestNextSyncKnowsTheLastWrite has a cache that is behind: the state that was written is decided on, not the cached one.
func TestNextSyncKnowsTheLastWrite(t *testing.T) {
	state := stateOf(widgets, "7")
	f := newFixture(t, state)
	f.cache(t, state)
	var epochs []int64
	f.decide = func(in Input) Decision {
		epochs = append(epochs, in.State.Status.Epoch)
		status := in.State.Status
		status.Epoch++
		return Decision{State: UpdateState, Status: status}
	}
	for range 3 {
		if _, err := f.sync(f.ctx, widgets); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]int64{0, 1, 2}, epochs); diff != "" {
		t.Errorf("epochs decided on (-want +got):\n%s", diff)
	}
	want := []string{
		"update storagestates/status widgets.example.com if uid-widgets@7",
		"update storagestates/status widgets.example.com if uid-widgets@101",
		"update storagestates/status widgets.example.com if uid-widgets@102",
	}
	if diff := cmp.Diff(want, f.requests()); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestNextSyncKnowsOfTheDeletion(t *testing.T) {
	state := stateOf(widgets, "7")
	f := newFixture(t, state)
	f.cache(t, state)
	f.decide = func(Input) Decision { return Decision{State: DeleteState} }
	if _, err := f.sync(f.ctx, widgets); err != nil {
		t.Fatal(err)
	}
	if state, err := f.state(widgets); err != nil || state != nil {
		t.Errorf("got %v, %v of a state that was deleted", state, err)
	}
}

// TestDeletionThatNoEventToldOf has a state that was deleted right after it was written, while the watch was interrupted:
// the cache has moved on and never had it.
func TestDeletionThatNoEventToldOf(t *testing.T) {
	f := newFixture(t)
	f.own.stored(widgets, stateOf(widgets, "50"))
	if state, err := f.state(widgets); err != nil || state == nil {
		t.Errorf("got %v, %v before the cache has caught up", state, err)
	}
	f.cache(t, stateOf(gadgets, "60"))
	if state, err := f.state(widgets); err != nil || state != nil {
		t.Errorf("got %v, %v of a state that is gone", state, err)
	}
}

func TestSharedStorageIsDecidedOnTogether(t *testing.T) {
	f := newFixture(t)
	other := migrationOf(gadgets, "of-gadgets")
	f.cache(t, stateOf(widgets, "7"), stateOf(gadgets, "8"), migrationOf(widgets, "of-widgets"), other,
		migrationOf(schema.GroupResource{Resource: "secrets"}, "of-secrets"))
	f.observations.see(storageversion.Observation{Resource: widgets, SharedBy: gadgets, SharedWith: []schema.GroupResource{gadgets}})

	in, err := f.observe(widgets)
	if err != nil {
		t.Fatal(err)
	}
	if in.State.Name != "widgets.example.com" || in.SharedBy == nil || in.SharedBy.Name != "gadgets.example.com" {
		t.Errorf("got state %v, shared by %v", in.State, in.SharedBy)
	}
	var names []string
	for _, migration := range in.Migrations {
		names = append(names, migration.Name)
	}
	if diff := cmp.Diff([]string{"of-widgets", "of-gadgets"}, names); diff != "" {
		t.Errorf("migrations (-want +got):\n%s", diff)
	}
	if !in.Now.Equal(start) || in.Periods != DefaultPeriods() || !in.AutoMigrate {
		t.Errorf("got %v, %v, %t", in.Now, in.Periods, in.AutoMigrate)
	}

	f.options.AutoMigrate, _ = ParseSelection([]string{"*", "-gadgets.example.com"})
	if in, _ = f.observe(widgets); in.AutoMigrate {
		t.Error("a storage is migrated although it was asked to leave out one of the resources in it")
	}
}

func TestWhatIsThereIsAbsentOrPresent(t *testing.T) {
	f := newFixture(t)
	in, err := f.observe(widgets)
	if err != nil || in.State != nil || in.SharedBy != nil || len(in.Migrations) > 0 {
		t.Errorf("got %+v, %v", in, err)
	}
}

func TestWhenItLooksAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		decision Decision
		after    time.Duration
	}{
		"when the decision says":                 {Decision{LookAgain: start.Add(time.Minute)}, time.Minute},
		"not at once, whatever the decision":     {Decision{LookAgain: start.Add(-time.Minute)}, minRetry},
		"after an error":                         {Decision{State: "Nonsense"}, minRetry},
		"after somebody else wrote":              {Decision{State: UpdateState}, minRetry},
		"after an error, not when it would have": {Decision{State: "Nonsense", LookAgain: start.Add(time.Hour)}, minRetry},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.cache(t, stateOf(widgets, "7"))
			f.decide = func(Input) Decision { return tc.decision }
			f.queue.Add(widgets)
			f.processNext(f.ctx)
			f.clock.Step(tc.after - time.Millisecond)
			// The queue has a ticker of its own, and a timer for what it keeps for later.
			if err := wait.PollUntilContextTimeout(f.ctx, time.Millisecond, wait.ForeverTestTimeout, true, func(context.Context) (bool, error) {
				return f.queue.Len() > 0 || f.clock.Waiters() > 1, nil
			}); err != nil {
				t.Fatalf("it never looks again: %v", err)
			}
			if f.queue.Len() > 0 {
				t.Fatalf("looks again before %v have passed", tc.after)
			}
			f.clock.Step(time.Millisecond)
			if err := wait.PollUntilContextTimeout(f.ctx, time.Millisecond, wait.ForeverTestTimeout, true, func(context.Context) (bool, error) {
				return f.queue.Len() > 0, nil
			}); err != nil {
				t.Errorf("does not look again after %v: %v", tc.after, err)
			}
		})
	}
}
