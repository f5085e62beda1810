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
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// maxSightings bounds the sightings that are kept for one resource. A row grows with each restart of a server. Only
// sightings that no record needs any more are merged, unless a state could not be written for long.
const maxSightings = 64

// sightings holds the sightings of each resource since the last gap, oldest first. Nothing that a server wrote between
// two of them can have gone unseen, except where a sighting says so.
type sightings map[schema.GroupResource][]Sighting

// append adds a sighting unless the last one says the same. Each departure is a sighting of its own, because what the
// process wrote may land until long after it. The same evidence may come back later, so each sighting gets a time that
// no other sighting of the resource has, in the whole seconds that the API stores.
func (s sightings) append(now time.Time, resource schema.GroupResource, sighting Sighting) {
	row := s[resource]
	seen := migrationv1alpha1.RoundUp(now)
	if last, exists := s.last(resource); exists {
		if SameEvidence(last.Evidence, sighting.Evidence) && slices.Equal(last.Writing, sighting.Writing) &&
			len(last.UnreadDeparted) == 0 && len(sighting.UnreadDeparted) == 0 {
			return
		}
		if next := last.Evidence.FirstObservedTime.Add(time.Second); seen.Before(next) {
			seen = next
		}
	}
	sighting.Since, sighting.Evidence.FirstObservedTime = now, &metav1.Time{Time: seen}
	row = append(row, sighting)
	if len(row) > maxSightings {
		// A record may name the first sighting, so it stays. The next two become one, which says what was
		// written at both, or Unknown if a process left that was not read.
		writing := slices.Concat(row[1].Writing, row[2].Writing)
		if len(row[1].UnreadDeparted)+len(row[2].UnreadDeparted) > 0 {
			writing = append(writing, Unknown)
		}
		row[2].Writing, row[2].UnreadDeparted = sortedSet(writing), nil
		row = slices.Delete(row, 1, 2)
	}
	s[resource] = row
}

// behind returns the sighting with Unknown for each of these versions, which an APIService hands to an aggregated
// server. That server answers requests for the resource, and a migration would take its answers for those of
// kube-apiserver. When the APIService is gone, the sighting differs, and a migration begins anew.
func (s Sighting) behind(taken []schema.GroupVersion) Sighting {
	for _, gv := range taken {
		s.Writing = append(slices.Clip(s.Writing), Unknown)
		s.Evidence.Endpoints = append(slices.Clip(s.Evidence.Endpoints),
			migrationv1alpha1.EndpointEvidence{Address: "/apis/" + gv.String(), StorageVersionHash: Unknown})
	}
	s.Evidence.Endpoints = atMost(s.Evidence.Endpoints, migrationv1alpha1.MaxEvidenceEndpoints)
	s.Writing = sortedSet(s.Writing)
	return s
}

// last returns the latest sighting of a resource.
func (s sightings) last(resource schema.GroupResource) (Sighting, bool) {
	return lastOf(s[resource])
}

// changedSince reports whether another encoding than the last one may have been written at a time, or since.
func (s sightings) changedSince(resource schema.GroupResource, since time.Time) bool {
	row := s[resource]
	for _, sighting := range slices.Backward(row) {
		switch {
		case !slices.Equal(sighting.Writing, row[len(row)-1].Writing):
			return true
		case !sighting.Since.After(since):
			return false
		}
	}
	return len(row) > 0
}
