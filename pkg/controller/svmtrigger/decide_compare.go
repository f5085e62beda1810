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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// sameFacts says whether two statuses have everything in common but their evidence. Every decision compares, and most find
// nothing new, for which comparing by reflection took longer than all the rest.
func sameFacts(a, b *migrationv1alpha1.StorageStateStatus) bool {
	return a.CurrentStorageVersionHash == b.CurrentStorageVersionHash &&
		a.CurrentEncodingVersion == b.CurrentEncodingVersion &&
		a.Epoch == b.Epoch &&
		a.LastHandledRetry == b.LastHandledRetry &&
		a.LastHeartbeatTime.Equal(&b.LastHeartbeatTime) &&
		a.EpochStartTime.Equal(b.EpochStartTime) &&
		slices.Equal(a.PersistedStorageVersionHashes, b.PersistedStorageVersionHashes) &&
		slices.Equal(a.PersistedEncodingVersions, b.PersistedEncodingVersions) &&
		slices.Equal(a.Encodings, b.Encodings) &&
		slices.Equal(a.StorageSharedWith, b.StorageSharedWith) &&
		sameReference(a.Migration, b.Migration) &&
		sameBackoff(a.Backoff, b.Backoff) &&
		slices.EqualFunc(a.Conditions, b.Conditions, sameCondition)
}

func sameEvidence(a, b *migrationv1alpha1.StorageEvidence) bool {
	if a == nil || b == nil {
		return a == b
	}
	return storageversion.SameEvidence(*a, *b) && a.FirstObservedTime.Equal(b.FirstObservedTime)
}

func sameReference(a, b *migrationv1alpha1.MigrationReference) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

func sameBackoff(a, b *migrationv1alpha1.MigrationBackoff) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Failures == b.Failures &&
		a.LastFailureTime.Equal(&b.LastFailureTime) &&
		sameReference(a.LastFailedMigration, b.LastFailedMigration) &&
		a.NextAttemptTime.Equal(b.NextAttemptTime)
}

func sameCondition(a, b metav1.Condition) bool {
	same := a.LastTransitionTime.Equal(&b.LastTransitionTime)
	a.LastTransitionTime = b.LastTransitionTime
	return same && a == b
}
