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
	"cmp"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// maxVersionLength is how long a version in an evidence may be.
const maxVersionLength = 128

// builtIns knows what the discovery documents of the API servers say of each built-in resource.
type builtIns struct {
	servers   *servers
	looks     *looks
	sharing   sharing
	resources map[schema.GroupResource]builtIn
	// ambiguous says that recordRead has added encodings of earlier looks, because a departed server may have answered in
	// the place of a living one. Another look may tell which servers write them.
	ambiguous bool
}

type builtIn struct {
	kind       string
	versions   []string            // at which every server that serves the resource does, in the last look
	shown      sets.Set[string]    // all versions at which a server ever served the resource
	readable   map[Encoding]string // see Observation.Versions
	migratable bool
	// lastRead is what the last complete look said, nil if there was none.
	lastRead *Sighting
	// recentHashes are the encodings that were read while the address of a departed server may still have answered. A
	// living server may write any of them, because the departed one may have answered in its place.
	recentHashes sets.Set[Encoding]
}

// learn records the documents of a look. What one server says is true even if others could not be read. It returns the
// resources that no document has shown before.
func (b *builtIns) learn(now time.Time) (first []schema.GroupResource) {
	b.ambiguous = false
	served := resourceSet{}
	for _, address := range b.looks.addresses {
		for resource, r := range b.looks.last.Documents[address].Resources {
			known, wasKnown := b.resources[resource]
			if !wasKnown {
				first = append(first, resource)
				known.readable = versionsByEncoding(resource.Group, r.Kind, usualVersions)
				known.shown = sets.Set[string]{}
			}
			known.shown.Insert(r.Versions...)
			maps.Copy(known.readable, versionsByEncoding(resource.Group, r.Kind, r.Versions))
			if !served.Has(resource) {
				known.kind, known.versions, known.migratable = r.Kind, slices.Clone(r.Versions), false
				served.Insert(resource)
			}
			known.versions = slices.DeleteFunc(known.versions, func(v string) bool { return !slices.Contains(r.Versions, v) })
			known.migratable = known.migratable || r.Migratable
			b.resources[resource] = known
		}
	}
	complete := b.looks.problemOfLook(now) == nil
	for resource, known := range b.resources {
		if complete && !served.Has(resource) {
			known.versions = nil
		}
		known.recentHashes = known.recentHashes.Union(sets.New(b.sightingOfLook(resource).Writing...))
		b.resources[resource] = known
	}
	return first
}

// recordRead records what the last look said of a resource, if that look is complete.
func (b *builtIns) recordRead(now time.Time, resource schema.GroupResource) {
	if b.looks.problemOfLook(now) != nil {
		return
	}
	known, sighting := b.resources[resource], b.sightingOfLook(resource)
	if !b.looks.departedMayAnswer(now) {
		known.recentHashes = sets.New(sighting.Writing...)
	} else {
		// A departed server may have answered in the place of one that was read before and is hidden now.
		said := len(sighting.Writing)
		sighting.Writing = sortedSet(append(sighting.Writing, sets.List(known.recentHashes)...))
		b.ambiguous = b.ambiguous || len(sighting.Writing) > said
	}
	known.lastRead = &sighting
	b.resources[resource] = known
}

// lastReadOfLiving returns what the last complete look said of a resource. It returns false if there was none, or if
// other processes live now.
func (b *builtIns) lastReadOfLiving(resource schema.GroupResource) (Sighting, bool) {
	read := b.resources[resource].lastRead
	if read == nil || !slices.Equal(read.Evidence.Servers, b.servers.evidence().Servers) {
		return Sighting{}, false
	}
	return *read, true
}

// sightingOfLook returns what the documents of the last look say of a resource, whether or not the look is complete.
func (b *builtIns) sightingOfLook(resource schema.GroupResource) Sighting {
	sighting := Sighting{Evidence: b.servers.evidence()}
	names := slices.Concat([]schema.GroupResource{resource}, b.sharing.with(resource))
	for _, address := range b.looks.addresses {
		document := b.looks.last.Documents[address]
		if document.Failure != "" {
			continue // In a complete look only servers that have left do not answer.
		}
		var hash Encoding
		for _, name := range names { // A server that does not serve the resource writes its objects by another name.
			if written := document.Resources[name].Hash; written != "" {
				sighting.Writing = append(sighting.Writing, written)
				hash = cmp.Or(hash, written)
			}
		}
		sighting.Evidence.Endpoints = append(sighting.Evidence.Endpoints, document.evidence(address, hash))
	}
	sighting.Evidence.Endpoints = atMost(sighting.Evidence.Endpoints, migrationv1alpha1.MaxEvidenceEndpoints)
	sighting.Writing = sortedSet(sighting.Writing)
	return sighting
}

// evidence identifies who gave the document, and says what the document shows.
func (d *Document) evidence(address string, hash Encoding) migrationv1alpha1.EndpointEvidence {
	evidence := migrationv1alpha1.EndpointEvidence{
		Address: address, StorageVersionHash: hash, ServerVersion: d.Version[:min(len(d.Version), maxVersionLength)],
	}
	if !d.Started.IsZero() {
		// The API has microseconds.
		evidence.ProcessStartTime = &metav1.MicroTime{Time: d.Started.UTC().Truncate(time.Microsecond)}
	}
	return evidence
}

// presence reports whether any server serves the resource.
func (b *builtIns) presence(now time.Time, resource schema.GroupResource) Presence {
	for _, address := range b.looks.addresses {
		if _, served := b.looks.last.Documents[address].Resources[resource]; served {
			return Served
		}
	}
	lastRead := b.resources[resource].lastRead
	switch {
	case b.looks.problemOfProcesses(now) != nil:
		return PresenceUnknown
	case b.looks.problemOfLook(now) == nil || lastRead == nil || len(lastRead.Writing) == 0:
		return NotServed
	default:
		// The last look failed. The processes are those of the complete look before it.
		return Served
	}
}

// all returns the resources that any server ever served.
func (b *builtIns) all() resourceSet { return sets.KeySet(b.resources) }
