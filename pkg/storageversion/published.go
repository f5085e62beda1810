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

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// SetStorageVersionsServed tells whether all StorageVersion objects are known and watched.
func (l *Ledger) SetStorageVersionsServed(_ time.Time, served bool) Changes {
	if l.storageVersionsServed == served {
		return nil
	}
	l.storageVersionsServed = served
	return l.notePublications()
}

// SetStorageVersion tells the state of the StorageVersion object of that name; nil says that there is none. unbroken says
// that every state of it since the last call was seen.
func (l *Ledger) SetStorageVersion(_ time.Time, name string, object *StorageVersion, unbroken bool) Changes {
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
		return l.notePublications()
	}
	changes := Changes{}
	changes.add(resource)
	l.note(resource)
	return changes
}

func (l *Ledger) notePublications() Changes {
	changes := Changes{}
	for resource := range l.builtin {
		changes.add(resource)
	}
	for resource := range l.storageVersions {
		changes.add(resource)
	}
	for resource := range changes {
		l.note(resource)
	}
	return changes
}

func (l *Ledger) note(resource schema.GroupResource) {
	switch l.class(resource) {
	case BuiltIn:
		l.noteBuiltIn(resource)
	case Aggregated:
		l.noteAggregated(resource)
	}
}

// publishing says whether every server that lives publishes what it writes. One with the StorageVersion API switched off
// leaves no entry, or that of the process before it.
func (l *Ledger) publishing() bool {
	if !l.storageVersionsServed {
		return false
	}
	publishers := map[string]struct{}{}
	for _, object := range l.storageVersions {
		for identity := range object.Encodings {
			publishers[identity] = struct{}{}
		}
	}
	for identity := range l.living {
		if _, publishes := publishers[identity]; !publishes {
			return false
		}
	}
	if l.look != nil {
		for _, document := range l.look.Documents {
			if document.Failure == "" && !document.ServesStorageVersions {
				return false
			}
		}
	}
	return len(publishers) > 0
}

// noteStorageVersion adds a sighting of the StorageVersion of the resource, and says whether there is one.
func (l *Ledger) noteStorageVersion(resource schema.GroupResource) bool {
	object, exists := l.storageVersions[resource]
	kind := l.kind(resource)
	if !exists || !l.storageVersionsServed || kind == "" {
		return false
	}
	evidence := migrationv1alpha1.StorageEvidence{
		Source:         migrationv1alpha1.EvidenceFromStorageVersion,
		StorageVersion: &migrationv1alpha1.StorageVersionEvidence{UID: object.UID, ResourceVersion: object.ResourceVersion},
	}
	var writing []string
	for _, identity := range slices.Sorted(maps.Keys(object.Encodings)) {
		hash := hashOf(object.Encodings[identity], kind)
		writing = append(writing, hash)
		evidence.Servers = append(evidence.Servers, migrationv1alpha1.ServerEvidence{Identity: identity, StorageVersionHash: hash})
	}
	evidence.Servers = evidence.Servers[:min(len(evidence.Servers), migrationv1alpha1.MaxEvidenceServers)]
	l.append(resource, Sighting{Evidence: evidence, Writing: sortedSet(writing)})
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
