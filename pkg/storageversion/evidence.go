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

package storageversion

import (
	"slices"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// SameEvidence says whether two evidences identify the same state of the same source, whenever they were seen first.
func SameEvidence(a, b migrationv1alpha1.StorageEvidence) bool {
	return a.Source == b.Source &&
		equalPointers(a.StorageVersion, b.StorageVersion) &&
		sameDefinition(a.CustomResourceDefinition, b.CustomResourceDefinition) &&
		slices.Equal(a.Servers, b.Servers) &&
		slices.Equal(a.Endpoints, b.Endpoints)
}

// Durable says whether the evidence can be compared with a later one to find out that nothing happened in between. Where
// it cannot, only the time that passed says how far it can be trusted.
func Durable(e migrationv1alpha1.StorageEvidence) bool {
	switch e.Source {
	case migrationv1alpha1.EvidenceFromStorageVersion:
		return e.StorageVersion != nil
	case migrationv1alpha1.EvidenceFromCustomResourceDefinition:
		return e.CustomResourceDefinition != nil
	case migrationv1alpha1.EvidenceFromServerDiscovery:
		for _, server := range e.Servers {
			if server.Incarnation == "" {
				return false
			}
		}
		return len(e.Servers) > 0
	default:
		return false
	}
}

// Continues says whether nothing can have been written, from when recorded was seen until first was, in an encoding
// that neither of them tells of. Nobody watched in between.
func Continues(recorded, first migrationv1alpha1.StorageEvidence) bool {
	if recorded.Source != first.Source || !Durable(recorded) || !Durable(first) {
		return false
	}
	switch first.Source {
	case migrationv1alpha1.EvidenceFromStorageVersion:
		return *recorded.StorageVersion == *first.StorageVersion
	case migrationv1alpha1.EvidenceFromCustomResourceDefinition:
		// One change of the spec has a version before and a version after it, both known. Two may have one in between,
		// which status.storedVersions does not have to show any more: others shorten it.
		changes := first.CustomResourceDefinition.Generation - recorded.CustomResourceDefinition.Generation
		return recorded.CustomResourceDefinition.UID == first.CustomResourceDefinition.UID && (changes == 0 || changes == 1)
	default:
		return slices.EqualFunc(recorded.Servers, first.Servers, func(a, b migrationv1alpha1.ServerEvidence) bool {
			return a.Identity == b.Identity && a.Incarnation == b.Incarnation
		})
	}
}

func sameDefinition(a, b *migrationv1alpha1.CustomResourceDefinitionEvidence) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.UID == b.UID && a.Generation == b.Generation && slices.Equal(a.StoredVersions, b.StoredVersions)
}

func equalPointers[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// Since is what a run tells of that was recorded on earlier evidence. It is not known where nothing connects the two: anything may
// have happened in between. The same evidence may be in a run more than once. The time tells which it was, unless another process recorded it, whose
// times differ from ours; then it is the first, so that too much is news and not too little.
func Since(recorded migrationv1alpha1.StorageEvidence, run []Sighting) (news []Sighting, known bool) {
	same := func(s Sighting) bool { return SameEvidence(s.Evidence, recorded) }
	at := slices.IndexFunc(run, func(s Sighting) bool {
		return same(s) && s.Evidence.FirstObservedTime.Equal(recorded.FirstObservedTime)
	})
	if at < 0 {
		at = slices.IndexFunc(run, same)
	}
	if at >= 0 {
		return run[at+1:], true
	}
	// The run may reach back further than the record, or say less of what the record knows.
	if at = slices.IndexFunc(run, func(s Sighting) bool { return Continues(recorded, s.Evidence) }); at >= 0 {
		return run[at:], true
	}
	return run, false
}
