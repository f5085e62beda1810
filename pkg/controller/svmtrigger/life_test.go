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
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

var (
	start   = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}
	v1      = storageversion.Hash(schema.GroupVersion{Group: "example.com", Version: "v1"}, "Widget")
	v2      = storageversion.Hash(schema.GroupVersion{Group: "example.com", Version: "v2"}, "Widget")
	periods = Periods{Settle: time.Minute, Patience: 15 * time.Second, UnreadPatience: time.Minute,
		Poll: 10 * time.Minute, Heartbeat: time.Hour, MinBackoff: 5 * time.Minute, MaxBackoff: time.Hour}
)

// life is that of one resource, its state and its migrations, with an API server that stores what is decided.
type life struct {
	t          *testing.T
	resource   schema.GroupResource
	ledger     *storageversion.Ledger
	definition storageversion.Definition
	in         Input
	memory     Memory
	uids       int
	events     []string
	created    []string
	writes     int
}

func newLife(t *testing.T) *life {
	l := &life{t: t, resource: widgets, ledger: storageversion.NewLedger(time.Minute), memory: Memory{}}
	l.in = Input{AutoMigrate: true, Now: start, Periods: periods}
	l.definition = storageversion.Definition{UID: "crd", Generation: 1, Group: "example.com",
		Kind:           "Widget",
		StorageVersion: "v1", ServedVersions: []string{"v2", "v1"}, StoredVersions: []string{"v1"}, Established: true}
	l.define()
	return l
}

// define shows the ledger the definition as it is now.
func (l *life) define() {
	definition := l.definition
	l.ledger.SetDefinition(l.in.Now, widgets, &definition)
}

// flip makes another version the storage version.
func (l *life) flip(version string) {
	l.definition.Generation++
	l.definition.StorageVersion = version
	if !slices.Contains(l.definition.StoredVersions, version) {
		l.definition.StoredVersions = append(slices.Clone(l.definition.StoredVersions), version)
	}
	l.define()
}

// unwatched loses what the ledger knows, as a restart does.
func (l *life) unwatched() {
	l.ledger = storageversion.NewLedger(time.Minute)
}

func (l *life) uid() types.UID {
	l.uids++
	return types.UID(fmt.Sprintf("uid-%d", l.uids))
}

// decide decides and acts until there is nothing left to do now, and returns the last decision.
func (l *life) decide() Decision {
	l.t.Helper()
	for range 10 {
		l.in.Observation = l.ledger.Observe(l.in.Now, l.resource)
		l.memory.Update(&l.in)
		d := Decide(l.in)
		if d.StateAction == KeepState && len(d.Delete) == 0 && d.Create == nil {
			return d
		}
		l.act(d)
	}
	l.t.Fatal("decisions do not come to an end")
	return Decision{}
}

func (l *life) act(d Decision) {
	l.t.Helper()
	if d.StateAction != KeepState && d.Create != nil {
		l.t.Fatal("a migration is created in the decision that writes the state")
	}
	switch d.StateAction {
	case CreateState:
		l.in.State = newState(l.in)
		l.in.State.UID = l.uid()
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
			func(other *migrationv1alpha1.StorageVersionMigration) bool { return other.UID == m.UID })
	}
	if d.Create != nil {
		m := d.Create.DeepCopy()
		m.UID = l.uid()
		l.in.Migrations = append(l.in.Migrations, m)
		l.created = append(l.created, m.Name)
	}
}

// after has time go by, and the observer ask etcd.
func (l *life) after(d time.Duration) Decision {
	l.t.Helper()
	l.in.Now = l.in.Now.Add(d)
	l.ledger.Confirm(l.in.Now)
	return l.decide()
}

// migration returns the only unfinished one.
func (l *life) migration() *migrationv1alpha1.StorageVersionMigration {
	l.t.Helper()
	var unfinished []*migrationv1alpha1.StorageVersionMigration
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
func (l *life) begins(m *migrationv1alpha1.StorageVersionMigration) {
	now := metav1.NewTime(l.in.Now.Truncate(time.Second))
	m.Status.StartTime, m.Status.Target = &now, m.Spec.Target
}

// ends ends a migration as a migrator does.
func (l *life) ends(
	m *migrationv1alpha1.StorageVersionMigration, condition migrationv1alpha1.MigrationConditionType, reason string,
) {
	l.begins(m)
	m.Status.CompletionTime = m.Status.StartTime
	m.Status.Conditions = []migrationv1alpha1.MigrationCondition{
		{Type: condition, Status: corev1.ConditionTrue, Reason: reason},
	}
}

func (l *life) succeeds() {
	l.t.Helper()
	l.ends(l.migration(), migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.MigrationReasonAllObjectsMigrated)
}

// migrated brings the resource to the end of its first migration.
func (l *life) migrated() {
	l.t.Helper()
	l.decide()
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
	for _, conditionType := range []string{migrationv1alpha1.StorageStateAgreed, migrationv1alpha1.StorageStateMigrated,
		migrationv1alpha1.StorageStateSafeToRemoveOldVersions} {
		got = append(got, meta.FindStatusCondition(l.in.State.Status.Conditions, conditionType).Reason)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		l.t.Errorf("reasons of conditions (-want +got):\n%s", diff)
	}
}
