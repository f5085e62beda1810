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
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// migratedCondition makes the Migrated condition.
func (e *evaluation) migratedCondition() metav1.Condition {
	if e.next.Migrated() {
		return yes(migrationv1alpha1.StateReasonOnlyCurrentEncoding,
			"Every object is stored in "+e.next.CurrentEncodingVersion+".")
	}
	stored := "Objects may be stored in " + strings.Join(e.next.PersistedEncodingVersions, ", ") + ". "
	if slices.Contains(e.next.PersistedStorageVersionHashes, storageversion.Unknown) {
		stored = "Objects may be stored in encodings that nobody has a record of. "
	}
	return no(e.step.Reason, stored+e.step.Message)
}

// decideNextStep decides what is done about objects that must be rewritten. It plans a migration if one is due.
func (e *evaluation) decideNextStep() {
	if e.nothingDue() {
		return
	}
	e.decideAt(e.soakedFrom())
	if e.step = e.whyNotDue(); e.step.Reason == "" {
		e.planMigration()
		e.step = no(migrationv1alpha1.StateReasonMigrationQueued, "A migration is due and will be created. If that "+
			"fails, the log of svm-controller-manager says why.")
	}
}

// whyNotDue returns the first reason why no migration is due now. It is empty if one is due. The condition that uses
// the reason says first what is wrong with the objects.
func (e *evaluation) whyNotDue() metav1.Condition {
	o, m, backoff := &e.in.Observation, e.underWay, e.next.Backoff
	leftOut := "the resource"
	if len(o.SharedWith) > 0 {
		leftOut += ", or the same objects in another API group"
	}
	createsNone := e.in.State.Spec.Paused || e.in.State.PausedByAnnotation() || !e.in.AutoMigrate
	switch {
	case o.Presence == storageversion.NotServed:
		return no(migrationv1alpha1.StateReasonNotServed, "No server serves the resource, so nothing can migrate them. "+
			e.endsNotServed())
	case e.proof != nil:
		return no(migrationv1alpha1.StateReasonAwaitingAgreement, "The migration "+e.proof.Name+
			" succeeded. The trigger accepts that when it next sees that all servers agree.")
	case m != nil && (m.DeletionTimestamp == nil || !createsNone):
		return no(whatHappensTo(m, storageversion.Expires(o.Resource)))
	case !createsNone && backoff != nil &&
		(backoff.NextAttemptTime == nil || e.in.Now.Before(backoff.NextAttemptTime.Time)):
		return no(migrationv1alpha1.StateReasonMigrationFailed, e.failureMessage())
	case !e.agreed:
		return no(migrationv1alpha1.StateReasonAwaitingAgreement, "A migration starts when the servers agree.")
	case e.in.State.Spec.Paused:
		return no(migrationv1alpha1.StateReasonPaused, "A migration is due: set spec.paused to false to let it start.")
	case e.in.State.PausedByAnnotation():
		return no(migrationv1alpha1.StateReasonPaused, "A migration is due: remove the annotation "+
			migrationv1alpha1.PausedAnnotation+" to let it start.")
	case !e.in.AutoMigrate:
		return no(migrationv1alpha1.StateReasonNotSelected, "A migration is due, but --auto-migrate leaves out "+
			leftOut+". To migrate the resource, create a StorageVersionMigration of it.")
	case e.in.Now.Before(e.soakedFrom()):
		return no(migrationv1alpha1.StateReasonSoaking, fmt.Sprintf("A migration is due at %s, when the servers "+
			"have written %s for the soak period of %v. Create a StorageVersionMigration to migrate earlier.",
			e.soakedFrom().UTC().Format(time.RFC3339), e.next.CurrentEncodingVersion, e.soakPeriod()))
	}
	return metav1.Condition{}
}

// whatHappensTo is the reason and the message about a migration that has not ended, of objects that expire or not. It
// says nothing about how far the migration is: states must not be written because of progress.
func whatHappensTo(m *migrationv1alpha1.StorageVersionMigration, expires bool) (reason, message string) {
	waiting := m.Status.Condition(migrationv1alpha1.MigrationWaiting)
	switch {
	case m.DeletionTimestamp != nil:
		return migrationv1alpha1.StateReasonMigrationQueued, fmt.Sprintf("The migration %s is being deleted, and finalizers "+
			"keep it: %s. No other one is created before it is gone.", m.Name, strings.Join(m.Finalizers, ", "))
	case m.Spec.Suspend:
		return migrationv1alpha1.StateReasonMigrationSuspended, "The migration " + m.Name +
			" is suspended: set its spec.suspend to false to continue."
	case waiting != nil && waiting.Reason == migrationv1alpha1.MigrationReasonAwaitingInTree:
		return migrationv1alpha1.StateReasonMigrationQueued, "The migration " + m.Name + " waits. " + waiting.Message
	case !m.Begun():
		return migrationv1alpha1.StateReasonMigrationQueued, "The migration " + m.Name +
			" is created and waits until the migrator begins it."
	case expires:
		return migrationv1alpha1.StateReasonObjectsExpire, "The migration " + m.Name +
			" waits until the API servers have deleted those that were written before it began."
	default:
		return migrationv1alpha1.StateReasonMigrationRunning, "The migration " + m.Name +
			" has begun to rewrite them. Its status shows how far it is."
	}
}

// soakPeriod is how long the servers must have written the current encoding before a migration to it is created.
func (e *evaluation) soakPeriod() time.Duration {
	if seconds := e.in.State.Spec.SoakSeconds; seconds != nil {
		return time.Duration(*seconds) * time.Second
	}
	return e.in.Periods.Soak
}

// soakedFrom returns the end of the soak period. It is zero if there is none.
func (e *evaluation) soakedFrom() time.Time {
	period := e.soakPeriod()
	if e.next.CurrentSinceTime == nil || period == 0 {
		return time.Time{}
	}
	return e.next.CurrentSinceTime.Add(period)
}

// failureMessage is about the last migration that failed, or that has succeeded without the proof that was due.
func (e *evaluation) failureMessage() string {
	backoff := e.next.Backoff
	last := &migrationv1alpha1.MigrationReference{Name: "of an unknown name"} // A person has edited the status.
	if backoff.LastFailedMigration != nil {
		last = backoff.LastFailedMigration
	}
	succeeded := slices.ContainsFunc(e.in.Migrations, func(m *migrationv1alpha1.StorageVersionMigration) bool {
		return m.UID == last.UID && m.IsConditionTrue(migrationv1alpha1.MigrationSucceeded)
	})
	message := fmt.Sprintf("The migration %s failed, and its status says why.", last.Name)
	switch {
	case succeeded && e.next.Migrated():
		message = fmt.Sprintf("The migration %s succeeded, but may have left entries of versions that are not served: the "+
			"CustomResourceDefinition changed while it ran, or the feature gate CRDManagedFieldsCleaning was off in the "+
			"manager that migrated.", last.Name)
	case succeeded:
		message = fmt.Sprintf("The migration %s succeeded, but does not prove that all objects are stored in the "+
			"current encoding: it began before this manager saw the servers agree, or another migrator ran it.", last.Name)
	case backoff.Failures > 1:
		message = fmt.Sprintf("%d migrations in a row failed. The last is %s, whose status says why.", backoff.Failures,
			last.Name)
	}
	if backoff.NextAttemptTime == nil {
		return message + " Another attempt would fail as well: repair the cause, " +
			"then set spec.retryToken to a new value."
	}
	return message + " The next one is due at " + backoff.NextAttemptTime.UTC().Format(time.RFC3339) +
		", or when spec.retryToken gets a new value."
}
