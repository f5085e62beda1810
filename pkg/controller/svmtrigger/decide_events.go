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

	"k8s.io/apimachinery/pkg/api/meta"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// Reasons of decisions.
const (
	reasonStateGoes      Reason = "StateIsBeingDeleted"
	reasonDefinitionGone Reason = "DefinitionDeleted"
	reasonNothingKnown   Reason = "NothingKnownYet"
	reasonNewResource    Reason = "NewResource"
	reasonStranger       Reason = "StateOfAnotherController"
	reasonMigrationDue   Reason = "MigrationDue"
	reasonNewEpoch       Reason = "EvidenceChanged"
	reasonMigrated       Reason = "MigrationProven"
	reasonHeartbeat      Reason = "Heartbeat"
	reasonStateChanged   Reason = "StateChanged"
)

// Reasons of events on StorageStates.
const (
	eventEncodingChanged         = "EncodingChanged"
	eventServersDisagree         = "ServersDisagree"
	eventServersUnseen           = "ServersUnseen"
	eventServersAgree            = "ServersAgree"
	eventEncodingsUnknown        = "PersistedEncodingsUnknown"
	eventStoredVersionsShortened = "StoredVersionsShortened"
	eventMigrationDue            = "MigrationDue"
	eventMigrated                = "OnlyCurrentEncodingPersisted"
	eventMigrationFailed         = "MigrationFailed"
	eventNotServed               = "NotServed"
)

// events tells what is different in the next status. A first status is no transition.
func (d *deciding) events() []Event {
	if d.old.Epoch == 0 {
		return nil
	}
	var events []Event
	tell := func(warning bool, reason, format string, args ...any) {
		events = append(events, Event{Warning: warning, Reason: reason, Message: fmt.Sprintf(format, args...)})
	}
	if d.next.CurrentStorageVersionHash != d.old.CurrentStorageVersionHash && d.next.CurrentStorageVersionHash != storageversion.Unknown {
		tell(false, eventEncodingChanged, "Objects are written in %s now; before it was %s", d.next.CurrentEncodingVersion, d.words(d.old.CurrentStorageVersionHash))
	}
	d.tellOfAgreement(tell)
	if slices.Contains(d.next.PersistedStorageVersionHashes, storageversion.Unknown) && !slices.Contains(normalized(d.old.PersistedStorageVersionHashes), storageversion.Unknown) {
		tell(true, eventEncodingsUnknown, "Servers may have written in encodings that nobody saw, so a migration is needed")
	}
	if lost := lostVersions(d.old.Evidence, d.next.Evidence); len(lost) > 0 && !isMigrated(&d.next) {
		tell(true, eventStoredVersionsShortened, "status.storedVersions of the CustomResourceDefinition lists %s no longer, without a proof that no object is stored in that version; it stays among the persisted encodings until a migration succeeds",
			strings.Join(lost, ", "))
	}
	if ref := d.next.Migration; ref != nil && ref.UID == "" && (d.old.Migration == nil || d.old.Migration.Name != ref.Name) {
		tell(false, eventMigrationDue, "The migration %s is to bring all objects to %s", ref.Name, d.next.CurrentEncodingVersion)
	}
	if isMigrated(&d.next) && !isMigrated(&d.old) {
		tell(false, eventMigrated, "Every object is stored in %s", d.next.CurrentEncodingVersion)
	}
	if backoff := d.next.Backoff; backoff != nil && (d.old.Backoff == nil || d.old.Backoff.Failures != backoff.Failures) && d.standing.migration != "" {
		tell(true, eventMigrationFailed, "%s", d.failure())
	}
	if was := d.before(migrationv1alpha1.StorageStateServed); was == migrationv1alpha1.StateReasonServed && d.in.Observation.Presence == storageversion.NotServed {
		tell(true, eventNotServed, "No server serves the resource any more; its objects may be stored all the same")
	}
	return events
}

// tellOfAgreement tells when the servers begin to agree and when they cease to.
func (d *deciding) tellOfAgreement(tell func(warning bool, reason, format string, args ...any)) {
	agreed := meta.FindStatusCondition(d.next.Conditions, migrationv1alpha1.StorageStateAgreed)
	if agreed == nil || agreed.Reason == d.before(migrationv1alpha1.StorageStateAgreed) {
		return
	}
	switch agreed.Reason {
	case migrationv1alpha1.StateReasonServersDisagree:
		tell(true, eventServersDisagree, "%s", agreed.Message)
	case migrationv1alpha1.StateReasonServersUnseen, migrationv1alpha1.StateReasonDiscoveryFailed:
		tell(true, eventServersUnseen, "%s", agreed.Message)
	case migrationv1alpha1.StateReasonServersAgree:
		if d.next.Epoch == 1 {
			return // They never disagreed.
		}
		tell(false, eventServersAgree, "%s", agreed.Message)
	}
}

// before is the reason that a condition had.
func (d *deciding) before(conditionType string) string {
	if condition := meta.FindStatusCondition(d.old.Conditions, conditionType); condition != nil {
		return condition.Reason
	}
	return ""
}

// lostVersions are the stored versions that a definition listed and lists no longer.
func lostVersions(before, after *migrationv1alpha1.StorageEvidence) []string {
	var lost []string
	for _, version := range storedVersions(before) {
		if after != nil && after.CustomResourceDefinition != nil && !slices.Contains(storedVersions(after), version) {
			lost = append(lost, version)
		}
	}
	return lost
}
