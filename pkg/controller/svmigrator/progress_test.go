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
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

func TestThePositionSurvivesTheStatus(t *testing.T) {
	for name, position := range map[string]sweep.Position{
		"in the middle": {
			Token: "more", Baseline: "10",
			Counts: sweep.Counts{
				sweep.Rewritten: 3, sweep.AlreadyCurrent: 4, sweep.WrittenByOthers: 5, sweep.Gone: 6, sweep.Denied: 1,
			},
			Retried: 8,
			Denied: []migrationv1alpha1.DeniedObject{
				{Namespace: "ns", Name: "a", UID: "u", Reason: metav1.StatusReasonForbidden, Message: "no"},
			},
		},
		"at the end": {Baseline: "10", Counts: sweep.Counts{sweep.Rewritten: 3}, Complete: true},
	} {
		t.Run(name, func(t *testing.T) {
			status := &migrationv1alpha1.StorageVersionMigrationStatus{BaselineResourceVersion: position.Baseline}
			putPosition(position, nil)(status, noon)
			if diff := cmp.Diff(position, positionOf(status)); diff != "" {
				t.Errorf("read back it differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestEveryOutcomeHasItsCount(t *testing.T) {
	fields := counters(&migrationv1alpha1.MigrationProgress{})
	for _, outcome := range sweep.Outcomes {
		if fields[outcome] == nil {
			t.Errorf("the status has no count of %s", outcome)
		}
	}
}

func TestACountWithoutATokenProvesNothing(t *testing.T) {
	status := &migrationv1alpha1.StorageVersionMigrationStatus{
		BaselineResourceVersion: "10",
		Progress:                &migrationv1alpha1.MigrationProgress{Processed: 9, Rewritten: 9},
	}
	if diff := cmp.Diff(sweep.Position{Baseline: "10"}, positionOf(status)); diff != "" {
		t.Errorf("it differs (-want +got):\n%s", diff)
	}
}

func TestEstimates(t *testing.T) {
	status := &migrationv1alpha1.StorageVersionMigrationStatus{}
	perMinute := ptr.To[int64](60)
	inside := sweep.Position{Token: "more", Counts: sweep.Counts{sweep.Rewritten: 999}, Remaining: ptr.To[int64](1)}
	putPosition(inside, perMinute)(status, noon)
	p := status.Progress
	if *p.EstimatedTotal != 1000 || *p.PercentComplete != 99 ||
		!status.EstimatedCompletionTime.Time.Equal(noon.Add(time.Second)) {
		t.Errorf("estimated %d, %d %%, the end at %v", *p.EstimatedTotal, *p.PercentComplete, status.EstimatedCompletionTime)
	}
	putPosition(sweep.Position{Counts: sweep.Counts{sweep.Rewritten: 1001}, Complete: true}, perMinute)(status, noon)
	p = status.Progress
	if *p.EstimatedTotal != 1001 || *p.PercentComplete != 100 || status.EstimatedCompletionTime != nil {
		t.Errorf("at the end estimated %d, %d %%, the end at %v",
			*p.EstimatedTotal, *p.PercentComplete, status.EstimatedCompletionTime)
	}
}

func TestNothingIsEstimatedWhileNothingIsRewritten(t *testing.T) {
	target := &migrationv1alpha1.MigrationTarget{}
	for name, test := range map[string]struct {
		change              statusChange
		hasRate, hasTheTime bool
	}{
		"it waits":                      {waiting(notAgreed("the servers do not agree")), false, false},
		"requests fail":                 {running(target, rewrite.Report{Phase: rewrite.RetryingRequests}), false, false},
		"objects are rewritten":         {running(target, rewrite.Report{Phase: rewrite.Rewriting}), true, true},
		"denied objects are tried once": {running(target, rewrite.Report{Phase: rewrite.RetryingDenied}), true, true},
		"it has ended":                  {succeeded(target), true, false},
	} {
		status := &migrationv1alpha1.StorageVersionMigrationStatus{}
		inside := sweep.Position{Token: "more", Counts: sweep.Counts{sweep.Rewritten: 9}, Remaining: ptr.To[int64](1)}
		putPosition(inside, ptr.To[int64](60))(status, noon)
		test.change(status, noon)
		rate, end := status.Progress.ObjectsPerMinute, status.EstimatedCompletionTime
		if (rate != nil) != test.hasRate || (end != nil) != test.hasTheTime {
			t.Errorf("%s: %v objects in a minute, the end at %v", name, rate, end)
		}
	}
}

func TestRate(t *testing.T) {
	var r rate
	if got := r.perMinute(noon, 100); got != nil {
		t.Errorf("%d in a minute, of a moment", *got)
	}
	if got := r.perMinute(noon.Add(30*time.Second), 600); *got != 1000 {
		t.Errorf("%d in a minute, want 1000", *got)
	}
	// What was long ago does not count.
	r.perMinute(noon.Add(2*time.Minute), 600)
	if got := r.perMinute(noon.Add(3*time.Minute), 660); *got != 60 {
		t.Errorf("%d in a minute, want 60", *got)
	}
}

func TestExpiry(t *testing.T) {
	ended := func() *migrationv1alpha1.StorageVersionMigration {
		m := made(nil)
		m.CreationTimestamp = metav1.NewTime(noon.Add(-2 * time.Hour))
		m.Status.Conditions = []migrationv1alpha1.MigrationCondition{
			{Type: migrationv1alpha1.MigrationSucceeded, Status: corev1.ConditionTrue},
		}
		return m
	}
	old, proof := ended(), ended()
	proof.Status.Target = boundTo(3)
	unproven, proven := stateAt(3, v2, metav1.ConditionTrue), stateAt(3, v2, metav1.ConditionTrue)
	unproven.Status.PersistedStorageVersionHashes = []string{v1, v2}
	proven.Status.PersistedStorageVersionHashes = []string{v2}
	for name, test := range map[string]struct {
		migration *migrationv1alpha1.StorageVersionMigration
		state     *migrationv1alpha1.StorageState
		ttl       time.Duration
		want      bool
	}{
		"it has ended":                          {migration: old, ttl: time.Hour, want: true},
		"all are kept":                          {migration: old},
		"the state has not taken its proof yet": {migration: proof, state: unproven, ttl: time.Hour},
		"the state has taken its proof": {
			migration: proof, state: proven, ttl: time.Hour, want: true,
		},
		"the state is in another epoch by now": {
			migration: proof, state: stateAt(4, v2, metav1.ConditionTrue), ttl: time.Hour, want: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			at, may := deletableFrom(test.migration, test.state, test.ttl)
			if may != test.want {
				t.Errorf("may be deleted: %v, want %v", may, test.want)
			}
			if want := endedAt(test.migration).Add(test.ttl); !at.Equal(want) {
				t.Errorf("may be deleted at %v, want %v", at, want)
			}
		})
	}
}

// TestExpiryOfAFailure waits until the trigger has counted the failure. Otherwise it would never wait longer.
func TestExpiryOfAFailure(t *testing.T) {
	m := made(nil)
	m.UID = "failed"
	m.Status.Conditions = []migrationv1alpha1.MigrationCondition{
		{Type: migrationv1alpha1.MigrationFailed, Status: corev1.ConditionTrue},
	}
	state := stateAt(3, v2, metav1.ConditionTrue)
	state.Status.PersistedStorageVersionHashes = []string{v1, v2}
	expect := func(when string, want bool) {
		t.Helper()
		if _, may := deletableFrom(m, state, time.Second); may != want {
			t.Errorf("%s: may be deleted: %v, want %v", when, may, want)
		}
	}
	expect("of a person", true)
	state.Status.Migration = &migrationv1alpha1.MigrationReference{UID: m.UID}
	expect("of the trigger", false)
	state.Status.Backoff = &migrationv1alpha1.MigrationBackoff{LastFailedMigration: state.Status.Migration}
	expect("counted", true)
	state.Status.Backoff, state.Status.PersistedStorageVersionHashes = nil, []string{v2}
	expect("another has proved", true)
	served := metav1.Condition{Type: migrationv1alpha1.StorageStateManagedFieldsServed, Status: metav1.ConditionFalse}
	state.Status.Conditions = append(state.Status.Conditions, served)
	expect("managedFields have to be cleaned", false)
}

func TestEndedAt(t *testing.T) {
	m := made(nil)
	m.CreationTimestamp = metav1.NewTime(noon)
	m.Status.Conditions = []migrationv1alpha1.MigrationCondition{{Type: migrationv1alpha1.MigrationFailed}}
	if got := endedAt(m); !got.Equal(noon) {
		t.Errorf("a migration of a controller that says no time ended at %v, want %v", got, noon)
	}
	want := noon.Add(time.Hour)
	failed(Decision{})(&m.Status, want)
	setCondition(&m.Status, want.Add(time.Hour), "Noted", corev1.ConditionTrue, "Noted", "by somebody")
	if got := endedAt(m); !got.Equal(want) {
		t.Errorf("with a later condition it ended at %v, want %v", got, want)
	}
	m.Status.Conditions, m.Status.CompletionTime = m.Status.Conditions[:1], nil
	if got := endedAt(m); !got.Equal(want) {
		t.Errorf("without completionTime it ended at %v, want %v", got, want)
	}
}

// TestLogOfADeletion wants the log to say which migration was deleted.
func TestLogOfADeletion(t *testing.T) {
	m := made(func(m *migrationv1alpha1.StorageVersionMigration) { succeeded(boundTo(3))(&m.Status, noon) })
	s, ctx := newStage(t, m)
	s.env.options.FinishedTTL = time.Hour
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(2)))
	if _, err := s.sync(klog.NewContext(ctx, logger), m.Name); err != nil {
		t.Fatal(err)
	}
	got := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	if !strings.Contains(got, "Deleted a migration") || !strings.Contains(got, `migration="m"`) {
		t.Errorf("the log is %q", got)
	}
}
