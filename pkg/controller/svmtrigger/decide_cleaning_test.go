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
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// unserve stops to serve v2 of a resource that is migrated.
func (l *life) unserve() {
	l.serve("v1")
	l.after(time.Minute)
}

// managedFields checks the condition about managedFields, and that the resource stays migrated.
func (l *life) managedFields(status metav1.ConditionStatus, reason string) {
	l.t.Helper()
	l.expect(1, v1, v1)
	c := meta.FindStatusCondition(l.in.State.Status.Conditions, migrationv1alpha1.StorageStateManagedFieldsServed)
	if c == nil || c.Status != status || c.Reason != reason {
		l.t.Fatalf("the condition about managedFields is %+v, want %s because of %s", c, status, reason)
	}
}

// cleans ends the migration as a migrator does that has the definition as it is now.
func (l *life) cleans() {
	m := l.migration()
	m.Status.Evidence = l.in.State.Status.Evidence
	l.succeeds()
	l.after(time.Second)
}

func TestVersionThatIsNotServedAnyMore(t *testing.T) {
	l := newLife(t)
	l.in.CleanManagedFields = true
	l.decide()
	l.after(time.Minute)
	l.migration().Status.ManagedFieldsVersions = []migrationv1alpha1.ManagedFieldsVersion{{Version: "v2", Objects: 37}}
	l.succeeds()
	l.after(time.Second)
	l.managedFields(metav1.ConditionTrue, migrationv1alpha1.StateReasonOnlyServedVersions)
	if got := l.in.State.Status.ManagedFieldsVersions; len(got) != 2 || got[1].Objects != 37 {
		t.Errorf("the state counts %+v", got)
	}
	l.unserve()
	l.managedFields(metav1.ConditionFalse, migrationv1alpha1.StateReasonMigrationQueued)
	l.ends(l.migration(), migrationv1alpha1.MigrationFailed, migrationv1alpha1.MigrationReasonObjectsDenied)
	l.after(time.Second)
	l.managedFields(metav1.ConditionFalse, migrationv1alpha1.StateReasonMigrationFailed)
	c := meta.FindStatusCondition(l.in.State.Status.Conditions, migrationv1alpha1.StorageStateManagedFieldsServed)
	if !strings.Contains(c.Message, "failed, and its status says why") {
		t.Errorf("the condition is %+v", c)
	}
	l.after(periods.MinBackoff)
	l.cleans()
	l.managedFields(metav1.ConditionTrue, migrationv1alpha1.StateReasonOnlyServedVersions)
	l.after(24 * time.Hour)
	if len(l.created) != 3 || l.in.State.Status.Backoff != nil {
		t.Errorf("created %q, backoff %+v", l.created, l.in.State.Status.Backoff)
	}
}

// TestVersionThatComesBack serves a version again before its entries were cleaned.
func TestVersionThatComesBack(t *testing.T) {
	l := newLife(t)
	l.in.CleanManagedFields = true
	l.migrated()
	l.in.State.Spec.Paused = true
	l.unserve()
	l.managedFields(metav1.ConditionFalse, migrationv1alpha1.StateReasonPaused)
	l.serve("v2", "v1")
	l.managedFields(metav1.ConditionTrue, migrationv1alpha1.StateReasonOnlyServedVersions)
	if len(l.created) != 0 {
		t.Errorf("created %q", l.created)
	}
}

// TestVersionThatGoesTwice wants attempts from the first time not to count the second time.
func TestVersionThatGoesTwice(t *testing.T) {
	l := newLife(t)
	l.in.CleanManagedFields = true
	l.migrated()
	for _, token := range []string{"once", "twice"} {
		l.unserve()
		l.managedFields(metav1.ConditionFalse, migrationv1alpha1.StateReasonMigrationQueued)
		l.ends(l.migration(), migrationv1alpha1.MigrationFailed, migrationv1alpha1.MigrationReasonInvalidResource)
		l.after(24 * time.Hour)
		l.managedFields(metav1.ConditionFalse, migrationv1alpha1.StateReasonMigrationFailed)
		l.in.State.Spec.RetryToken = token
		l.decide()
		l.cleans()
		l.managedFields(metav1.ConditionTrue, migrationv1alpha1.StateReasonOnlyServedVersions)
		l.serve("v2", "v1")
		l.after(time.Hour)
	}
	if len(sets.New(l.created...)) != 4 {
		t.Errorf("created %q, want four", l.created)
	}
}

// TestProofThatDoesNotClean has a version go while a migration runs, which is the proof all the same. Cleaning begins
// at once, although the migration has left entries.
func TestProofThatDoesNotClean(t *testing.T) {
	l := newLife(t)
	l.in.CleanManagedFields = true
	l.decide()
	l.after(time.Minute)
	m := l.migration()
	m.Status.ManagedFieldsVersions = []migrationv1alpha1.ManagedFieldsVersion{{Version: "v2", Objects: 37}}
	m.Status.Evidence = l.in.State.Status.Evidence
	l.begins(m)
	l.unserve()
	l.succeeds()
	l.after(time.Second)
	l.after(time.Second)
	l.managedFields(metav1.ConditionFalse, migrationv1alpha1.StateReasonMigrationQueued)
	if len(l.created) != 2 || l.in.State.Status.Backoff != nil {
		t.Errorf("created %q, backoff %+v", l.created, l.in.State.Status.Backoff)
	}
}

// TestVersionThatIsNotServedAnyMoreNorStored changes the storage version together with the served versions.
func TestVersionThatIsNotServedAnyMoreNorStored(t *testing.T) {
	l := newLife(t)
	l.in.CleanManagedFields = true
	l.migrated()
	l.in.State.Spec.Paused, l.in.State.Generation = true, 7
	l.definition.ServedVersions = []string{"v2"}
	l.flip("v2")
	l.decide()
	l.after(time.Hour)
	l.expect(2, v2, v1, v2)
	c := meta.FindStatusCondition(l.in.State.Status.Conditions, migrationv1alpha1.StorageStateManagedFieldsServed)
	if c.Status != metav1.ConditionFalse || c.Reason != migrationv1alpha1.StateReasonPaused || c.ObservedGeneration != 7 ||
		!strings.HasPrefix(c.Message, "Objects may name v1 in metadata.managedFields") {
		t.Errorf("the condition about managedFields is %+v", c)
	}
}

// TestSafeButNamedInManagedFields wants the condition to warn of what else dropping a version does.
func TestSafeButNamedInManagedFields(t *testing.T) {
	l := newLife(t)
	l.decide()
	l.after(time.Minute)
	l.migration().Status.ManagedFieldsVersions = []migrationv1alpha1.ManagedFieldsVersion{
		{Version: "v1", Objects: 40}, {Version: "v1beta1", Objects: 0}, {Version: "v2", Objects: 37},
	}
	l.succeeds()
	l.after(time.Second)
	safe := migrationv1alpha1.StorageStateSafeToRemoveOldVersions
	c := meta.FindStatusCondition(l.in.State.Status.Conditions, safe)
	if c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, "of some objects named v2. ") {
		t.Errorf("the condition is %+v", c)
	}
}

func TestManagedFieldsStayWithoutTheGate(t *testing.T) {
	l := newLife(t)
	l.migrated()
	l.unserve()
	l.after(time.Hour)
	if len(l.created) != 0 {
		t.Errorf("created %q", l.created)
	}
	conditions := l.in.State.Status.Conditions
	if c := meta.FindStatusCondition(conditions, migrationv1alpha1.StorageStateManagedFieldsServed); c != nil {
		t.Errorf("without the gate the state has the condition %+v", c)
	}
}

// serve makes the served versions those.
func (l *life) serve(versions ...string) {
	l.definition.ServedVersions = versions
	l.definition.Generation++
	l.define()
	l.decide()
}

// TestVersionThatIsServedForAWhile is about objects that clients apply at a version which comes and goes. No migration
// runs meanwhile.
func TestVersionThatIsServedForAWhile(t *testing.T) {
	l := newLife(t)
	l.in.CleanManagedFields = true
	l.migrated()
	l.serve("v2", "v1", "v3")
	l.after(24 * time.Hour)
	l.serve("v2", "v1")
	l.after(time.Minute)
	l.managedFields(metav1.ConditionFalse, migrationv1alpha1.StateReasonMigrationQueued)
	l.cleans()
	l.managedFields(metav1.ConditionTrue, migrationv1alpha1.StateReasonOnlyServedVersions)
}

// inVain has cleaning become due, and end each migration for an hour. It wants the trigger to wait between them.
func inVain(t *testing.T, end func(*life, *migrationv1alpha1.StorageVersionMigration)) *life {
	t.Helper()
	l := newLife(t)
	l.in.CleanManagedFields = true
	l.migrated()
	l.unserve()
	for range 60 {
		if i := len(l.in.Migrations) - 1; !l.in.Migrations[i].Finished() {
			m := l.migration()
			m.Status.Evidence = l.in.State.Status.Evidence
			end(l, m)
		}
		l.after(time.Minute)
	}
	if n := len(l.created); n < 3 || n > 7 {
		t.Errorf("%d migrations were created in an hour, with waits of 5 minutes, doubling", n)
	}
	return l
}

// TestDefinitionThatChangesAllTheTime changes it while each migration runs.
func TestDefinitionThatChangesAllTheTime(t *testing.T) {
	l := inVain(t, func(l *life, _ *migrationv1alpha1.StorageVersionMigration) {
		l.serve("v1")
		l.after(time.Second)
		l.succeeds()
	})
	c := meta.FindStatusCondition(l.in.State.Status.Conditions, migrationv1alpha1.StorageStateManagedFieldsServed)
	if !strings.Contains(c.Message, "the CustomResourceDefinition changed while it ran") {
		t.Errorf("the condition is %+v", c)
	}
}

// TestVersionThatIsNotServedAnyMoreWhenAMigrationEnds is about objects that clients apply at that version after the
// migration came to them.
func TestVersionThatIsNotServedAnyMoreWhenAMigrationEnds(t *testing.T) {
	l := newLife(t)
	l.in.CleanManagedFields = true
	l.migrated()
	l.serve("v2", "v1", "v3")
	l.flip("v2")
	l.decide()
	l.after(time.Minute)
	m := l.migration()
	m.Status.Evidence = l.in.State.Status.Evidence
	l.serve("v2", "v1")
	l.succeeds()
	l.after(time.Second)
	l.expect(2, v2, v2)
	c := meta.FindStatusCondition(l.in.State.Status.Conditions, migrationv1alpha1.StorageStateManagedFieldsServed)
	if c.Status != metav1.ConditionFalse || !strings.HasPrefix(c.Message, "Objects may name v3 in ") {
		t.Errorf("the condition about managedFields is %+v", c)
	}
}

// TestMigrationThatDoesNotClean ended while the gate was off, at the generation that does not serve v2. The gate is on
// after a restart, so the next migration need not wait.
func TestMigrationThatDoesNotClean(t *testing.T) {
	l := newLife(t)
	l.serve("v1")
	l.after(time.Minute)
	m := l.migration()
	m.Status.Evidence = l.in.State.Status.Evidence
	m.Status.ManagedFieldsVersions = []migrationv1alpha1.ManagedFieldsVersion{{Version: "v2", Objects: 37}}
	l.succeeds()
	l.after(time.Second)
	l.in.CleanManagedFields, l.memory = true, Memory{}
	l.after(time.Minute)
	l.managedFields(metav1.ConditionFalse, migrationv1alpha1.StateReasonMigrationQueued)
	l.cleans()
	l.managedFields(metav1.ConditionTrue, migrationv1alpha1.StateReasonOnlyServedVersions)
}

// TestMigratorThatDoesNotClean runs in another process, in which the gate is off.
func TestMigratorThatDoesNotClean(t *testing.T) {
	inVain(t, func(l *life, m *migrationv1alpha1.StorageVersionMigration) {
		m.Status.ManagedFieldsVersions = []migrationv1alpha1.ManagedFieldsVersion{{Version: "v2", Objects: 37}}
		l.succeeds()
	})
}

// TestCleaningThatFails has migrators whose clocks differ from that of the trigger.
func TestCleaningThatFails(t *testing.T) {
	for _, skew := range []time.Duration{-10 * time.Minute, 0, 10 * time.Minute} {
		inVain(t, func(l *life, m *migrationv1alpha1.StorageVersionMigration) {
			l.ends(m, migrationv1alpha1.MigrationFailed, migrationv1alpha1.MigrationReasonObjectsDenied)
			m.Status.CompletionTime = new(metav1.NewTime(l.in.Now.Add(skew)))
		})
	}
}

// TestOldFailureIsNotCountedAgain has a migration fail, one that a person created succeed, and cleaning become due a
// day later.
func TestOldFailureIsNotCountedAgain(t *testing.T) {
	for name, due := range map[string]func(*life){
		"v2 is not served":       (*life).unserve,
		"the gate is on at last": func(l *life) { l.in.CleanManagedFields, l.memory = true, Memory{} },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t)
			if l.in.CleanManagedFields = name == "v2 is not served"; !l.in.CleanManagedFields {
				l.serve("v1")
			}
			l.decide()
			l.after(time.Minute)
			first := l.migration()
			l.ends(first, migrationv1alpha1.MigrationFailed, migrationv1alpha1.MigrationReasonInvalidResource)
			l.after(time.Second)
			byPerson := first.DeepCopy()
			byPerson.Name, byPerson.UID, byPerson.Spec.Target = "by-a-person", l.uid(), nil
			byPerson.Status = migrationv1alpha1.StorageVersionMigrationStatus{
				Evidence:              l.in.State.Status.Evidence,
				ManagedFieldsVersions: []migrationv1alpha1.ManagedFieldsVersion{{Version: "v2", Objects: 37}},
			}
			l.in.Migrations = append(l.in.Migrations, byPerson)
			l.ends(byPerson, migrationv1alpha1.MigrationSucceeded, "")
			byPerson.Status.Target = first.Spec.Target
			l.after(time.Second)
			l.expect(1, v1, v1)
			l.after(24 * time.Hour)
			due(l)
			l.after(time.Minute)
			l.managedFields(metav1.ConditionFalse, migrationv1alpha1.StateReasonMigrationQueued)
		})
	}
}
