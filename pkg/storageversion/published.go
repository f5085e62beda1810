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
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// SetStorageVersionsServed tells whether all StorageVersion objects are known and watched.
func (l *Ledger) SetStorageVersionsServed(now time.Time, served bool) Changes {
	if l.storageVersionsServed == served {
		return nil
	}
	l.storageVersionsServed = served
	return l.notePublications(now)
}

// SetStorageVersion tells the state of the StorageVersion object of that name; nil says that there is none. unbroken says
// that every state of it since the last call was seen.
func (l *Ledger) SetStorageVersion(now time.Time, name string, object *StorageVersion, unbroken bool) Changes {
	resource, ok := resourceOfStorageVersion(name)
	if !ok {
		return nil
	}
	before, existed := l.storageVersions[resource]
	switch {
	case object == nil && !existed:
		return nil
	case object == nil:
		delete(l.storageVersions, resource)
	case existed && before.UID == object.UID && before.ResourceVersion == object.ResourceVersion:
		return nil
	default:
		l.storageVersions[resource] = *object
	}
	if !unbroken {
		l.breakRun(resource)
	}
	if !l.storageVersionsServed {
		return nil
	}
	// One publication may be the first of its server, which decides about all resources.
	if l.publishing() {
		return l.notePublications(now)
	}
	changes := Changes{}
	changes.add(resource)
	l.note(now, resource)
	return changes
}

func (l *Ledger) notePublications(now time.Time) Changes {
	changes := Changes{}
	for resource := range l.builtin {
		changes.add(resource)
	}
	for resource := range l.storageVersions {
		changes.add(resource)
	}
	for resource := range changes {
		l.note(now, resource)
	}
	return changes
}

func (l *Ledger) note(now time.Time, resource schema.GroupResource) {
	switch l.class(resource) {
	case BuiltIn:
		l.noteBuiltIn(now, resource)
	case Aggregated:
		l.noteAggregated(now, resource)
	}
}

// publishing says whether every server that lives publishes what it writes. One with the StorageVersion API switched off
// leaves no entry, or that of the process before it; so each process has to have been asked whether it serves the API.
func (l *Ledger) publishing() bool {
	if !l.storageVersionsServed || (len(l.living) == 0 && !l.allServe) {
		return false
	}
	publishers := sets.Set[string]{}
	for _, object := range l.storageVersions {
		publishers.Insert(slices.Collect(maps.Keys(object.Encodings))...)
	}
	for identity, server := range l.living {
		if !publishers.Has(identity) || !l.serving.Has(server.incarnation) {
			return false
		}
	}
	return len(publishers) > 0
}

// learnPublishers notes which processes serve the StorageVersion API, if the look met all that live.
func (l *Ledger) learnPublishers(now time.Time) {
	l.allServe = l.look.ofServers(l.incarnations()) && l.uncounted(now, "") == nil
	for _, document := range l.look.Documents {
		l.allServe = l.allServe && document.ServesStorageVersions
	}
	if l.allServe {
		l.serving.Insert(slices.Collect(maps.Values(l.incarnations()))...)
	}
}

// noteStorageVersion adds a sighting of the StorageVersion of the resource if it changed, or if it is the best evidence
// now and the last sighting is of other evidence. It says whether there is one.
func (l *Ledger) noteStorageVersion(now time.Time, resource schema.GroupResource, best bool) bool {
	object, exists := l.storageVersions[resource]
	if !exists || !l.storageVersionsServed || l.kind(resource) == "" {
		return false
	}
	state := migrationv1alpha1.StorageVersionEvidence{UID: object.UID, ResourceVersion: object.ResourceVersion}
	if noted, before := l.published[resource]; before && noted == state && !best {
		return true
	}
	l.published[resource] = state
	sighting := Sighting{Evidence: migrationv1alpha1.StorageEvidence{Source: migrationv1alpha1.EvidenceFromStorageVersion, StorageVersion: &state}}
	for _, identity := range slices.Sorted(maps.Keys(object.Encodings)) {
		hash := hashOf(object.Encodings[identity], l.kind(resource))
		sighting.Writing = append(sighting.Writing, hash)
		sighting.Evidence.Servers = append(sighting.Evidence.Servers, migrationv1alpha1.ServerEvidence{Identity: identity, StorageVersionHash: hash})
	}
	for cohabitant := range l.cohabitants[resource] {
		for _, encodingVersion := range l.storageVersions[cohabitant].Encodings {
			sighting.Writing = append(sighting.Writing, hashOf(encodingVersion, l.kind(cohabitant)))
		}
	}
	// A watch that is behind shows what the processes before these published.
	if looked, ok := l.looked[resource]; ok && slices.Equal(looked.Evidence.Servers, l.serverEvidence().Servers) {
		sighting.Writing = append(sighting.Writing, looked.Writing...)
	}
	sighting.Evidence.Servers = sighting.Evidence.Servers[:min(len(sighting.Evidence.Servers), migrationv1alpha1.MaxEvidenceServers)]
	sighting.Writing = sortedSet(sighting.Writing)
	l.append(now, resource, sighting)
	return true
}

// addPublished makes the encodings of the StorageVersion readable.
func (l *Ledger) addPublished(o *Observation) {
	kind := l.kind(o.Resource)
	for _, encodingVersion := range l.storageVersions[o.Resource].Encodings {
		if hash := hashOf(encodingVersion, kind); hash != Unknown {
			o.Versions[hash] = encodingVersion
		}
	}
}

// kind of the objects of a resource, empty if it is not known.
func (l *Ledger) kind(resource schema.GroupResource) string {
	if known, ok := l.builtin[resource]; ok {
		return known.kind
	}
	for _, version := range l.aggregated {
		if known, ok := version.resources[resource]; ok && known.Kind != "" {
			return known.Kind
		}
	}
	return ""
}
