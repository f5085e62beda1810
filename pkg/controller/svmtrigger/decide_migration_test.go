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
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

func TestReins(t *testing.T) {
	for name, tc := range map[string]struct {
		set    func(in *Input)
		reason string
	}{
		"paused":                     {func(in *Input) { in.State.Spec.Paused = true }, migrationv1alpha1.StateReasonPaused},
		"paused by an annotation":    {annotatedPause("true"), migrationv1alpha1.StateReasonPaused},
		"paused by another spelling": {annotatedPause("Yes"), migrationv1alpha1.StateReasonPaused},
		"not selected":               {func(in *Input) { in.AutoMigrate = false }, migrationv1alpha1.StateReasonNotSelected},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t)
			l.decide()
			tc.set(&l.in)
			l.after(time.Minute)
			if len(l.created) != 0 {
				t.Errorf("created %q", l.created)
			}
			l.reasons(migrationv1alpha1.StateReasonServersAgree, tc.reason, tc.reason)
			l.in.State.Annotations, l.in.AutoMigrate, l.in.State.Spec.Paused = nil, true, false
			l.decide()
			// A failure does not hide that no other migration follows.
			l.ends(l.migration(), migrationv1alpha1.MigrationFailed, migrationv1alpha1.MigrationReasonObjectsDenied)
			l.after(time.Second)
			l.reasons(migrationv1alpha1.StateReasonServersAgree, migrationv1alpha1.StateReasonMigrationFailed,
				migrationv1alpha1.StateReasonMigrationFailed)
			tc.set(&l.in)
			l.after(time.Second)
			l.reasons(migrationv1alpha1.StateReasonServersAgree, tc.reason, tc.reason)
		})
	}
	t.Run("not paused by an annotation", func(t *testing.T) {
		l := newLife(t)
		l.decide()
		annotatedPause("False")(&l.in)
		l.after(time.Minute)
		l.migration()
	})
}

func annotatedPause(value string) func(in *Input) {
	return func(in *Input) {
		in.State.Annotations = map[string]string{migrationv1alpha1.PausedAnnotation: value}
	}
}

func TestSoakPeriod(t *testing.T) {
	l := newLife(t)
	l.in.Periods.Soak = time.Hour
	l.decide()
	l.after(59 * time.Minute)
	l.reasons(migrationv1alpha1.StateReasonServersAgree, migrationv1alpha1.StateReasonSoaking,
		migrationv1alpha1.StateReasonSoaking)
	migrated := meta.FindStatusCondition(l.in.State.Status.Conditions, migrationv1alpha1.StorageStateMigrated)
	if due := start.Add(time.Hour).Format(time.RFC3339); !strings.Contains(migrated.Message, due) {
		t.Errorf("%q does not say that the migration is due at %s", migrated.Message, due)
	}
	if len(l.created) > 0 {
		t.Fatalf("created %q before the soak period was over", l.created)
	}
	if again := l.decide().DecideAt; !again.Equal(start.Add(time.Hour)) {
		t.Errorf("the trigger looks again at %v", again)
	}
	l.after(time.Minute)
	l.succeeds()
	l.after(time.Second)
	l.expect(1, v1, v1)

	// A rollback within the period of the new version: nothing was written to it, but objects may be stored in it.
	l.flip("v2")
	l.decide()
	l.after(30 * time.Minute)
	l.flip("v1")
	l.decide()
	l.after(59 * time.Minute)
	if len(l.created) != 1 {
		t.Fatalf("created %q before the soak period was over", l.created)
	}

	// The resource has a period of its own, and a migration by hand does not wait.
	l.in.State.Spec.SoakSeconds = ptr.To[int64](0)
	l.decide()
	l.migration()
	if len(l.created) != 2 {
		t.Errorf("created %q after the soak period of the resource", l.created)
	}
}

func TestSoakPeriodWithAClockAhead(t *testing.T) {
	l := newLife(t)
	l.in.Periods.Soak = time.Hour
	l.decide()
	ahead := metav1.NewTime(start.Add(1000 * time.Hour))
	l.in.State.Status.CurrentSinceTime = &ahead
	l.decide()
	l.after(time.Hour + time.Second)
	l.migration()
}

func TestStateThatSomebodyDeletedComesBackPaused(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.in.State.Spec.Paused, l.in.State.Spec.SoakSeconds = true, ptr.To[int64](7)
	asked := map[string]string{migrationv1alpha1.PausedAnnotation: "true"}
	l.in.State.Annotations = map[string]string{"argocd.argoproj.io/tracking-id": "x"}
	maps.Copy(l.in.State.Annotations, asked)
	l.in.State.Labels = map[string]string{"applyset.kubernetes.io/part-of": "x"}
	l.decide()
	l.in.State = nil
	l.decide()
	if m := l.in.State.ObjectMeta; len(m.Labels) > 0 || !maps.Equal(m.Annotations, asked) {
		t.Errorf("the new state has the labels %v and the annotations %v", m.Labels, m.Annotations)
	}
	if spec := l.in.State.Spec; !spec.Paused || ptr.Deref(spec.SoakSeconds, 0) != 7 {
		t.Errorf("the new state has spec %+v", spec)
	}
	l.after(time.Hour)
	if len(l.created) > 0 {
		t.Errorf("created %q although the resource is paused", l.created)
	}
}

func TestFailedMigration(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.after(time.Minute)
	fail := func(reason string) { l.ends(l.migration(), migrationv1alpha1.MigrationFailed, reason) }
	fail(migrationv1alpha1.MigrationReasonObjectsDenied)
	l.after(4 * time.Minute)
	l.reasons(migrationv1alpha1.StateReasonServersAgree, migrationv1alpha1.StateReasonMigrationFailed,
		migrationv1alpha1.StateReasonMigrationFailed)
	if len(l.created) != 1 {
		t.Fatalf("created %q before the backoff was over", l.created)
	}
	l.in.Migrations = nil // cleaned up
	l.after(6 * time.Minute)
	fail(migrationv1alpha1.MigrationReasonObjectsDenied)
	l.after(9 * time.Minute)
	if len(l.created) != 2 || l.in.State.Status.Backoff.Failures != 2 {
		t.Fatalf("created %q, backoff %+v", l.created, l.in.State.Status.Backoff)
	}
	l.in.State.Annotations = map[string]string{migrationv1alpha1.RetryAnnotation: strings.Repeat("é", 300)}
	l.decide()
	fail(migrationv1alpha1.MigrationReasonVerbsNotSupported)
	l.after(time.Second) // soon enough that no heartbeat is due
	l.after(48 * time.Hour)
	if len(l.created) != 3 || l.in.State.Status.Backoff.NextAttemptTime != nil {
		t.Fatalf("created %q, backoff %+v", l.created, l.in.State.Status.Backoff)
	}
	l.in.State.Spec.RetryToken = "again"
	l.decide()
	l.succeeds()
	l.after(time.Second)
	l.expect(1, v1, v1)
	if l.in.State.Status.Backoff != nil {
		t.Error("a success ends the backoff")
	}
	if len(sets.New(l.created...)) != len(l.created) {
		t.Errorf("created %q: an attempt has the name of one that failed", l.created)
	}
}

func TestMigrationThatWaitsForKubeControllerManager(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.after(time.Minute)
	m := l.migration()
	m.Status.Conditions = []migrationv1alpha1.MigrationCondition{{
		Type: migrationv1alpha1.MigrationWaiting, Status: corev1.ConditionTrue,
		Reason: migrationv1alpha1.MigrationReasonAwaitingInTree, Message: `The migration "other" rewrites the same objects.`,
	}}
	l.decide()
	l.reasons(migrationv1alpha1.StateReasonServersAgree, migrationv1alpha1.StateReasonMigrationQueued,
		migrationv1alpha1.StateReasonMigrationQueued)
	migrated := meta.FindStatusCondition(l.in.State.Status.Conditions, migrationv1alpha1.StorageStateMigrated)
	if !strings.HasSuffix(migrated.Message, m.Name+` waits. The migration "other" rewrites the same objects.`) {
		t.Errorf("the state says: %s", migrated.Message)
	}
	l.succeeds()
	l.after(time.Second)
	l.expect(1, v1, v1)
}

// TestAttemptThatWasNotRecorded has the manager end between the creation of a migration and the record of it.
func TestAttemptThatWasNotRecorded(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.in.Now = l.in.Now.Add(time.Minute)
	l.in.Observation = l.ledger.Observe(l.in.Now, widgets)
	first, second := Decide(l.in), Decide(l.in)
	if first.StateAction != KeepState || first.Create == nil || second.Create == nil ||
		first.Create.Name != second.Create.Name {
		t.Fatalf("a migration that is due is created first, under one name: %+v, then %+v", first, second)
	}
	l.act(first)
	l.ends(l.migration(), migrationv1alpha1.MigrationFailed, migrationv1alpha1.MigrationReasonObjectsDenied)
	l.decide()
	status := l.in.State.Status
	if status.Migration == nil || status.Migration.Name != first.Create.Name || status.Backoff == nil ||
		status.Backoff.Failures != 1 {
		t.Errorf("a migration that failed before it was recorded must be counted: %+v, %+v", status.Migration, status.Backoff)
	}
}

// TestMigrationThatCannotBeCreated makes sure that the state does not wait for it for long.
func TestMigrationThatCannotBeCreated(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.in.Now = l.in.Now.Add(time.Minute + periods.Patience)
	l.in.Observation = l.ledger.Observe(l.in.Now, widgets)
	d := Decide(l.in)
	if d.StateAction != UpdateState || d.Create != nil {
		t.Fatalf("the state is silent: %+v", d)
	}
	l.act(d)
	l.reasons(migrationv1alpha1.StateReasonServersAgree, migrationv1alpha1.StateReasonMigrationQueued,
		migrationv1alpha1.StateReasonMigrationQueued)
	if d := Decide(l.in); d.StateAction != KeepState || d.Create == nil {
		t.Errorf("creating is not tried again: %+v", d)
	}
}

func TestMigrationByHandIsWaitedFor(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.in.Migrations = []*migrationv1alpha1.StorageVersionMigration{{
		ObjectMeta: metav1.ObjectMeta{Name: "by-hand", UID: "by-hand"},
		Spec: migrationv1alpha1.StorageVersionMigrationSpec{
			Resource: migrationv1alpha1.GroupVersionResource{Group: "example.com", Resource: "widgets"},
		},
	}}
	l.after(time.Minute)
	if len(l.created) != 0 {
		t.Fatalf("created %q", l.created)
	}
	epoch := int64(1)
	m := l.in.Migrations[0]
	l.succeeds()
	m.Status.Target = &migrationv1alpha1.MigrationTarget{
		StorageVersionHash: v1, Epoch: &epoch, StorageStateUID: l.in.State.UID,
	}
	l.after(time.Second)
	l.expect(1, v1, v1)
}

// TestMigrationByHandIsNotDeleted changes the servers under a migration that a person made, to an encoding and for no
// epoch, and that has begun. Then the definition goes. The migrator ends it, so that the person hears why.
func TestMigrationByHandIsNotDeleted(t *testing.T) {
	l := newLife(t)
	l.decide()
	byHand := &migrationv1alpha1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: "by-hand", UID: "by-hand"},
		Spec: migrationv1alpha1.StorageVersionMigrationSpec{
			Resource: migrationv1alpha1.GroupVersionResource{Group: "example.com", Resource: "widgets"},
			Target:   &migrationv1alpha1.MigrationTarget{StorageVersionHash: v1},
		},
	}
	byHand.Status.StartTime = new(metav1.NewTime(l.in.Now))
	byHand.Status.Target = &migrationv1alpha1.MigrationTarget{
		StorageVersionHash: v1, Epoch: new(l.in.State.Status.Epoch), StorageStateUID: l.in.State.UID,
	}
	l.in.Migrations = []*migrationv1alpha1.StorageVersionMigration{byHand}
	l.after(time.Minute)
	l.flip("v2")
	l.after(time.Second)
	l.after(time.Minute)
	if len(l.created) != 1 {
		t.Errorf("created %q: nothing that a person made may take the place of the migration to the new version", l.created)
	}
	l.ledger.SetDefinition(l.in.Now, widgets, nil)
	l.decide()
	if !slices.Equal(l.in.Migrations, []*migrationv1alpha1.StorageVersionMigration{byHand}) {
		t.Errorf("migrations at the end: %v", l.in.Migrations)
	}
}
