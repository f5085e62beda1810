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
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/svm-api/migration/v1alpha1"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

var (
	start   = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}
	v1      = storageversion.Hash(schema.GroupVersion{Group: "example.com", Version: "v1"}, "Widget")
	v2      = storageversion.Hash(schema.GroupVersion{Group: "example.com", Version: "v2"}, "Widget")
	periods = Periods{Settle: time.Minute, Hold: 15 * time.Second, Poll: 10 * time.Minute, Heartbeat: time.Hour,
		MinBackoff: 5 * time.Minute, MaxBackoff: time.Hour}
)

// life is that of one resource, its state and its migrations, with an API server that stores what is decided.
type life struct {
	t          *testing.T
	ledger     *storageversion.Ledger
	definition storageversion.CustomResource
	// sharedBy is the name that stands for all of the storage, if it is another.
	sharedBy schema.GroupResource
	in       Input
	uids     int
	events   []string
	created  []string
	writes   int
}

func newLife(t *testing.T) *life {
	l := &life{t: t, ledger: storageversion.NewLedger(storageversion.Options{Linger: time.Minute})}
	l.in = Input{AutoMigrate: true, Now: start, Periods: periods}
	l.definition = storageversion.CustomResource{UID: "crd", Generation: 1, Group: "example.com", Plural: "widgets",
		Kind:           "Widget",
		StorageVersion: "v1", ServedVersions: []string{"v2", "v1"}, StoredVersions: []string{"v1"}, Established: true}
	l.ledger.SetCustomResource(l.in.Now, widgets, &l.definition)
	return l
}

// flip makes another version the storage version.
func (l *life) flip(version string) {
	l.definition.Generation++
	l.definition.StorageVersion = version
	if !slices.Contains(l.definition.StoredVersions, version) {
		l.definition.StoredVersions = append(slices.Clone(l.definition.StoredVersions), version)
	}
	l.ledger.SetCustomResource(l.in.Now, widgets, &l.definition)
}

// unwatched loses what the ledger knows, as a restart does.
func (l *life) unwatched() {
	l.ledger = storageversion.NewLedger(storageversion.Options{Linger: time.Minute})
}

func (l *life) uid() types.UID {
	l.uids++
	return types.UID(fmt.Sprintf("uid-%d", l.uids))
}

// settle decides and acts until there is nothing left to do now, and returns the last decision.
func (l *life) settle() Decision {
	l.t.Helper()
	for range 10 {
		l.in.Observation = l.ledger.Observe(l.in.Now, widgets)
		if l.in.SharedBy != nil {
			l.in.Observation.SharedBy, l.in.Observation.SharedWith = l.sharedBy, []schema.GroupResource{l.sharedBy}
		}
		d := Decide(l.in)
		if d.State == KeepState && len(d.Delete) == 0 && d.Create == nil {
			return d
		}
		l.act(d)
	}
	l.t.Fatal("decisions do not come to an end")
	return Decision{}
}

func (l *life) act(d Decision) {
	l.t.Helper()
	if d.State != KeepState && d.Create != nil {
		l.t.Fatal("a migration is created in the decision that writes the state")
	}
	switch d.State {
	case CreateState, RecreateState:
		l.in.State = &v1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com", UID: l.uid()}}
	case DeleteState:
		l.in.State = nil
	case UpdateState:
		l.writes++
		l.in.State = l.in.State.DeepCopy()
		l.in.State.Status = d.Status
	}
	for _, e := range d.Events {
		l.events = append(l.events, e.Reason)
	}
	for _, m := range d.Delete {
		l.in.Migrations = slices.DeleteFunc(l.in.Migrations,
			func(other *v1alpha1.StorageVersionMigration) bool { return other.UID == m.UID })
	}
	if d.Create != nil {
		m := d.Create.DeepCopy()
		m.UID = l.uid()
		l.in.Migrations = append(l.in.Migrations, m)
		l.created = append(l.created, m.Name)
	}
}

func (l *life) after(d time.Duration) Decision {
	l.t.Helper()
	l.in.Now = l.in.Now.Add(d)
	return l.settle()
}

// migration returns the only unfinished one.
func (l *life) migration() *v1alpha1.StorageVersionMigration {
	l.t.Helper()
	var unfinished []*v1alpha1.StorageVersionMigration
	for _, m := range l.in.Migrations {
		if !m.Finished() {
			unfinished = append(unfinished, m)
		}
	}
	if len(unfinished) != 1 {
		l.t.Fatalf("got %d unfinished migrations, want 1", len(unfinished))
	}
	return unfinished[0]
}

// begins begins a migration as a migrator does.
func (l *life) begins(m *v1alpha1.StorageVersionMigration) {
	now := metav1.NewTime(l.in.Now.Truncate(time.Second))
	m.Status.StartTime, m.Status.Target = &now, m.Spec.Target
}

// ends ends a migration as a migrator does.
func (l *life) ends(m *v1alpha1.StorageVersionMigration, condition v1alpha1.MigrationConditionType, reason string) {
	l.begins(m)
	m.Status.CompletionTime = m.Status.StartTime
	m.Status.Conditions = []v1alpha1.MigrationCondition{{Type: condition, Status: corev1.ConditionTrue, Reason: reason}}
}

func (l *life) succeeds() {
	l.t.Helper()
	l.ends(l.migration(), v1alpha1.MigrationSucceeded, v1alpha1.MigrationReasonAllObjectsMigrated)
}

// migrated brings the resource to the end of its first migration.
func (l *life) migrated() {
	l.t.Helper()
	l.settle()
	l.after(time.Minute)
	l.succeeds()
	l.after(time.Second)
	l.expect(1, v1, v1)
	l.events, l.created = nil, nil
}

func (l *life) expect(epoch int64, current string, persisted ...string) {
	l.t.Helper()
	status := l.in.State.Status
	if status.Epoch != epoch || status.CurrentStorageVersionHash != current ||
		!slices.Equal(status.PersistedStorageVersionHashes, persisted) {
		l.t.Errorf("epoch %d, current %q, persisted %q; want %d, %q, %q", status.Epoch, status.CurrentStorageVersionHash,
			status.PersistedStorageVersionHashes, epoch, current, persisted)
	}
}

// reasons of the conditions Agreed, Migrated and SafeToRemoveOldVersions.
func (l *life) reasons(want ...string) {
	l.t.Helper()
	var got []string
	for _, conditionType := range []string{v1alpha1.StorageStateAgreed, v1alpha1.StorageStateMigrated,
		v1alpha1.StorageStateSafeToRemoveOldVersions} {
		got = append(got, meta.FindStatusCondition(l.in.State.Status.Conditions, conditionType).Reason)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		l.t.Errorf("reasons of conditions (-want +got):\n%s", diff)
	}
}

func TestLifeOfAState(t *testing.T) {
	l := newLife(t)
	d := l.settle()
	l.expect(1, v1, storageversion.Unknown, v1)
	l.reasons(v1alpha1.StateReasonSettling, v1alpha1.StateReasonAwaitingAgreement, v1alpha1.StateReasonAwaitingAgreement)
	if want := start.Add(time.Minute); !d.LookAgain.Equal(want) {
		t.Errorf("look again at %v, want %v, when the evidence has settled", d.LookAgain, want)
	}
	l.after(59 * time.Second)
	if len(l.created) > 0 {
		t.Error("a migration was created before the evidence settled")
	}
	l.after(time.Second)
	l.reasons(v1alpha1.StateReasonServersAgree, v1alpha1.StateReasonMigrationQueued, v1alpha1.StateReasonMigrationQueued)
	m := l.migration()
	if writes := l.writes; writes != 2 {
		t.Errorf("%d writes before the migration begins, want 2: evidence, then agreement and migration", writes)
	}
	l.begins(m)
	l.settle()
	l.reasons(v1alpha1.StateReasonServersAgree, v1alpha1.StateReasonMigrationRunning, v1alpha1.StateReasonMigrationRunning)
	epoch := int64(1)
	want := v1alpha1.StorageVersionMigrationSpec{
		Resource: v1alpha1.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"},
		Target: &v1alpha1.MigrationTarget{StorageVersionHash: v1, EncodingVersion: "example.com/v1", Epoch: &epoch,
			StorageStateUID: l.in.State.UID},
	}
	if diff := cmp.Diff(want, m.Spec); diff != "" {
		t.Errorf("migration (-want +got):\n%s", diff)
	}
	l.succeeds()
	d = l.after(time.Minute)
	l.expect(1, v1, v1)
	l.reasons(v1alpha1.StateReasonServersAgree, v1alpha1.StateReasonOnlyCurrentEncoding,
		v1alpha1.StateReasonOnlyCurrentEncoding)
	if d.LookAgain.Before(l.in.Now.Add(45*time.Minute)) || d.LookAgain.After(l.in.Now.Add(time.Hour)) {
		t.Errorf("nothing is to be done before the heartbeat, but it looks again at %v", d.LookAgain)
	}

	l.flip("v2")
	l.settle()
	l.expect(2, v2, v1, v2)
	l.after(time.Minute)
	l.succeeds()
	l.after(time.Second)
	l.expect(2, v2, v2)
	l.reasons(v1alpha1.StateReasonServersAgree, v1alpha1.StateReasonOnlyCurrentEncoding,
		v1alpha1.StateReasonStoredVersionsNotPruned)
	if diff := cmp.Diff([]string{eventMigrationDue, eventMigrated, eventEncodingChanged, eventServersAgree,
		eventMigrationDue, eventMigrated}, l.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if len(l.created) != 2 || l.created[0] == l.created[1] {
		t.Errorf("created %q, want two migrations of two names", l.created)
	}
}

func TestFlipDuringMigration(t *testing.T) {
	l := newLife(t)
	l.settle()
	l.after(time.Minute)
	first := l.migration()
	l.flip("v2")
	l.flip("v1")
	l.after(time.Second)
	l.expect(2, v1, storageversion.Unknown, v1, v2)
	if len(l.in.Migrations) != 0 {
		t.Error("the migration of the epoch before has to go")
	}
	l.ends(first, v1alpha1.MigrationSucceeded, "")
	l.in.Migrations = append(l.in.Migrations, first)
	l.after(2 * time.Minute)
	l.expect(2, v1, storageversion.Unknown, v1, v2)
	l.succeeds()
	l.after(time.Second)
	l.expect(2, v1, v1)
}

func TestWhatProvesNothing(t *testing.T) {
	for name, spoil := range map[string]func(l *life, m *v1alpha1.StorageVersionMigration){
		"a success without a target": func(_ *life, m *v1alpha1.StorageVersionMigration) { m.Status.Target = nil },
		"another encoding": func(_ *life, m *v1alpha1.StorageVersionMigration) {
			m.Status.Target = m.Spec.Target.DeepCopy()
			m.Status.Target.StorageVersionHash = v1
		},
		"another epoch": func(_ *life, m *v1alpha1.StorageVersionMigration) {
			m.Status.Target = m.Spec.Target.DeepCopy()
			*m.Status.Target.Epoch--
		},
		"another state": func(_ *life, m *v1alpha1.StorageVersionMigration) {
			m.Status.Target = m.Spec.Target.DeepCopy()
			m.Status.Target.StorageStateUID = "other"
		},
		"another resource": func(_ *life, m *v1alpha1.StorageVersionMigration) { m.Spec.Resource.Resource = "other" },
		"a start before the evidence settled": func(l *life, m *v1alpha1.StorageVersionMigration) {
			early := metav1.NewTime(l.in.State.Status.EpochStartTime.Add(59 * time.Second))
			m.Status.StartTime = &early
		},
		"no start": func(_ *life, m *v1alpha1.StorageVersionMigration) { m.Status.StartTime = nil },
		"a failure": func(_ *life, m *v1alpha1.StorageVersionMigration) {
			m.Status.Conditions[0].Type = v1alpha1.MigrationFailed
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t)
			l.migrated()
			l.flip("v2")
			l.settle()
			l.after(time.Minute)
			m := l.migration()
			l.succeeds()
			spoil(l, m)
			l.after(time.Second)
			l.expect(2, v2, v1, v2)
		})
	}
}

func TestWhatHappenedUnwatched(t *testing.T) {
	for name, tc := range map[string]struct {
		happens   func(l *life)
		epoch     int64
		current   string
		persisted []string
	}{
		"nothing": {happens: func(*life) {}, epoch: 1, current: v1, persisted: []string{v1}},
		"another change of the spec": {happens: func(l *life) { l.flip("v1") }, epoch: 1, current: v1,
			persisted: []string{v1}},
		"a flip": {happens: func(l *life) { l.flip("v2") }, epoch: 2, current: v2,
			persisted: []string{v1, v2}},
		"flips there and back": {happens: func(l *life) { l.flip("v2"); l.flip("v1") }, epoch: 2, current: v1,
			persisted: []string{v1, v2, storageversion.Unknown}},
		"flips whose trace was wiped": {happens: func(l *life) {
			l.flip("v2")
			l.flip("v1")
			l.definition.StoredVersions = []string{"v1"}
		}, epoch: 2, current: v1, persisted: []string{v1, storageversion.Unknown}},
		"a new definition": {happens: func(l *life) { l.definition.UID = "other" }, epoch: 2, current: v1,
			persisted: []string{v1, storageversion.Unknown}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t)
			l.migrated()
			tc.happens(l)
			l.unwatched()
			l.ledger.SetCustomResource(l.in.Now, widgets, &l.definition)
			l.after(24 * time.Hour)
			l.expect(tc.epoch, tc.current, tc.persisted...)
		})
	}
}

func TestStoredVersionsThatOthersShortenProveNothing(t *testing.T) {
	l := newLife(t)
	l.migrated()
	l.flip("v2")
	l.settle()
	l.definition.StoredVersions = []string{"v2"}
	l.ledger.SetCustomResource(l.in.Now, widgets, &l.definition)
	l.after(periods.Hold + time.Second)
	l.expect(2, v2, v1, v2)
	if !slices.Contains(l.events, eventStoredVersionsShortened) {
		t.Errorf("events: got %q, want %q among them", l.events, eventStoredVersionsShortened)
	}
}

func TestDefinitionDeleted(t *testing.T) {
	l := newLife(t)
	l.settle()
	l.after(time.Minute)
	l.ledger.SetCustomResource(l.in.Now, widgets, nil)
	l.settle()
	if l.in.State != nil || len(l.in.Migrations) != 0 {
		t.Errorf("state %v and migrations %v have to go", l.in.State, l.in.Migrations)
	}
}

func TestReins(t *testing.T) {
	for name, tc := range map[string]struct {
		set    func(in *Input)
		reason string
	}{
		"paused": {func(in *Input) {
			in.State.Annotations = map[string]string{v1alpha1.PausedAnnotation: "true"}
		}, v1alpha1.StateReasonPaused},
		"not selected": {func(in *Input) { in.AutoMigrate = false }, v1alpha1.StateReasonNotSelected},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t)
			l.settle()
			tc.set(&l.in)
			l.after(time.Minute)
			if len(l.created) != 0 {
				t.Errorf("created %q", l.created)
			}
			l.reasons(v1alpha1.StateReasonServersAgree, tc.reason, tc.reason)
			l.in.State.Annotations, l.in.AutoMigrate = nil, true
			l.settle()
			l.migration()
		})
	}
}

func TestFailedMigration(t *testing.T) {
	l := newLife(t)
	l.settle()
	l.after(time.Minute)
	fail := func(reason string) { l.ends(l.migration(), v1alpha1.MigrationFailed, reason) }
	fail(v1alpha1.MigrationReasonObjectsDenied)
	l.after(4 * time.Minute)
	l.reasons(v1alpha1.StateReasonServersAgree, v1alpha1.StateReasonMigrationFailed, v1alpha1.StateReasonMigrationFailed)
	if len(l.created) != 1 {
		t.Fatalf("created %q before the backoff was over", l.created)
	}
	l.in.Migrations = nil // cleaned up
	l.after(6 * time.Minute)
	fail(v1alpha1.MigrationReasonObjectsDenied)
	l.after(9 * time.Minute)
	if len(l.created) != 2 || l.in.State.Status.Backoff.Failures != 2 {
		t.Fatalf("created %q, backoff %+v", l.created, l.in.State.Status.Backoff)
	}
	l.in.State.Annotations = map[string]string{v1alpha1.RetryAnnotation: strings.Repeat("é", 300)}
	l.settle()
	fail(v1alpha1.MigrationReasonVerbsNotSupported)
	l.after(48 * time.Hour)
	if len(l.created) != 3 || l.in.State.Status.Backoff.NextAttemptTime != nil {
		t.Fatalf("created %q, backoff %+v", l.created, l.in.State.Status.Backoff)
	}
	l.in.State.Annotations[v1alpha1.RetryAnnotation] = "again"
	l.settle()
	l.succeeds()
	l.after(time.Second)
	l.expect(1, v1, v1)
	if l.in.State.Status.Backoff != nil {
		t.Error("a success ends the backoff")
	}
}

func TestMigrationThatSomebodyDeletedIsMadeAnew(t *testing.T) {
	l := newLife(t)
	l.settle()
	l.after(time.Minute)
	gone := l.migration().Name
	l.in.Migrations = nil
	l.settle()
	if m := l.migration(); m.Name == gone {
		t.Error("another attempt needs another name")
	}
}

// TestAttemptThatWasNotRecorded has the manager end between the creation of a migration and the record of it.
func TestAttemptThatWasNotRecorded(t *testing.T) {
	l := newLife(t)
	l.settle()
	l.in.Now = l.in.Now.Add(time.Minute)
	l.in.Observation = l.ledger.Observe(l.in.Now, widgets)
	first, second := Decide(l.in), Decide(l.in)
	if first.State != KeepState || first.Create == nil || second.Create == nil || first.Create.Name != second.Create.Name {
		t.Fatalf("a migration that is due is created first, under one name: %+v, then %+v", first, second)
	}
	l.act(first)
	l.ends(l.migration(), v1alpha1.MigrationFailed, v1alpha1.MigrationReasonObjectsDenied)
	l.settle()
	status := l.in.State.Status
	if status.Migration == nil || status.Migration.Name != first.Create.Name || status.Backoff == nil ||
		status.Backoff.Failures != 1 {
		t.Errorf("a migration that failed before it was recorded must be counted: %+v, %+v", status.Migration, status.Backoff)
	}
}

// TestMigrationThatCannotBeCreated makes sure that the state does not wait for it for long.
func TestMigrationThatCannotBeCreated(t *testing.T) {
	l := newLife(t)
	l.settle()
	l.in.Now = l.in.Now.Add(time.Minute + periods.Hold)
	l.in.Observation = l.ledger.Observe(l.in.Now, widgets)
	d := Decide(l.in)
	if d.State != UpdateState || d.Create != nil {
		t.Fatalf("the state is silent: %+v", d)
	}
	l.act(d)
	l.reasons(v1alpha1.StateReasonServersAgree, v1alpha1.StateReasonMigrationQueued, v1alpha1.StateReasonMigrationQueued)
	if d := Decide(l.in); d.State != KeepState || d.Create == nil {
		t.Errorf("creating is not tried again: %+v", d)
	}
}

func TestMigrationByHandIsWaitedFor(t *testing.T) {
	l := newLife(t)
	l.settle()
	l.in.Migrations = []*v1alpha1.StorageVersionMigration{{
		ObjectMeta: metav1.ObjectMeta{Name: "by-hand", UID: "by-hand"},
		Spec: v1alpha1.StorageVersionMigrationSpec{Resource: v1alpha1.GroupVersionResource{Group: "example.com",
			Resource: "widgets"}},
	}}
	l.after(time.Minute)
	if len(l.created) != 0 {
		t.Fatalf("created %q", l.created)
	}
	epoch := int64(1)
	m := l.in.Migrations[0]
	l.succeeds()
	m.Status.Target = &v1alpha1.MigrationTarget{StorageVersionHash: v1, Epoch: &epoch, StorageStateUID: l.in.State.UID}
	l.after(time.Second)
	l.expect(1, v1, v1)
}

func TestStateOfAnotherController(t *testing.T) {
	l := newLife(t)
	l.settle()
	l.in.State.Status = v1alpha1.StorageStateStatus{CurrentStorageVersionHash: v1,
		PersistedStorageVersionHashes: []string{v1, v1}}
	l.in.Observation = l.ledger.Observe(l.in.Now, widgets)
	if d := Decide(l.in); d.State != RecreateState {
		t.Errorf("unexpected decision %+v", d)
	}
	l.settle()
	l.expect(1, v1, storageversion.Unknown, v1)
}

func TestServersThatCannotBeSeen(t *testing.T) {
	l := newLife(t)
	l.migrated()
	problem := &storageversion.Problem{Reason: v1alpha1.StateReasonServersUnseen, Message: "b was not asked",
		Since: l.in.Now}
	o := l.ledger.Observe(l.in.Now, widgets)
	o.Problem = problem
	decide := func(o storageversion.Observation) Decision {
		l.in.Observation = o
		return Decide(l.in)
	}
	if d := decide(o); d.State != KeepState || !d.LookAgain.Equal(problem.Since.Add(periods.Hold)) {
		t.Errorf("what passes in seconds is not worth a write: %+v", d)
	}
	l.in.Now = l.in.Now.Add(periods.Hold)
	if d := decide(o); !slices.Equal(d.Status.PersistedStorageVersionHashes, []string{v1}) ||
		meta.IsStatusConditionTrue(d.Status.Conditions, v1alpha1.StorageStateAgreed) {
		t.Errorf("the servers do not agree, but nothing unknown was stored: %+v", d.Status)
	}
	o.Class, o.Unseen = storageversion.BuiltIn, []storageversion.Server{{Identity: "b", Incarnation: "2"}}
	if d := decide(o); !slices.Equal(d.Status.PersistedStorageVersionHashes, []string{v1, storageversion.Unknown}) ||
		d.Status.Epoch != 2 || d.Status.CurrentStorageVersionHash != storageversion.Unknown {
		t.Errorf("a new server that cannot be asked may write anything: %+v", d.Status)
	}
}

func TestSuccessWaitsForTheLookToBeConfirmed(t *testing.T) {
	l := newLife(t)
	l.settle()
	l.after(time.Minute)
	l.succeeds()
	o := l.ledger.Observe(l.in.Now, widgets)
	o.Confirmed = l.in.Now.Add(5 * time.Second)
	l.in.Observation = o
	d := Decide(l.in)
	if d.Status.PersistedStorageVersionHashes != nil && !slices.Contains(d.Status.PersistedStorageVersionHashes,
		storageversion.Unknown) {
		t.Errorf("the look may have met a server that starts: %+v", d.Status)
	}
	if !d.LookAgain.Equal(o.Confirmed) || d.Create != nil {
		t.Errorf("look again at %v and start nothing; got %+v", o.Confirmed, d)
	}
	l.act(d)
	l.after(5 * time.Second)
	l.expect(1, v1, v1)
	if len(l.created) != 1 {
		t.Errorf("created %q", l.created)
	}
}

func TestWhatWasNeverHeardOfIsLookedAtAgain(t *testing.T) {
	l := newLife(t)
	l.migrated()
	l.in.Observation = storageversion.Observation{Resource: widgets, SharedBy: widgets, Time: l.in.Now,
		Problem: &storageversion.Problem{Reason: v1alpha1.StateReasonServersUnseen, Message: "a was not asked",
			Since: start.Add(-time.Hour)}}
	if d := Decide(l.in); !d.LookAgain.Equal(l.in.Now.Add(periods.Hold)) {
		t.Errorf("look again at %v, want %v: no change is told of", d.LookAgain, l.in.Now.Add(periods.Hold))
	}
}

func TestSuccessAtAnAggregatedServerIsConfirmedByALook(t *testing.T) {
	version := schema.GroupVersion{Group: "example.com", Version: "v1"}
	document := &storageversion.AggregatedDocument{Address: "service",
		Resources: map[schema.GroupResource]storageversion.Resource{
			widgets: {Kind: "Widget", Versions: []string{"v1"}, Hash: v1, Migratable: true},
		}}
	l := newLife(t)
	l.unwatched()
	l.ledger.SetAggregated(l.in.Now, version, document)
	l.settle()
	l.after(time.Minute)
	l.succeeds()
	l.after(time.Minute)
	l.expect(1, v1, storageversion.Unknown, v1)
	l.ledger.SetAggregated(l.in.Now, version, document)
	l.settle()
	l.expect(1, v1, v1)
}

func TestEpochWithoutAStartBeginsToSettleNow(t *testing.T) {
	l := newLife(t)
	l.settle()
	l.in.State.Status.EpochStartTime = nil // the definition did not know it
	l.after(time.Hour)
	l.expect(1, v1, storageversion.Unknown, v1)
	l.after(time.Minute)
	l.migration()
}
