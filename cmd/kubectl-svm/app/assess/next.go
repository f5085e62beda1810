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

package assess

import (
	"fmt"
	"regexp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/install"
)

// conclude says what happens next to a resource that is not safe, and who has to do something.
func (r *Resource) conclude(now time.Time) {
	switch r.Reason {
	case migrationv1alpha1.StateReasonMigrationRunning, migrationv1alpha1.StateReasonObjectsExpire:
		r.concludeRunning(now)
	case migrationv1alpha1.StateReasonMigrationQueued:
		r.concludeQueued()
	case migrationv1alpha1.StateReasonMigrationFailed:
		r.concludeFailed(now)
	case migrationv1alpha1.StateReasonSoaking:
		r.setNext(timeIn(r.Message), now, "a migration starts")
		r.Verb = "migrate"
	case migrationv1alpha1.StateReasonPaused:
		r.concludeHeld("paused by a person", "resume")
	case migrationv1alpha1.StateReasonNotSelected:
		r.concludeHeld("--auto-migrate leaves it out", "migrate")
	case migrationv1alpha1.StateReasonMigrationSuspended:
		r.leaveToPerson("suspended by a person", "resume")
	case migrationv1alpha1.StateReasonNotServed:
		r.leaveToPerson("no server serves it", "")
	case migrationv1alpha1.StateReasonStoredVersionsNotPruned:
		r.leaveToPerson("storedVersions is not pruned", "migrate")
	default:
		r.concludeDisagreement(now)
	}
	if r.Migration.LacksPermission() || (r.Verb == "migrate" || r.Verb == "retry") && r.Group == install.AdmissionGroup {
		r.Permission = permission(r.GroupResource)
	}
	goesOn := r.Migration != nil && !r.Migration.Ended() && r.Migration.State != cli.Deleting
	if Paused(r.State) && !slices.Contains(unpausable, r.Reason) && !goesOn {
		r.concludeHeld("paused by a person", "resume")
	}
	if r.Permission == allowAdmission { // The role is there for a migration that somebody awaits, and no longer.
		if r.Verb == "migrate" || r.Verb == "retry" {
			r.Verb = "migrate"
		} else {
			r.Permission = ""
		}
	}
}

// concludeHeld is about a resource of which no migration is created until a person acts. The last one may have failed.
func (r *Resource) concludeHeld(why, verb string) {
	if r.hasDenied() {
		why, verb = denied(r.Migration)+"; "+why, "denied"
	}
	r.NextTime = nil
	r.leaveToPerson(why, verb)
}

// unpausable are the reasons of resources that say that they are paused, or that no migration follows even if they are
// not.
var unpausable = []string{migrationv1alpha1.StateReasonPaused, migrationv1alpha1.StateReasonNotServed,
	migrationv1alpha1.StateReasonStoredVersionsNotPruned}

// Paused reports whether a person has paused the resource, by the field or by the annotation.
func Paused(state *migrationv1alpha1.StorageState) bool {
	return state.Spec.Paused || state.PausedByAnnotation()
}

// leaveToPerson records that nothing happens until a person acts, and the command that helps, if there is one.
func (r *Resource) leaveToPerson(next, verb string) {
	r.Attention, r.Next, r.Verb = Act, next, verb
}

// setNext records what happens next, and when. The time is nil if it is not known.
func (r *Resource) setNext(at *metav1.Time, now time.Time, what string) {
	r.NextTime, r.Next = at, what
	if at != nil {
		r.Next += " " + FormatUntil(now, at.Time)
	}
}

// FormatUntil formats the time from now until a moment.
func FormatUntil(now, then time.Time) string {
	if !then.After(now) {
		return "now"
	}
	return "in " + duration.HumanDuration(then.Sub(now))
}

// concludeRunning is about a migration that has begun.
func (r *Resource) concludeRunning(now time.Time) {
	m := r.Migration
	if m.Failing() {
		r.Message = m.Message
	}
	switch {
	case r.Reason == migrationv1alpha1.StateReasonMigrationRunning && (m == nil || m.Ended()):
		r.Next = "the trigger updates the StorageState" // The migration has ended since the trigger wrote the StorageState.
	case m == nil || m.State != migrationv1alpha1.MigrationRunning:
		r.concludeQueued()
	case m.Reason == migrationv1alpha1.MigrationReasonNoProgress:
		r.leaveToPerson("the migration makes no progress", "")
	case m.EstimatedCompletionTime == nil:
		r.Next = "the migration runs"
	default:
		r.setNext(m.EstimatedCompletionTime, now, "the migration ends")
	}
}

// concludeQueued is about a migration that waits, or that does not exist yet.
func (r *Resource) concludeQueued() {
	switch m := r.Migration; {
	case m != nil && m.State == cli.Deleting:
		r.leaveToPerson("a finalizer keeps the last migration", "")
	case r.Reason == migrationv1alpha1.StateReasonObjectsExpire:
		r.Next = "done when old objects have expired"
	case m == nil || m.Ended():
		r.Next = "the trigger creates a migration"
	case m.Reason == migrationv1alpha1.MigrationReasonQueued:
		r.Next = "waits for its turn"
	case m.Reason != "":
		r.Next, r.Message = "the migration waits: "+m.Reason, m.Message
	default:
		r.Next = "waits for the migrator"
	}
}

// concludeFailed is about a migration that failed. If objects are denied, another attempt fails as well until a person
// does something, so the time of the next attempt is not the answer.
func (r *Resource) concludeFailed(now time.Time) {
	if m := r.Migration; m != nil && m.State == migrationv1alpha1.MigrationFailed {
		r.Message = fmt.Sprintf("The migration %s failed, %s: %s", m.Name, m.Reason, m.Message)
	}
	backoff := r.State.Status.Backoff
	if backoff != nil && backoff.NextAttemptTime != nil {
		r.setNext(backoff.NextAttemptTime, now, "tried again")
	} else {
		r.Next = "not tried again by itself"
	}
	verb := "retry"
	if r.hasDenied() {
		verb = "denied"
		r.Next = denied(r.Migration) + "; " + r.Next
	}
	r.leaveToPerson(r.Next, verb)
}

// hasDenied reports whether a person should look at the denied objects of a resource. If one command gives the
// permission that all of them lack, they say nothing more.
func (r *Resource) hasDenied() bool {
	m := r.Migration
	return m != nil && m.Denied > 0 && !(m.LacksPermission() && permission(r.GroupResource) != "")
}

func denied(m *Migration) string { return FormatObjects(m.Denied) + " denied" }

// concludeDisagreement is about servers that do not agree, or not for long enough.
func (r *Resource) concludeDisagreement(now time.Time) {
	agreed := meta.FindStatusCondition(r.State.Status.Conditions, migrationv1alpha1.StorageStateAgreed)
	if agreed == nil || agreed.Status == metav1.ConditionTrue {
		r.Next = "the trigger updates the StorageState"
		return
	}
	r.Reason, r.Message = agreed.Reason, agreed.Message
	switch agreed.Reason {
	case migrationv1alpha1.StateReasonSettling:
		r.setNext(timeIn(agreed.Message), now, "the servers count as agreed")
	case migrationv1alpha1.StateReasonServersDisagree:
		r.Next = "waits until the servers agree"
	case migrationv1alpha1.StateReasonNotServed:
		r.leaveToPerson("no server serves it", "")
	case migrationv1alpha1.StateReasonDiscoveryFailed:
		r.leaveToPerson("the manager cannot read what it needs", "")
	default:
		r.leaveToPerson("a server does not answer", "")
	}
}

// FormatObjects formats a number of objects.
func FormatObjects(n int64) string {
	if n == 1 {
		return "1 object"
	}
	return FormatNumber(n) + " objects"
}

// FormatNumber formats a number with separators between thousands.
func FormatNumber(n int64) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

var timestamp = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)

// timeIn returns the time that a message names. The conditions have some times in their messages only.
func timeIn(message string) *metav1.Time {
	t, err := time.Parse(time.RFC3339, timestamp.FindString(message))
	if err != nil {
		return nil
	}
	return &metav1.Time{Time: t}
}
