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
	"cmp"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// maxNameLength leaves room for what is appended to the name of a resource.
const maxNameLength = 200

// ofEpoch reports whether the target of a migration is bound to the current epoch of the state.
func (e *evaluation) ofEpoch(target *migrationv1alpha1.MigrationTarget) bool {
	return target != nil && target.Epoch != nil && *target.Epoch == e.next.Epoch &&
		target.StorageStateUID == e.in.State.UID
}

// acceptProof shortens the list of persisted encodings to the current one after a migration that proves it.
func (e *evaluation) acceptProof() {
	if e.next.Migrated() {
		e.acceptCleaning()
		return
	}
	for _, m := range e.in.Migrations {
		if !e.proves(m) {
			continue
		}
		e.proof = m
		if e.agreed && e.confirmed(m) {
			e.next.PersistedStorageVersionHashes = []string{e.next.CurrentStorageVersionHash}
			e.next.Backoff = nil
			e.recordManagedFields(m)
			return
		}
	}
}

// proves reports whether a migration succeeded, was for the current encoding in this epoch, and began when no write in
// another encoding could land behind it: the migrator begins no migration of an epoch before the stored state says that
// the servers agree.
func (e *evaluation) proves(m *migrationv1alpha1.StorageVersionMigration) bool {
	return m.IsConditionTrue(migrationv1alpha1.MigrationSucceeded) && e.ofEpoch(m.Status.Target) &&
		m.Status.Target.StorageVersionHash == e.next.CurrentStorageVersionHash && m.Status.StartTime != nil
}

// confirmed reports whether the servers were seen to agree after the migration had ended. Evidence that is watched
// shows that, unless the latest read met a server that was about to be replaced: etcd has to show that it did not, and
// no event tells when it has. Evidence that is polled must be of a later poll.
func (e *evaluation) confirmed(m *migrationv1alpha1.StorageVersionMigration) bool {
	o := &e.in.Observation
	if again := o.CertainFrom; !again.IsZero() {
		if !again.After(e.in.Now) {
			again = e.in.Now.Add(minRetry)
		}
		e.decideAt(again)
		return false
	}
	return e.evidenceComparable() || o.ReadAt.After(e.in.MigrationsFinishedAt[m.UID])
}

// planDeletions plans to delete unfinished migrations of the trigger that were made for an earlier epoch or for an
// earlier state. A suspended one is deleted only when there is nothing to migrate, because the migration that replaced
// it would not be suspended. Migrations that people created stay: the migrator fails them, so that their owners see
// why.
func (e *evaluation) planDeletions() {
	e.decision.DeleteReason = reasonNothingDue
	for _, m := range madeForEpoch(e.in) {
		// Both differ only if somebody else wrote status.target. The migrator would wait for that epoch for ever.
		outdated := !e.ofEpoch(m.Spec.Target) || !e.ofEpoch(m.EpochTarget())
		if m.Spec.Suspend && e.nothingDue() || !m.Spec.Suspend && outdated {
			e.decision.Delete = append(e.decision.Delete, m)
			if outdated {
				e.decision.DeleteReason = reasonOutdated
			}
		}
	}
}

// nothingDue reports whether no object has to be rewritten.
func (e *evaluation) nothingDue() bool { return e.next.Migrated() && !e.cleaningDue() }

// findMigrations finds a migration that has not ended, so that no other one is created. It finds the present attempt,
// and records it.
func (e *evaluation) findMigrations() {
	if e.nothingDue() || e.proof != nil {
		return
	}
	name := e.attemptName()
	for _, m := range e.in.Migrations {
		if e.blocksNewMigration(m) && (e.underWay == nil || !m.Spec.Suspend) {
			e.underWay = m
		}
		if m.Name == name && e.ofEpoch(m.Spec.Target) {
			e.present = m
		}
	}
	if m := e.present; m != nil && m.Kept() && e.underWay == nil {
		e.underWay = m // The API server has no other one of that name.
	}
	if m, ref := e.present, e.next.Migration; m != nil && (ref == nil || ref.UID != m.UID) {
		e.next.Migration = &migrationv1alpha1.MigrationReference{Name: m.Name, UID: m.UID}
	}
}

// blocksNewMigration reports whether the trigger must not create another migration while this one exists.
func (e *evaluation) blocksNewMigration(m *migrationv1alpha1.StorageVersionMigration) bool {
	if !m.Active() {
		return false // One that is being deleted may stay for long because of finalizers, and the migrator ignores it.
	}
	// A migration without an epoch blocks only while the servers agree: then the migrator begins it in this epoch. A
	// suspended migration of the trigger blocks in any epoch.
	bound := m.EpochTarget()
	return bound == nil && e.agreed || e.ofEpoch(bound) || m.Spec.Suspend && m.HasEpoch()
}

// countFailure counts the present attempt if it ended without a proof, and says when the next one is due. It counts
// each attempt once, because the present attempt is another one then.
func (e *evaluation) countFailure() {
	m := e.present
	if m == nil || !m.Finished() {
		return
	}
	failures := e.failures() + 1
	e.next.Backoff = &migrationv1alpha1.MigrationBackoff{
		Failures:            failures,
		LastFailureTime:     metav1.NewTime(e.in.Now.Truncate(time.Second)),
		LastFailedMigration: &migrationv1alpha1.MigrationReference{Name: m.Name, UID: m.UID},
	}
	if failed := m.Status.Condition(migrationv1alpha1.MigrationFailed); failed == nil ||
		!migrationv1alpha1.RetryIsVain(failed.Reason) {
		wait := min(e.in.Periods.MinBackoff<<min(failures-1, 16), e.in.Periods.MaxBackoff)
		next := e.in.Now.Add(wait)
		e.next.Backoff.NextAttemptTime = new(metav1.NewTime(migrationv1alpha1.RoundUp(next)))
	}
}

// answerRetry makes the next attempt due if an administrator asks for it, and records that the request was answered.
// Without a failure there is nothing to make due, and the request counts as answered.
func (e *evaluation) answerRetry() {
	request := cmp.Or(e.in.State.Spec.RetryToken, e.in.State.Annotations[migrationv1alpha1.RetryAnnotation])
	request = migrationv1alpha1.TruncateRunes(request, migrationv1alpha1.MaxRetryLength)
	changed := request != "" && request != e.old.LastHandledRetry
	if changed {
		e.next.LastHandledRetry = request
	}
	if e.next.Backoff == nil {
		return
	}
	backoff, now := *e.next.Backoff, metav1.NewTime(e.in.Now.Truncate(time.Second))
	switch {
	case changed:
		backoff.NextAttemptTime = &now
		e.next.Backoff = &backoff
	case e.inFuture(backoff.LastFailureTime.Time):
		// Another clock recorded the failure, and this one may be hours behind. So the wait begins anew.
		if next := backoff.NextAttemptTime; next != nil {
			backoff.NextAttemptTime = new(metav1.NewTime(now.Add(next.Sub(backoff.LastFailureTime.Time))))
		}
		backoff.LastFailureTime = now
		e.next.Backoff = &backoff
	}
	if next := e.next.Backoff.NextAttemptTime; next != nil {
		e.decideAt(next.Time)
	}
}

// failures is how many attempts have failed in a row.
func (e *evaluation) failures() int32 {
	if e.next.Backoff == nil {
		return 0
	}
	return e.next.Backoff.Failures
}

// planMigration plans to create the present attempt.
func (e *evaluation) planMigration() {
	resource := e.in.Observation.Resource.WithVersion(e.servedVersion())
	e.decision.Create = &migrationv1alpha1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: e.attemptName()},
		Spec: migrationv1alpha1.StorageVersionMigrationSpec{
			Resource: migrationv1alpha1.GroupVersionResource(resource),
			Target: &migrationv1alpha1.MigrationTarget{
				StorageVersionHash: e.next.CurrentStorageVersionHash,
				EncodingVersion:    e.versionOfHash(e.next.CurrentStorageVersionHash),
				Epoch:              new(e.next.Epoch),
				StorageStateUID:    e.in.State.UID,
			},
		},
	}
	e.decision.Reason = reasonMigrationDue
}

// attemptName returns the name of the present attempt, which is under way, or due, or has ended and is not counted yet.
// It follows from the stored state, and stays the same until the state says how the attempt ended. So the API server
// refuses to create a second attempt beside one that the cache lacks. An attempt that somebody deleted is created
// again.
func (e *evaluation) attemptName() string {
	resource := e.in.State.Name
	if len(resource) > maxNameLength {
		resource = strings.TrimRight(resource[:maxNameLength], "-.")
	}
	attempt := fmt.Sprintf("%s/%d/%d", e.in.State.UID, e.next.Epoch, e.failures())
	if e.next.Migrated() {
		attempt += fmt.Sprintf("/cleaning/%d", e.cleaningDueSince())
	}
	return fmt.Sprintf("%s-%010x", resource, hashString(attempt)&0xffffffffff)
}

// servedVersion returns the version to send requests to: that of the target where it is served, so that the API
// server does not convert objects without need.
func (e *evaluation) servedVersion() string {
	served := e.in.Observation.ServedVersions
	if len(served) == 0 {
		return "" // The migrator finds one.
	}
	target, err := schema.ParseGroupVersion(e.versionOfHash(e.next.CurrentStorageVersionHash))
	if err == nil && target.Group == e.in.Observation.Resource.Group && slices.Contains(served, target.Version) {
		return target.Version
	}
	return served[0]
}

func hashString(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // never fails
	return h.Sum64()
}
