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

package svmigrator

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
)

// This file has the reasons and messages of the conditions Running and Succeeded, and the reasons of events. The
// reasons and messages of the conditions Waiting and Failed are arguments of waitDecision, failDecision and
// cannotRewrite, where the migrator finds them: mostly in decide.go and find.go. Those of package rewrite are in its
// PermanentErrors.

// statusChange changes a status. It may be called more than once, for example after a conflict.
type statusChange func(status *migrationv1alpha1.StorageVersionMigrationStatus, now time.Time)

// waiting writes the Waiting condition: nothing is rewritten now.
func waiting(d Decision) statusChange {
	return only(migrationv1alpha1.MigrationWaiting, d.Reason, d.Message)
}

// running writes the Running condition: what the run does now.
func running(target *migrationv1alpha1.MigrationTarget, report rewrite.Report) statusChange {
	message := report.Retry.String()
	switch report.Phase {
	case rewrite.Rewriting:
		message = fmt.Sprintf("Objects are being listed and rewritten in %s.", versionOfTarget(target))
	case rewrite.RetryingDenied:
		message = "All other objects are done. The objects that the API server refused to rewrite are tried once more."
	}
	return only(migrationv1alpha1.MigrationRunning, string(report.Phase), message)
}

// succeeded ends a migration with success.
func succeeded(target *migrationv1alpha1.MigrationTarget) statusChange {
	message := fmt.Sprintf("Every object is stored in %s or was deleted.", versionOfTarget(target))
	return ended(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.MigrationReasonAllObjectsMigrated, message)
}

// failed ends a migration without success.
func failed(d Decision) statusChange {
	return ended(migrationv1alpha1.MigrationFailed, d.Reason, d.Message)
}

func ended(result migrationv1alpha1.MigrationConditionType, reason, message string) statusChange {
	return func(status *migrationv1alpha1.StorageVersionMigrationStatus, now time.Time) {
		only(result, reason, message)(status, now)
		status.CompletionTime, status.EstimatedCompletionTime = new(metav1.NewTime(now)), nil
	}
}

// only makes one condition True, and the other conditions of the migrator False. If the migration waits, or requests
// fail, it also removes the rate and the estimated end.
func only(conditionType migrationv1alpha1.MigrationConditionType, reason, message string) statusChange {
	othersReason, others := migrationv1alpha1.MigrationReasonFinished, "The migration has ended."
	stalled := false
	switch conditionType {
	case migrationv1alpha1.MigrationWaiting:
		othersReason, others, stalled = string(conditionType), "The migration waits.", true
	case migrationv1alpha1.MigrationRunning:
		othersReason, others = string(conditionType), "The migration runs."
		stalled = reason != string(rewrite.Rewriting) && reason != string(rewrite.RetryingDenied)
	}
	return func(status *migrationv1alpha1.StorageVersionMigrationStatus, now time.Time) {
		for _, other := range migrationv1alpha1.MigrationConditionTypes {
			if other != conditionType && status.Condition(other) != nil {
				setCondition(status, now, other, corev1.ConditionFalse, othersReason, others)
			}
		}
		setCondition(status, now, conditionType, corev1.ConditionTrue, reason, message)
		if stalled {
			status.EstimatedCompletionTime = nil
		}
		if stalled && status.Progress != nil {
			status.Progress.ObjectsPerMinute = nil
		}
	}
}

// waitingSince returns since when the status has said that the migration waits for what the decision says. It is zero
// if the status does not say that.
func waitingSince(status *migrationv1alpha1.StorageVersionMigrationStatus, d Decision) time.Time {
	c := status.Condition(migrationv1alpha1.MigrationWaiting)
	if c == nil || c.Reason != d.Reason || c.Message != conditionMessage(d.Message) {
		return time.Time{}
	}
	return c.LastUpdateTime.Time
}

// conditionMessage returns a message as conditions have it. A joined error has one line for each error.
func conditionMessage(message string) string {
	message = strings.ReplaceAll(message, "\n", "; ")
	return migrationv1alpha1.TruncateRunes(message, migrationv1alpha1.MaxConditionMessageLength)
}

func setCondition(
	status *migrationv1alpha1.StorageVersionMigrationStatus, now time.Time,
	conditionType migrationv1alpha1.MigrationConditionType, value corev1.ConditionStatus, reason, message string,
) {
	message = conditionMessage(message)
	c := status.Condition(conditionType)
	if c == nil {
		status.Conditions = append(status.Conditions, migrationv1alpha1.MigrationCondition{Type: conditionType})
		c = &status.Conditions[len(status.Conditions)-1]
	}
	if c.Status != value || c.Reason != reason || c.Message != message {
		c.Status, c.Reason, c.Message, c.LastUpdateTime = value, reason, message, metav1.NewTime(now)
	}
}

// objectsDenied returns the decision to fail a migration that has done everything but the denied objects.
func objectsDenied(status *migrationv1alpha1.StorageVersionMigrationStatus) Decision {
	example := ""
	if len(status.DeniedObjects) > 0 {
		first := status.DeniedObjects[0]
		example = fmt.Sprintf(" The first is %s: %s", klog.KRef(first.Namespace, first.Name), first.Message)
	}
	return failDecision(migrationv1alpha1.MigrationReasonObjectsDenied,
		"%d of %d objects were not rewritten: the API server or the manager denied it, or every try failed. All other "+
			"objects are done. status.deniedObjects names up to %d denied objects, each with the reason. Fix the objects, or "+
			"the webhook or policy that denies them, then retry.%s",
		objectsLeft(status), status.Progress.Processed, migrationv1alpha1.MaxDeniedObjects, example)
}

// Reasons of events on StorageVersionMigrations. docs/operations.md explains them.
const (
	EventStarted                 = "MigrationStarted"
	EventSucceeded               = "MigrationSucceeded"
	EventFailed                  = "MigrationFailed"
	EventStoredVersionsPruned    = "StoredVersionsPruned"
	EventStoredVersionsNotPruned = "StoredVersionsNotPruned"

	// EventStatusNotWritten: the API server rejected a status. The condition cannot say so, because it was not stored.
	EventStatusNotWritten = "StatusNotWritten"
)
