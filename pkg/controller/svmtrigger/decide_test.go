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
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

func TestLifeOfAState(t *testing.T) {
	l := newLife(t)
	d := l.decide()
	l.expect(1, v1, storageversion.Unknown, v1)
	l.reasons(migrationv1alpha1.StateReasonSettling, migrationv1alpha1.StateReasonAwaitingAgreement,
		migrationv1alpha1.StateReasonAwaitingAgreement)
	if want := start.Add(time.Minute); !d.DecideAt.Equal(want) {
		t.Errorf("look again at %v, want %v, when the evidence has settled", d.DecideAt, want)
	}
	l.after(59 * time.Second)
	if len(l.created) > 0 {
		t.Error("a migration was created before the evidence settled")
	}
	l.after(time.Second)
	l.reasons(migrationv1alpha1.StateReasonServersAgree, migrationv1alpha1.StateReasonMigrationQueued,
		migrationv1alpha1.StateReasonMigrationQueued)
	m := l.migration()
	if writes := l.writes; writes != 2 {
		t.Errorf("%d writes before the migration begins, want 2: evidence, then agreement and migration", writes)
	}
	l.begins(m)
	l.decide()
	l.reasons(migrationv1alpha1.StateReasonServersAgree, migrationv1alpha1.StateReasonMigrationRunning,
		migrationv1alpha1.StateReasonMigrationRunning)
	epoch := int64(1)
	want := migrationv1alpha1.StorageVersionMigrationSpec{
		Resource: migrationv1alpha1.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"},
		Target: &migrationv1alpha1.MigrationTarget{StorageVersionHash: v1, EncodingVersion: "example.com/v1", Epoch: &epoch,
			StorageStateUID: l.in.State.UID},
	}
	if diff := cmp.Diff(want, m.Spec); diff != "" {
		t.Errorf("migration (-want +got):\n%s", diff)
	}
	l.succeeds()
	d = l.after(time.Minute)
	l.expect(1, v1, v1)
	l.reasons(migrationv1alpha1.StateReasonServersAgree, migrationv1alpha1.StateReasonOnlyCurrentEncoding,
		migrationv1alpha1.StateReasonOnlyCurrentEncoding)
	if d.DecideAt.Before(l.in.Now.Add(45*time.Minute)) || d.DecideAt.After(l.in.Now.Add(time.Hour)) {
		t.Errorf("nothing is to be done before the heartbeat, but it looks again at %v", d.DecideAt)
	}

	l.flip("v2")
	l.decide()
	l.expect(2, v2, v1, v2)
	l.after(time.Minute)
	l.succeeds()
	l.after(time.Second)
	l.expect(2, v2, v2)
	l.reasons(migrationv1alpha1.StateReasonServersAgree, migrationv1alpha1.StateReasonOnlyCurrentEncoding,
		migrationv1alpha1.StateReasonStoredVersionsNotPruned)
	if diff := cmp.Diff([]string{eventMigrationCreated, eventMigrated, eventEncodingChanged, eventServersAgree,
		eventMigrationCreated, eventMigrated}, l.events); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
	if len(l.created) != 2 || l.created[0] == l.created[1] {
		t.Errorf("created %q, want two migrations of two names", l.created)
	}
}

func TestNobodyServesIt(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.definition.Established = false
	l.define()
	l.decide()
	for _, name := range []string{migrationv1alpha1.StorageStateAgreed, migrationv1alpha1.StorageStateMigrated} {
		c := meta.FindStatusCondition(l.in.State.Status.Conditions, name)
		if c.Reason != migrationv1alpha1.StateReasonNotServed ||
			!strings.HasSuffix(c.Message, "delete the CustomResourceDefinition, which deletes the objects.") {
			t.Errorf("the condition is %+v", c)
		}
	}
}

// TestNoServedVersion defines a resource without a served version. It may have objects, which are not safe.
func TestNoServedVersion(t *testing.T) {
	l := newLife(t)
	l.serve()
	if l.in.State == nil {
		t.Fatal("there is no StorageState")
	}
	if safe := l.in.State.Status.Conditions; !meta.IsStatusConditionFalse(
		safe, migrationv1alpha1.StorageStateSafeToRemoveOldVersions) {
		t.Errorf("the conditions are %+v", safe)
	}
}

func TestFlipDuringMigration(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.after(time.Minute)
	first := l.migration()
	l.flip("v2")
	l.flip("v1")
	l.after(time.Second)
	l.expect(2, v1, storageversion.Unknown, v1, v2)
	if len(l.in.Migrations) != 0 {
		t.Error("the migration of the epoch before has to go")
	}
	l.ends(first, migrationv1alpha1.MigrationSucceeded, "")
	l.in.Migrations = append(l.in.Migrations, first)
	l.after(2 * time.Minute)
	l.expect(2, v1, storageversion.Unknown, v1, v2)
	l.succeeds()
	l.after(time.Second)
	l.expect(2, v1, v1)
}

func TestWhatProvesNothing(t *testing.T) {
	for name, spoil := range map[string]func(l *life, m *migrationv1alpha1.StorageVersionMigration){
		"a success without a target": func(_ *life, m *migrationv1alpha1.StorageVersionMigration) { m.Status.Target = nil },
		"another encoding": func(_ *life, m *migrationv1alpha1.StorageVersionMigration) {
			m.Status.Target = m.Spec.Target.DeepCopy()
			m.Status.Target.StorageVersionHash = v1
		},
		"another epoch": func(_ *life, m *migrationv1alpha1.StorageVersionMigration) {
			m.Status.Target = m.Spec.Target.DeepCopy()
			*m.Status.Target.Epoch--
		},
		"another state": func(_ *life, m *migrationv1alpha1.StorageVersionMigration) {
			m.Status.Target = m.Spec.Target.DeepCopy()
			m.Status.Target.StorageStateUID = "other"
		},
		"no start": func(_ *life, m *migrationv1alpha1.StorageVersionMigration) { m.Status.StartTime = nil },
		"a failure": func(_ *life, m *migrationv1alpha1.StorageVersionMigration) {
			m.Status.Conditions[0].Type = migrationv1alpha1.MigrationFailed
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t)
			l.migrated()
			l.flip("v2")
			l.decide()
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
			l.define()
			l.after(24 * time.Hour)
			l.expect(tc.epoch, tc.current, tc.persisted...)
		})
	}
}

func TestStoredVersionsThatOthersShortenProveNothing(t *testing.T) {
	l := newLife(t)
	l.migrated()
	l.flip("v2")
	l.decide()
	l.definition.StoredVersions = []string{"v2"}
	l.define()
	l.after(periods.Patience + time.Second)
	l.expect(2, v2, v1, v2)
	if !slices.Contains(l.events, eventStoredVersionsShortened) {
		t.Errorf("events: got %q, want %q among them", l.events, eventStoredVersionsShortened)
	}
}

// TestStoredVersionsThatTheMigratorPrunes has a migrator that prunes. The trigger learns of that before it learns how
// far the migration is.
func TestStoredVersionsThatTheMigratorPrunes(t *testing.T) {
	l := newLife(t)
	l.migrated()
	l.flip("v2")
	l.decide()
	l.after(time.Minute)
	l.begins(l.migration())
	l.definition.StoredVersions, l.definition.StoredVersionsManager = []string{"v2"}, controller.MigratorFieldManager
	l.define()
	l.after(time.Second)
	l.expect(2, v2, v1, v2)
	if slices.Contains(l.events, eventStoredVersionsShortened) {
		t.Errorf("the migrator is taken for somebody else: %q", l.events)
	}
}

func TestDefinitionDeleted(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.after(time.Minute)
	l.ledger.SetDefinition(l.in.Now, widgets, nil)
	held := l.migration().DeepCopy()
	l.decide()
	if l.in.State != nil || len(l.in.Migrations) != 0 {
		t.Errorf("state %v and migrations %v have to go", l.in.State, l.in.Migrations)
	}
	l.memory.ForgetDeleted(widgets) // as when the state is deleted
	l.decide()
	if _, remembered := l.memory[widgets]; remembered {
		t.Error("what is gone is remembered")
	}
	held.DeletionTimestamp = &metav1.Time{Time: l.in.Now} // A finalizer keeps it.
	l.in.Migrations = []*migrationv1alpha1.StorageVersionMigration{held}
	if d := Decide(l.in); len(d.Delete) > 0 {
		t.Errorf("%s is deleted once more", held.Name)
	}
}

// TestMoreEncodingsThanTheAPIAllows has one more encoding than a state may list, while the servers agree or not.
func TestMoreEncodingsThanTheAPIAllows(t *testing.T) {
	for replicasDiffer, want := range map[string][]string{
		"":              {storageversion.Unknown, v1},
		"two revisions": {storageversion.Unknown},
	} {
		l := newLife(t)
		l.unwatched()
		l.ledger.SetAggregated(l.in.Now, schema.GroupVersion{Group: widgets.Group, Version: "v1"},
			&storageversion.AggregatedDocument{Address: "widgets/api:443", WhyReplicasDiffer: replicasDiffer,
				Resources: map[schema.GroupResource]storageversion.Resource{
					widgets: {Kind: "Widget", Versions: []string{"v1"}, Hash: v1, Migratable: true},
				}})
		l.in.State = newState(Input{Observation: storageversion.Observation{Resource: widgets}})
		for i := range migrationv1alpha1.MaxPersistedStorageVersionHashes {
			l.in.State.Status.PersistedStorageVersionHashes = append(l.in.State.Status.PersistedStorageVersionHashes,
				strconv.Itoa(i))
		}
		l.in.Now = l.in.Now.Add(periods.Patience)
		l.in.Observation = l.ledger.Observe(l.in.Now, widgets)
		if got := Decide(l.in).Status.PersistedStorageVersionHashes; !slices.Equal(got, want) {
			t.Errorf("replicas differ: %q, persisted %q, want %q", replicasDiffer, got, want)
		}
	}
}

func TestStateOfAnotherController(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.in.State.Status = migrationv1alpha1.StorageStateStatus{CurrentStorageVersionHash: v1,
		PersistedStorageVersionHashes: []string{v1, v1}}
	l.decide()
	l.expect(l.in.Now.Unix()+1, v1, v1, storageversion.Unknown)
}

func TestSuccessWaitsForTheLookToBeConfirmed(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.after(time.Minute)
	l.succeeds()
	o := l.ledger.Observe(l.in.Now, widgets)
	o.CertainFrom = l.in.Now.Add(5 * time.Second)
	l.in.Observation = o
	d := Decide(l.in)
	if d.Status.PersistedStorageVersionHashes != nil && !slices.Contains(d.Status.PersistedStorageVersionHashes,
		storageversion.Unknown) {
		t.Errorf("the look may have met a server that starts: %+v", d.Status)
	}
	if !d.DecideAt.Equal(o.CertainFrom) || d.Create != nil {
		t.Errorf("look again at %v and start nothing; got %+v", o.CertainFrom, d)
	}
	l.act(d)
	// The watch of Leases hangs, so etcd does not show it yet.
	l.in.Now = o.CertainFrom.Add(time.Second)
	if d := Decide(l.in); !d.DecideAt.Equal(l.in.Now.Add(minRetry)) || d.StateAction != KeepState {
		t.Errorf("time alone makes nothing certain; got %+v", d)
	}
	l.after(5 * time.Second)
	l.expect(1, v1, v1)
	if len(l.created) != 1 {
		t.Errorf("created %q", l.created)
	}
}

func TestEpochWithoutAStartBeginsToSettleNow(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.in.State.Status.EpochStartTime = nil // the definition did not know it
	l.after(time.Hour)
	l.expect(1, v1, storageversion.Unknown, v1)
	l.after(time.Minute)
	l.migration()
}

// TestEpochThatBeginsWithinASecond has its settle period end when the time that the state shows does.
func TestEpochThatBeginsWithinASecond(t *testing.T) {
	l := newLife(t)
	l.in.Now = start.Add(300 * time.Millisecond)
	l.decide()
	if l.after(periods.Settle); len(l.created) != 0 {
		t.Errorf("created %q before the settle period was over by the state", l.created)
	}
	if l.after(time.Second); len(l.created) != 1 {
		t.Errorf("created %q", l.created)
	}
}
