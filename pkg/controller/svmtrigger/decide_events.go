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
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// Reasons of events on StorageStates.
const (
	eventEncodingChanged         = "EncodingChanged"
	eventServersDisagree         = "ServersDisagree"
	eventServersUnseen           = "ServersUnseen"
	eventServersAgree            = "ServersAgree"
	eventEncodingsUnknown        = "PersistedEncodingsUnknown"
	eventStoredVersionsShortened = "StoredVersionsShortened"
	eventMigrationCreated        = "MigrationCreated"
	eventMigrated                = "OnlyCurrentEncodingPersisted"
	eventMigrationFailed         = "MigrationFailed"
	eventNotServed               = "NotServed"
	// These are not about a transition.
	eventNotWritten       = "StateNotWritten"
	eventMigrationRefused = "MigrationRefused"
)

// transitionEvents are sent when a condition, by its type, gets one of these reasons. They have the message of the
// condition.
var transitionEvents = map[string]map[string]struct{ reason, eventType string }{
	migrationv1alpha1.StorageStateAgreed: {
		migrationv1alpha1.StateReasonServersDisagree: {eventServersDisagree, corev1.EventTypeWarning},
		migrationv1alpha1.StateReasonServersUnseen:   {eventServersUnseen, corev1.EventTypeWarning},
		migrationv1alpha1.StateReasonDiscoveryFailed: {eventServersUnseen, corev1.EventTypeWarning},
		migrationv1alpha1.StateReasonServersAgree:    {eventServersAgree, corev1.EventTypeNormal},
	},
	migrationv1alpha1.StorageStateMigrated: {
		migrationv1alpha1.StateReasonOnlyCurrentEncoding: {eventMigrated, corev1.EventTypeNormal},
	},
	migrationv1alpha1.StorageStateServed: {
		migrationv1alpha1.StateReasonNotServed: {eventNotServed, corev1.EventTypeWarning},
	},
}

// events reports what is new in the next status. The first status of a state is not.
func (e *evaluation) events() []Event {
	if e.old.Epoch == 0 {
		return nil
	}
	old, next := e.old, &e.next
	var events []Event
	add := func(eventType, reason, message string) {
		events = append(events, Event{Type: eventType, Reason: reason, Message: message})
	}
	current := next.CurrentStorageVersionHash
	if current != old.CurrentStorageVersionHash && current != storageversion.Unknown {
		add(corev1.EventTypeNormal, eventEncodingChanged, "The servers write objects in "+next.CurrentEncodingVersion+
			" now. Before, it was "+e.versionOfHash(old.CurrentStorageVersionHash)+".")
	}
	for _, condition := range next.Conditions {
		event, ok := transitionEvents[condition.Type][condition.Reason]
		before := meta.FindStatusCondition(old.Conditions, condition.Type)
		switch {
		case !ok || before != nil && before.Reason == condition.Reason:
		case event.reason == eventServersAgree && next.Epoch == 1: // They never disagreed.
		case event.reason == eventNotServed && (before == nil || before.Reason != migrationv1alpha1.StateReasonServed):
		default:
			add(event.eventType, event.reason, condition.Message)
		}
	}
	if slices.Contains(next.PersistedStorageVersionHashes, storageversion.Unknown) &&
		!slices.Contains(normalized(old.PersistedStorageVersionHashes), storageversion.Unknown) {
		add(corev1.EventTypeWarning, eventEncodingsUnknown,
			"A server may have written objects in an encoding that the manager did not see. All objects must be migrated: "+
				"the condition Migrated says when.")
	}
	if lost := lostVersions(old.Evidence, next.Evidence); len(lost) > 0 && !next.Migrated() &&
		e.in.Observation.StoredVersionsManager != controller.MigratorFieldManager {
		add(corev1.EventTypeWarning, eventStoredVersionsShortened, "Somebody removed "+strings.Join(lost, ", ")+
			" from status.storedVersions of the CustomResourceDefinition. Objects may still be stored in these versions. "+
			"They stay among the persisted encodings until a migration succeeds.")
	}
	if ref := next.Migration; ref != nil && (old.Migration == nil || old.Migration.UID != ref.UID) {
		purpose := "bring all objects to " + next.CurrentEncodingVersion
		if next.Migrated() {
			purpose = "remove versions that are not served from metadata.managedFields"
		}
		add(corev1.EventTypeNormal, eventMigrationCreated, "The migration "+ref.Name+" was created to "+purpose+".")
	}
	if backoff := next.Backoff; backoff != nil && (old.Backoff == nil || old.Backoff.Failures < backoff.Failures) {
		add(corev1.EventTypeWarning, eventMigrationFailed, e.failureMessage())
	}
	return events
}

// lostVersions returns the stored versions that a definition listed and does not list any more. Another definition of
// the same name has lost none.
func lostVersions(before, after *migrationv1alpha1.StorageEvidence) []string {
	if before == nil || before.CustomResourceDefinition == nil || after == nil || after.CustomResourceDefinition == nil ||
		before.CustomResourceDefinition.UID != after.CustomResourceDefinition.UID {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(before.StoredVersions()), func(version string) bool {
		return slices.Contains(after.StoredVersions(), version)
	})
}
