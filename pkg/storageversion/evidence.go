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

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// SameEvidence reports whether two evidences identify the same state of the same source, whenever each was first
// seen.
func SameEvidence(a, b migrationv1alpha1.StorageEvidence) bool {
	return a.Source == b.Source && slices.Equal(a.Servers, b.Servers) &&
		slices.EqualFunc(a.Endpoints, b.Endpoints, sameEndpoint) && ptr.Equal(a.StorageVersion, b.StorageVersion) &&
		equality.Semantic.DeepEqual(a.CustomResourceDefinition, b.CustomResourceDefinition)
}

func sameEndpoint(a, b migrationv1alpha1.EndpointEvidence) bool {
	same := a.ProcessStartTime.Equal(b.ProcessStartTime)
	a.ProcessStartTime, b.ProcessStartTime = nil, nil
	return same && a == b
}

// Durable reports whether a later evidence can prove that nothing happened since this one. If it cannot, only the
// time that passed says how far to trust it.
func Durable(e migrationv1alpha1.StorageEvidence) bool {
	if Anonymous(e) {
		return false
	}
	switch e.Source {
	case migrationv1alpha1.EvidenceFromStorageVersion:
		return e.StorageVersion != nil
	case migrationv1alpha1.EvidenceFromCustomResourceDefinition:
		return e.CustomResourceDefinition != nil
	case migrationv1alpha1.EvidenceFromServerDiscovery:
		return len(e.Servers) > 0 && !slices.ContainsFunc(e.Servers, func(s migrationv1alpha1.ServerEvidence) bool {
			return s.Incarnation == ""
		})
	default:
		return false
	}
}

// Continues reports whether two evidences prove, although nobody watched in between, that servers wrote no encoding
// other than those that recorded and first tell of.
func Continues(recorded, first migrationv1alpha1.StorageEvidence) bool {
	if recorded.Source != first.Source || !Durable(recorded) || !Durable(first) {
		return false
	}
	switch first.Source {
	case migrationv1alpha1.EvidenceFromStorageVersion:
		// A server on which the API was off for a time wrote what it did not publish.
		return *recorded.StorageVersion == *first.StorageVersion && slices.Equal(recorded.Servers, first.Servers) &&
			sameProcesses(recorded.Endpoints, first.Endpoints)
	case migrationv1alpha1.EvidenceFromCustomResourceDefinition:
		// One change of the spec has one storage version before it and one after it, and both are known. Two changes may
		// have another version in between. status.storedVersions does not prove otherwise, because others shorten it.
		changes := first.CustomResourceDefinition.Generation - recorded.CustomResourceDefinition.Generation
		return recorded.CustomResourceDefinition.UID == first.CustomResourceDefinition.UID &&
			(changes == 0 || changes == 1)
	default:
		return slices.Equal(recorded.Servers, first.Servers) && sameProcesses(recorded.Endpoints, first.Endpoints)
	}
}

// SightingsSince returns the sightings that came after the recorded evidence. known is false if nothing
// connects the evidence with the sightings: then anything may have happened in between.
//
// The same evidence may be in several sightings. Its time tells which one was recorded, unless another process recorded
// it by its own clock. Then the first one counts, so that later may have too many sightings but never too few.
func SightingsSince(recorded migrationv1alpha1.StorageEvidence, all []Sighting) (later []Sighting, known bool) {
	same := func(s Sighting) bool { return SameEvidence(s.Evidence, recorded) }
	at := slices.IndexFunc(all, func(s Sighting) bool {
		return same(s) && s.Evidence.FirstObservedTime.Equal(recorded.FirstObservedTime)
	})
	if at < 0 && !Anonymous(recorded) {
		at = slices.IndexFunc(all, same)
	}
	if at >= 0 {
		return all[at+1:], true
	}
	// The sightings may begin before the record, or may say less than the record does.
	if at = slices.IndexFunc(all, func(s Sighting) bool { return Continues(recorded, s.Evidence) }); at >= 0 {
		return all[at:], true
	}
	return all, false
}
