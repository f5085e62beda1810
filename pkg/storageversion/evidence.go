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
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// SameEvidence reports whether two evidences identify the same state of the same source, whenever each was first
// seen.
func SameEvidence(a, b migrationv1alpha1.StorageEvidence) bool {
	a.FirstObservedTime, b.FirstObservedTime = nil, nil
	return equality.Semantic.DeepEqual(a, b)
}

// FromKubeAPIServers reports whether an evidence is about servers of kube-apiserver, each of which may write an
// encoding of its own. The endpoints of other evidence are those of aggregated servers.
func FromKubeAPIServers(e migrationv1alpha1.StorageEvidence) bool {
	return e.Source == migrationv1alpha1.EvidenceFromServerDiscovery ||
		e.Source == migrationv1alpha1.EvidenceFromStorageVersion
}

// Durable reports whether a later evidence can prove that nothing happened since this one. If it cannot, only the
// time that passed says how far to trust it.
func Durable(e migrationv1alpha1.StorageEvidence) bool {
	if Anonymous(e) {
		return false
	}
	// More addresses than processes mean that a server has no Lease, so nothing tells its processes apart. A
	// StorageVersion also names servers that are gone.
	processes := 0
	for _, server := range e.Servers {
		if server.Incarnation != "" {
			processes++
		}
	}
	allHaveLeases := len(e.Endpoints) <= processes
	switch e.Source {
	case migrationv1alpha1.EvidenceFromStorageVersion:
		return e.StorageVersion != nil && allHaveLeases
	case migrationv1alpha1.EvidenceFromCustomResourceDefinition:
		return e.CustomResourceDefinition != nil
	case migrationv1alpha1.EvidenceFromServerDiscovery:
		return len(e.Servers) > 0 && processes == len(e.Servers) && allHaveLeases
	default:
		return false
	}
}

// Continues reports whether the two evidences prove that only the encodings that they show were written between them,
// when nobody watched. They cannot exclude a server with another identity that came and left for good in between.
func Continues(recorded, first migrationv1alpha1.StorageEvidence) bool {
	if recorded.Source != first.Source || !Durable(recorded) || !Durable(first) {
		return false
	}
	switch first.Source {
	case migrationv1alpha1.EvidenceFromStorageVersion:
		if *recorded.StorageVersion != *first.StorageVersion {
			return false
		}
	case migrationv1alpha1.EvidenceFromCustomResourceDefinition:
		// One change of the spec has one storage version before it and one after it, and both are known. Two changes may
		// have another version in between. status.storedVersions does not prove otherwise, because others shorten it.
		changes := first.CustomResourceDefinition.Generation - recorded.CustomResourceDefinition.Generation
		return recorded.CustomResourceDefinition.UID == first.CustomResourceDefinition.UID &&
			(changes == 0 || changes == 1)
	}
	// Also beside StorageVersions: a server on which the API was off for a time wrote what it did not publish.
	return slices.Equal(recorded.Servers, first.Servers) && sameProcesses(recorded.Endpoints, first.Endpoints)
}

// IsRecordedAs reports whether the record was made from this sighting, and not from another one with the same evidence.
// Then this manager made it, or another manager that first saw the evidence in the same second by its own clock.
func (s *Sighting) IsRecordedAs(recorded migrationv1alpha1.StorageEvidence) bool {
	return s.Evidence.FirstObservedTime.Equal(recorded.FirstObservedTime) && SameEvidence(s.Evidence, recorded)
}

// ChangedServer reports whether others serve the resource than when evidence was recorded, or whether an aggregated
// server that the record lacks has it now. Then the objects may be in another storage. A source of a later release,
// which this one does not know, may stand for any server. The address of an aggregated server begins with that of its
// Service.
func ChangedServer(recorded, now migrationv1alpha1.StorageEvidence) bool {
	if !fromAggregated(recorded) || !fromAggregated(now) {
		return recorded.Source != now.Source && !(FromKubeAPIServers(recorded) && FromKubeAPIServers(now))
	}
	server := func(e migrationv1alpha1.EndpointEvidence) string {
		service, _, _ := strings.Cut(e.Address, "/apis/")
		return service
	}
	return slices.ContainsFunc(now.Endpoints, func(seen migrationv1alpha1.EndpointEvidence) bool {
		return !slices.ContainsFunc(recorded.Endpoints, func(recorded migrationv1alpha1.EndpointEvidence) bool {
			return server(recorded) == server(seen)
		})
	})
}

// fromAggregated reports whether an evidence is about aggregated servers.
func fromAggregated(e migrationv1alpha1.StorageEvidence) bool {
	return e.Source == migrationv1alpha1.EvidenceFromAggregatedDiscovery
}

// SightingsSince returns the sightings that came after the recorded evidence. known is false if nothing
// connects the evidence with the sightings: then anything may have happened in between.
//
// The same evidence may be in several sightings. If this manager recorded it, its time tells which one was recorded.
// Otherwise SightingsSince takes the first one, or, if the record may be older than all sightings, none. So later may
// contain sightings that the record already includes. Sightings that show other writes are missing from it in one case
// only: another manager recorded the first of two equal sightings, and its clock was ahead by exactly the time between
// them.
func SightingsSince(recorded migrationv1alpha1.StorageEvidence, all []Sighting) (later []Sighting, known bool) {
	same := func(s Sighting) bool { return SameEvidence(s.Evidence, recorded) }
	if at := slices.IndexFunc(all, func(s Sighting) bool { return s.IsRecordedAs(recorded) }); at >= 0 {
		return all[at+1:], true
	}
	at, next := -1, 0
	if !Anonymous(recorded) {
		at = slices.IndexFunc(all, same)
		next = at + 1
	}
	if at < 0 {
		// The sightings may begin before the record, or may say less than the record does.
		at = slices.IndexFunc(all, func(s Sighting) bool { return Continues(recorded, s.Evidence) })
		next = at
	}
	if at < 0 {
		return all, false
	}
	// This manager may have missed the moment of the record, and have seen the same evidence again later. Then the
	// sightings before it may be later than the record, so they count.
	later = all[next:]
	if from := slices.IndexFunc(all[:at], func(s Sighting) bool { return mayBeOlder(recorded, s) }); from >= 0 {
		later = all[from:]
	}
	return later, true
}

// mayBeOlder reports whether a record may have been made before a sighting. The clocks of two managers do not tell it.
// But the record is younger if it has a process, or a generation, that the sighting does not have yet. Within a
// generation, servers write one version, which both have. So the sighting counts only if it shows another write. Other
// storedVersions, as before a migration, show none.
func mayBeOlder(recorded migrationv1alpha1.StorageEvidence, seen Sighting) bool {
	if r, s := recorded.CustomResourceDefinition, seen.Evidence.CustomResourceDefinition; r != nil && s != nil {
		return r.Generation < s.Generation ||
			r.Generation == s.Generation && (len(seen.Writing) > 1 || len(seen.UnreadDeparted) > 0)
	}
	return !slices.ContainsFunc(recorded.Servers, func(r migrationv1alpha1.ServerEvidence) bool {
		return !slices.ContainsFunc(seen.Evidence.Servers, func(s migrationv1alpha1.ServerEvidence) bool {
			return r.Identity == s.Identity && r.Incarnation == s.Incarnation
		})
	})
}
