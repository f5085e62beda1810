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
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// maxNameLength leaves room for what is appended to the name of a resource.
const maxNameLength = 200

// shrink takes the success of a migration for the proof that only the current encoding is stored.
func (d *deciding) shrink() {
	if isMigrated(&d.next) {
		return
	}
	for _, m := range d.in.Migrations {
		if !d.proves(m) {
			continue
		}
		d.proof = m
		if d.agreed && d.confirmed(m) {
			d.next.PersistedStorageVersionHashes = []string{d.next.CurrentStorageVersionHash}
			d.next.Backoff = nil
			return
		}
	}
}

// proves says that a migration succeeded, that it was for this encoding in this epoch, and that it began when no write
// under earlier evidence could land behind it.
func (d *deciding) proves(m *migrationv1alpha1.StorageVersionMigration) bool {
	return succeeded(m) && d.storage().of(m, m.Status.Target) && m.Status.Target.StorageVersionHash == d.next.CurrentStorageVersionHash &&
		m.Status.StartTime != nil && !m.Status.StartTime.Time.Before(d.settledAt())
}

// confirmed says that the servers were seen to agree still when the migration had ended. Evidence that is watched would
// tell, unless the look at a process met its successor; evidence that is polled has to be of a later look.
func (d *deciding) confirmed(m *migrationv1alpha1.StorageVersionMigration) bool {
	if d.in.Now.Before(d.in.Observation.Confirmed) {
		d.lookAgain(d.in.Observation.Confirmed)
		return false
	}
	// The time of the end is cut off to a whole second.
	return !d.perishable() || (m.Status.CompletionTime != nil && d.in.Observation.Looked.Sub(m.Status.CompletionTime.Time) >= time.Second)
}

// migrate decides whether a migration is due, and brings it about one step at a time: a name is recorded, then the
// migration is created under that name, then its uid is recorded.
func (d *deciding) migrate() {
	retry := d.takeRetry()
	switch {
	case isMigrated(&d.next):
		d.standing = standing{reason: migrationv1alpha1.StateReasonOnlyCurrentEncoding}
		return
	case d.in.Observation.Expires:
		d.standing = standing{reason: migrationv1alpha1.StateReasonObjectsExpire}
		return
	case d.in.Observation.Presence == storageversion.NotServed:
		d.standing = standing{reason: migrationv1alpha1.StateReasonNotServed}
		return
	case d.proof != nil:
		d.standing = standing{reason: migrationv1alpha1.StateReasonAwaitingAgreement, migration: d.proof.Name}
		return
	case d.in.Observation.SharedBy != d.in.Observation.Resource && d.in.SharedBy == nil:
		d.standing = standing{reason: migrationv1alpha1.StateReasonAwaitingAgreement}
		return
	case d.in.SharedBy != nil && !d.goesByItself():
		d.next.Migration = d.in.SharedBy.Status.Migration.DeepCopy()
		d.standing = standing{reason: migrationv1alpha1.StateReasonMigrationRunning, shared: d.in.SharedBy.Name}
		return
	}
	ref := d.next.Migration
	if ref == nil || d.isShared(ref) {
		d.next.Migration = nil
		d.first()
		return
	}
	m, taken := d.find(ref)
	if m != nil {
		// Also where somebody deleted it and put a copy in its place, which is as good.
		ref.UID = m.UID
	}
	switch {
	case m == nil && !taken && ref.UID == "":
		d.create(ref)
	case m != nil && finished(m), m == nil && d.failedBefore(ref):
		d.again(m, retry)
	case m != nil:
		d.standing = standing{reason: migrationv1alpha1.StateReasonMigrationRunning, migration: m.Name}
	default:
		if !taken {
			d.decision.ConfirmGone = ref.Name
		}
		d.start()
	}
}

// first starts the first migration of an epoch, unless a person's is on its way already.
func (d *deciding) first() {
	for _, m := range d.in.Migrations {
		bound, storage := boundTo(m), d.storage()
		current := bound == nil || storage.of(m, bound)
		if ofResource(m, storage.resource) && !finished(m) && current && d.agreed {
			d.standing = standing{reason: migrationv1alpha1.StateReasonMigrationRunning, migration: m.Name}
			return
		}
	}
	d.start()
}

// start records the name of a migration that is to be created, if nothing speaks against it.
func (d *deciding) start() {
	if reason := d.objection(); reason != "" {
		d.standing = standing{reason: reason}
		return
	}
	d.decision.Due = true
	d.decision.Priority = d.priority()
	if !d.in.Slot {
		d.standing = standing{reason: migrationv1alpha1.StateReasonMigrationQueued}
		return
	}
	d.next.Migration = &migrationv1alpha1.MigrationReference{Name: d.name()}
	d.standing = standing{reason: migrationv1alpha1.StateReasonMigrationRunning, migration: d.next.Migration.Name}
	d.decision.Reason = reasonMigrationDue
}

// objection is why no migration may be started, empty if it may.
func (d *deciding) objection() string {
	switch {
	case !d.agreed:
		return migrationv1alpha1.StateReasonAwaitingAgreement
	case d.state.Annotations[migrationv1alpha1.PausedAnnotation] == "true":
		return migrationv1alpha1.StateReasonPaused
	case !d.in.AutoMigrate:
		return migrationv1alpha1.StateReasonNotSelected
	}
	return ""
}

// create asks for the migration whose name is recorded.
func (d *deciding) create(ref *migrationv1alpha1.MigrationReference) {
	if reason := d.objection(); reason != "" {
		if reason != migrationv1alpha1.StateReasonAwaitingAgreement {
			// Nobody knows for how long. A name that is recorded takes the place of a migration that others wait for.
			d.next.Migration = nil
		}
		d.standing = standing{reason: reason}
		return
	}
	d.standing = standing{reason: migrationv1alpha1.StateReasonMigrationRunning, migration: ref.Name}
	storage := d.storage()
	d.decision.Create = &migrationv1alpha1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: ref.Name},
		Spec: migrationv1alpha1.StorageVersionMigrationSpec{
			Resource: migrationv1alpha1.GroupVersionResource{Group: storage.resource.Group, Version: d.version(), Resource: storage.resource.Resource},
			Target: &migrationv1alpha1.MigrationTarget{
				StorageVersionHash: d.next.CurrentStorageVersionHash,
				EncodingVersion:    d.words(d.next.CurrentStorageVersionHash),
				Epoch:              &storage.epoch,
				StorageStateUID:    storage.state,
			},
		},
	}
	d.decision.Reason = reasonMigrationDue
}

// again decides about another attempt after one that ended without a proof. The migration may be deleted by now.
func (d *deciding) again(m *migrationv1alpha1.StorageVersionMigration, retry bool) {
	if m != nil {
		d.countFailure(m)
	}
	backoff := d.next.Backoff
	if retry {
		now := metav1.NewTime(d.in.Now.Truncate(time.Second))
		backoff.NextAttemptTime = &now
	}
	if backoff.NextAttemptTime != nil && !d.in.Now.Before(backoff.NextAttemptTime.Time) {
		d.start()
		return
	}
	if backoff.NextAttemptTime != nil {
		d.lookAgain(backoff.NextAttemptTime.Time)
	}
	d.standing = standing{reason: migrationv1alpha1.StateReasonMigrationFailed, migration: d.next.Migration.Name}
}

// countFailure counts each migration once.
func (d *deciding) countFailure(m *migrationv1alpha1.StorageVersionMigration) {
	var failures int32
	if d.next.Backoff != nil {
		if known := d.next.Backoff.LastFailedMigration; known != nil && known.UID == m.UID {
			return
		}
		failures = d.next.Backoff.Failures
	}
	failures++
	wait := float64(d.in.Periods.MinBackoff) * math.Pow(2, float64(min(failures-1, 30)))
	next := metav1.NewTime(ceil(d.in.Now.Add(time.Duration(min(wait, float64(d.in.Periods.MaxBackoff))))))
	d.next.Backoff = &migrationv1alpha1.MigrationBackoff{
		Failures:            failures,
		LastFailureTime:     metav1.NewTime(d.in.Now.Truncate(time.Second)),
		LastFailedMigration: &migrationv1alpha1.MigrationReference{Name: m.Name, UID: m.UID},
		NextAttemptTime:     &next,
	}
	if hopeless(m) {
		d.next.Backoff.NextAttemptTime = nil
	}
}

func (d *deciding) failedBefore(ref *migrationv1alpha1.MigrationReference) bool {
	backoff := d.next.Backoff
	return backoff != nil && backoff.LastFailedMigration != nil && backoff.LastFailedMigration.UID == ref.UID
}

// takeRetry says whether an administrator asks for another attempt, and notes that the request was answered.
func (d *deciding) takeRetry() bool {
	request := firstRunes(d.state.Annotations[migrationv1alpha1.RetryAnnotation], migrationv1alpha1.MaxRetryLength)
	if request == "" || request == d.old.LastHandledRetry {
		return false
	}
	d.next.LastHandledRetry = request
	return true
}

// priority puts first what administrators wait for: definitions whose old versions cannot be dropped, then resources
// whose encoding changed, then those of which nothing is known yet.
func (d *deciding) priority() int {
	switch {
	case len(storedVersions(d.next.Evidence)) > 1:
		return 0
	case !slices.Contains(d.next.PersistedStorageVersionHashes, storageversion.Unknown):
		return 1
	default:
		return 2
	}
}

// find returns the migration that is referred to, nil if there is none, and whether there is one of its name.
func (d *deciding) find(ref *migrationv1alpha1.MigrationReference) (*migrationv1alpha1.StorageVersionMigration, bool) {
	for _, m := range d.in.Migrations {
		if m.Name != ref.Name {
			continue
		}
		if d.storage().of(m, m.Spec.Target) {
			return m, true
		}
		return nil, true
	}
	return nil, false
}

// name is another one for each attempt, and the same each time an attempt is decided on.
func (d *deciding) name() string {
	attempt := []string{string(d.state.UID), strconv.FormatInt(d.next.Epoch, 10)}
	if ref := d.next.Migration; ref != nil {
		attempt = append(attempt, ref.Name, string(ref.UID))
	}
	name := d.state.Name
	if len(name) > maxNameLength {
		name = strings.TrimRight(name[:maxNameLength], "-.")
	}
	return fmt.Sprintf("%s-%010x", name, fingerprint(strings.Join(attempt, "/"))&0xffffffffff)
}

// version is the one to send requests to: the target's where it is served, so that nothing is converted without need.
func (d *deciding) version() string {
	served := d.in.Observation.Served
	if len(served) == 0 || d.in.Observation.SharedBy != d.in.Observation.Resource {
		return "" // The migrator finds one.
	}
	target, err := schema.ParseGroupVersion(d.words(d.next.CurrentStorageVersionHash))
	if err == nil && target.Group == d.in.Observation.Resource.Group && slices.Contains(served, target.Version) {
		return target.Version
	}
	return served[0]
}

// boundTo is the epoch that a migration was made for, or that it began in. Nil if it is bound to none.
func boundTo(m *migrationv1alpha1.StorageVersionMigration) *migrationv1alpha1.MigrationTarget {
	target := cmp.Or(m.Status.Target, m.Spec.Target)
	if target == nil || target.Epoch == nil {
		return nil
	}
	return target
}

func ofResource(m *migrationv1alpha1.StorageVersionMigration, resource schema.GroupResource) bool {
	return m.Spec.Resource.Group == resource.Group && m.Spec.Resource.Resource == resource.Resource
}

func succeeded(m *migrationv1alpha1.StorageVersionMigration) bool {
	return hasCondition(m, migrationv1alpha1.MigrationSucceeded)
}

func finished(m *migrationv1alpha1.StorageVersionMigration) bool {
	return succeeded(m) || hasCondition(m, migrationv1alpha1.MigrationFailed)
}

// hopeless says that trying again is of no use before something else changes.
func hopeless(m *migrationv1alpha1.StorageVersionMigration) bool {
	return slices.ContainsFunc(m.Status.Conditions, func(c migrationv1alpha1.MigrationCondition) bool {
		return c.Type == migrationv1alpha1.MigrationFailed && c.Status == corev1.ConditionTrue &&
			(c.Reason == migrationv1alpha1.MigrationReasonInvalidResource || c.Reason == migrationv1alpha1.MigrationReasonVerbsNotSupported)
	})
}

func hasCondition(m *migrationv1alpha1.StorageVersionMigration, conditionType migrationv1alpha1.MigrationConditionType) bool {
	return slices.ContainsFunc(m.Status.Conditions, func(c migrationv1alpha1.MigrationCondition) bool {
		return c.Type == conditionType && c.Status == corev1.ConditionTrue
	})
}

func fingerprint(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s)) // never fails
	return h.Sum64()
}

func firstRunes(s string, n int) string {
	if runes := []rune(s); len(runes) > n {
		return string(runes[:n])
	}
	return s
}
