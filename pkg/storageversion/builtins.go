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
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// builtIns knows what the discovery documents of the API servers say of each built-in resource.
type builtIns struct {
	servers           *servers
	looks             *looks
	sharing           sharing
	resources         map[schema.GroupResource]builtIn
	lastReadAmbiguous bool // see ambiguous
}

type builtIn struct {
	kind       string
	versions   []string // at which every server that serves the resource does, in the last look
	migratable bool
	// lastRead is what the last complete look said, nil if there was none.
	lastRead *Sighting
	// recentHashes are the encodings in any document since a server departed whose address may still answer.
	recentHashes sets.Set[Encoding]
}

// learn takes over the documents of a look. What one server says is true even if others could not be read. It returns
// the resources that nobody had heard of before.
func (b *builtIns) learn(now time.Time) (heardFirst []schema.GroupResource) {
	b.lastReadAmbiguous = false
	served := resourceSet{}
	for _, document := range b.looks.documents() {
		for resource, r := range document.Resources {
			known, heard := b.resources[resource]
			if !heard {
				heardFirst = append(heardFirst, resource)
			}
			if !served.Has(resource) {
				known.kind, known.versions, known.migratable = r.Kind, slices.Clone(r.Versions), false
				served.Insert(resource)
			}
			known.versions = slices.DeleteFunc(known.versions, func(v string) bool { return !slices.Contains(r.Versions, v) })
			known.migratable = known.migratable || r.Migratable
			b.resources[resource] = known
		}
	}
	for resource, known := range b.resources {
		if !served.Has(resource) && b.looks.incomplete(now, resource.Group) == nil {
			known.versions = nil
		}
		known.recentHashes = known.recentHashes.Union(sets.New(b.sightingOfLook(resource).Writing...))
		b.resources[resource] = known
	}
	return heardFirst
}

// read returns what the last complete look at the processes that live said of a resource, if there was one.
func (b *builtIns) read(now time.Time, resource schema.GroupResource) (Sighting, bool) {
	known, exists := b.resources[resource]
	if !exists {
		return Sighting{}, false
	}
	if b.looks.incomplete(now, resource.Group) == nil {
		sighting := b.sightingOfLook(resource)
		if b.servers.departedLately(now) == 0 {
			known.recentHashes = sets.New(sighting.Writing...)
		} else {
			// A departed server may have answered in the place of one that was read before and is hidden now.
			said := len(sighting.Writing)
			sighting.Writing = sortedSet(append(sighting.Writing, sets.List(known.recentHashes)...))
			b.lastReadAmbiguous = b.lastReadAmbiguous || len(sighting.Writing) > said
		}
		known.lastRead = &sighting
		b.resources[resource] = known
	}
	if known.lastRead == nil || !slices.Equal(known.lastRead.Evidence.Servers, b.servers.evidence().Servers) {
		return Sighting{}, false
	}
	return *known.lastRead, true
}

// sightingOfLook returns what the documents of the last look say of a resource, whether or not the look is complete.
func (b *builtIns) sightingOfLook(resource schema.GroupResource) Sighting {
	sighting := Sighting{Evidence: b.servers.evidence()}
	sharedWith := b.sharing.with(resource)
	for address, document := range b.looks.documents() {
		hash := document.Resources[resource].Hash
		for _, other := range sharedWith {
			// A server that does not serve this resource writes its objects through another.
			if otherHash := document.Resources[other].Hash; otherHash != "" {
				sighting.Writing = append(sighting.Writing, otherHash)
				hash = cmp.Or(hash, otherHash)
			}
		}
		sighting.Evidence.Endpoints = append(sighting.Evidence.Endpoints,
			migrationv1alpha1.EndpointEvidence{Address: address, StorageVersionHash: hash})
		if hash != "" {
			sighting.Writing = append(sighting.Writing, hash)
		}
	}
	sighting.Evidence.Endpoints = atMost(sighting.Evidence.Endpoints, migrationv1alpha1.MaxEvidenceEndpoints)
	sighting.Writing = sortedSet(sighting.Writing)
	return sighting
}

// presence reports whether any server serves the resource.
func (b *builtIns) presence(now time.Time, resource schema.GroupResource) Presence {
	for _, document := range b.looks.documents() {
		if _, served := document.Resources[resource]; served {
			return Served
		}
	}
	lastRead := b.resources[resource].lastRead
	switch {
	case b.looks.unknown(now, resource.Group) != nil:
		return PresenceUnknown
	case b.looks.incomplete(now, resource.Group) == nil || lastRead == nil || len(lastRead.Writing) == 0:
		return NotServed
	default:
		// The last look failed. The processes are those of the complete look before it.
		return Served
	}
}

// all returns the resources that any server ever served.
func (b *builtIns) all() resourceSet { return sets.KeySet(b.resources) }

// has reports whether any server ever served a resource.
func (b *builtIns) has(resource schema.GroupResource) bool {
	_, known := b.resources[resource]
	return known
}

// find returns what is known of a resource, nothing if nobody ever served it.
func (b *builtIns) find(resource schema.GroupResource) builtIn { return b.resources[resource] }

// ambiguous reports whether the address of a departed server made a difference to the last complete look.
func (b *builtIns) ambiguous() bool { return b.lastReadAmbiguous }
