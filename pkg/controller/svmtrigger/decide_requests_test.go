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
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// TestEmptiedRetryToken has an old annotation come to light when spec.retryToken is emptied.
func TestEmptiedRetryToken(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.after(time.Minute)
	for i, ask := range []struct {
		token, annotation string
		attempts          int
	}{
		{"", "first", 2},
		{"second", "first", 3},
		{"", "first", 4}, // a new request
		{"", "first", 4},
		{"third", "first", 5},
		{"third", "while it has no say", 5},
	} {
		if m := l.in.Migrations[len(l.in.Migrations)-1]; !m.Finished() {
			l.ends(m, migrationv1alpha1.MigrationFailed, migrationv1alpha1.MigrationReasonObjectsDenied)
			l.decide()
		}
		l.in.State.Spec.RetryToken = ask.token
		l.in.State.Annotations = map[string]string{migrationv1alpha1.RetryAnnotation: ask.annotation}
		l.decide()
		l.after(time.Second)
		if len(l.created) != ask.attempts {
			t.Fatalf("after request %d, %+v: created %q", i, ask, l.created)
		}
	}
}

// TestBackoffByAClockAhead has another process record the failure, whose clock is wrong by days.
func TestBackoffByAClockAhead(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.after(time.Minute)
	l.ends(l.migration(), migrationv1alpha1.MigrationFailed, migrationv1alpha1.MigrationReasonObjectsDenied)
	l.decide()
	l.in.State = l.in.State.DeepCopy()
	backoff := l.in.State.Status.Backoff
	for _, at := range []*metav1.Time{&backoff.LastFailureTime, backoff.NextAttemptTime} {
		at.Time = at.Add(100 * time.Hour)
	}
	l.decide()
	if l.after(periods.MinBackoff + time.Second); len(l.created) != 2 {
		t.Errorf("created %q, want another attempt", l.created)
	}
}

func TestMigrationThatSomebodyDeletedIsMadeAnew(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.after(time.Minute)
	first := l.migration()
	l.in.Migrations = nil
	l.decide()
	second := l.migration()
	if ref := l.in.State.Status.Migration; second.Name != first.Name || ref.UID != second.UID {
		t.Errorf("%s was deleted, and after %s the state names %+v", first.Name, second.Name, ref)
	}
	if want := []string{eventMigrationCreated, eventMigrationCreated}; !slices.Equal(l.events, want) {
		t.Errorf("events %q, want %q", l.events, want)
	}
}

// TestAttemptThatAFinalizerKeeps holds up the next one until it is gone, and the state says so.
func TestAttemptThatAFinalizerKeeps(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.after(time.Minute)
	kept := l.migration()
	l.begins(kept)
	l.decide()
	kept.DeletionTimestamp, kept.Finalizers = &metav1.Time{Time: l.in.Now}, []string{"example.com/kept"}
	l.after(time.Hour)
	migrated := meta.FindStatusCondition(l.in.State.Status.Conditions, migrationv1alpha1.StorageStateMigrated)
	if len(l.created) != 1 || !strings.Contains(migrated.Message, "finalizers keep it: example.com/kept") {
		t.Errorf("created %q: %s", l.created, migrated.Message)
	}
	l.in.State.Spec.Paused = true
	l.decide()
	l.reasons(migrationv1alpha1.StateReasonServersAgree, migrationv1alpha1.StateReasonPaused,
		migrationv1alpha1.StateReasonPaused)
	l.in.State.Spec.Paused, l.in.Migrations = false, nil
	l.after(time.Second)
	if want := []string{kept.Name, kept.Name}; !slices.Equal(l.created, want) {
		t.Errorf("created %q, want %q", l.created, want)
	}
}

// TestAttemptOfAMadeUpEpoch has somebody write that an attempt has begun in another epoch.
func TestAttemptOfAMadeUpEpoch(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.after(time.Minute)
	begun := l.migration()
	l.begins(begun)
	begun.Status.Target = begun.Status.Target.DeepCopy()
	*begun.Status.Target.Epoch = 7
	l.decide()
	if m := l.migration(); m.UID == begun.UID || m.Name != begun.Name {
		t.Errorf("the attempt is %+v, want another one of the same name", m)
	}
}

func TestSuspendedMigration(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.after(time.Minute)
	l.migration().Spec.Suspend = true
	l.after(time.Hour)
	l.reasons(migrationv1alpha1.StateReasonServersAgree, migrationv1alpha1.StateReasonMigrationSuspended,
		migrationv1alpha1.StateReasonMigrationSuspended)
	if len(l.created) != 1 {
		t.Errorf("created %q beside a migration that is suspended", l.created)
	}
	l.flip("v2")
	l.decide()
	l.after(time.Hour)
	l.reasons(migrationv1alpha1.StateReasonServersAgree, migrationv1alpha1.StateReasonMigrationSuspended,
		migrationv1alpha1.StateReasonMigrationSuspended)
	if len(l.created) != 1 || !l.migration().Spec.Suspend {
		t.Errorf("created %q in an epoch after the one of a migration that is suspended", l.created)
	}
	l.migration().Spec.Suspend = false
	l.decide()
	if target := l.migration().Spec.Target; len(l.created) != 2 || *target.Epoch != 2 {
		t.Errorf("created %q, the last for %+v, when the migration was resumed", l.created, target)
	}
}

// TestSuspendedMigrationThatIsNotNeeded has a person migrate the resource while a migration of the trigger is
// suspended.
func TestSuspendedMigrationThatIsNotNeeded(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.after(time.Minute)
	suspended := l.migration()
	suspended.Spec.Suspend = true
	by := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "by-a-person", UID: l.uid()}}
	by.Spec.Resource = suspended.Spec.Resource
	l.in.Migrations = append([]*migrationv1alpha1.StorageVersionMigration{by}, l.in.Migrations...)
	l.begins(by)
	by.Status.Target = suspended.Spec.Target
	l.decide()
	l.reasons(migrationv1alpha1.StateReasonServersAgree, migrationv1alpha1.StateReasonMigrationRunning,
		migrationv1alpha1.StateReasonMigrationRunning)
	l.ends(by, migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.MigrationReasonAllObjectsMigrated)
	by.Status.Target = suspended.Spec.Target
	l.after(time.Second)
	l.expect(1, v1, v1)
	if left := l.in.Migrations; len(left) != 1 || left[0] != by {
		t.Errorf("%d migrations are left when there is nothing to migrate", len(left))
	}
}

// TestBackoffThatAPersonWrote names no migration.
func TestBackoffThatAPersonWrote(t *testing.T) {
	l := newLife(t)
	l.decide()
	next := metav1.NewTime(l.in.Now.Add(time.Hour))
	l.in.State.Status.Backoff = &migrationv1alpha1.MigrationBackoff{
		Failures: 2, LastFailureTime: metav1.NewTime(l.in.Now), NextAttemptTime: &next,
	}
	l.after(2 * time.Minute)
	if len(l.created) > 0 {
		t.Errorf("created %q before the time that the person wrote", l.created)
	}
	l.after(time.Hour)
	if len(l.created) != 1 {
		t.Errorf("created %q", l.created)
	}
}

// TestHashWithoutPadding is that of an aggregated server that does not use the library of Kubernetes.
func TestHashWithoutPadding(t *testing.T) {
	got := normalized([]string{"widget-v1", "", "widget-v1"})
	if want := []string{"widget-v1", storageversion.Unknown}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestMigrationWithoutState wants a migration for an epoch to go if its state is gone and no server serves the
// resource. Otherwise it would wait for ever.
func TestMigrationWithoutState(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.after(time.Minute)
	m := l.migration()
	byHand := m.DeepCopy()
	byHand.Name, byHand.Spec.Target = "by-hand", nil
	suspended, byHand := m.DeepCopy(), m.DeepCopy()
	suspended.Spec.Suspend, byHand.Spec.Target = true, nil
	gone := Input{Now: l.in.Now, Observation: storageversion.Observation{Resource: widgets}}
	gone.Migrations = []*migrationv1alpha1.StorageVersionMigration{m, suspended, byHand}
	if d := Decide(gone); len(d.Delete) > 0 || d.DecideAt.IsZero() {
		t.Errorf("it is not known whether the resource is served, and the decision is %+v", d)
	}
	gone.Observation.Presence = storageversion.NotServed
	if d := Decide(gone); len(d.Delete) != 1 || d.Delete[0] != m || d.DeleteReason != reasonOutdated {
		t.Errorf("the decision is %+v, want that one migration is deleted", d)
	}
}

// TestStateThatFinalizersKeep wants what servers write to be recorded also in a state that is being deleted.
func TestStateThatFinalizersKeep(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.in.State.DeletionTimestamp = &metav1.Time{Time: l.in.Now}
	l.flip("v2")
	l.decide()
	if got := l.in.State.Status.PersistedStorageVersionHashes; !slices.Contains(got, v2) {
		t.Errorf("the state lists %q, want %s too", got, v2)
	}
}
