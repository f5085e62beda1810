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

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// publications knows the StorageVersion objects, in which servers publish what they write.
type publications struct {
	servers *servers
	looks   *looks
	watched bool // all objects are known, and every change of them becomes known
	objects map[schema.GroupResource]StorageVersion
}

// set records the state of an object; nil means that there is none. It reports whether the state differs from
// before.
func (p *publications) set(resource schema.GroupResource, object *StorageVersion) bool {
	before, existed := p.objects[resource]
	if object == nil {
		delete(p.objects, resource)
		return existed
	}
	p.objects[resource] = *object
	return !existed || before.UID != object.UID || before.ResourceVersion != object.ResourceVersion
}

// complete reports whether every living server publishes all that it writes. A server on which the API is switched
// off leaves the entry of the process before it in place, so looks must have found that each process serves the API as
// well.
func (p *publications) complete() bool {
	identities := sets.Set[string]{}
	for _, object := range p.objects {
		identities.Insert(slices.Collect(maps.Keys(object.EncodingVersions))...)
	}
	publishesNothing := func(process Process) bool {
		return !identities.Has(process.Identity) || !p.looks.readings[process].publishes
	}
	return p.watched && len(p.servers.living) > 0 && !slices.ContainsFunc(p.servers.living, publishesNothing)
}

// sighting returns what the object of a resource says about its kind.
func (p *publications) sighting(resource schema.GroupResource, kind string) Sighting {
	object := p.objects[resource]
	sighting := Sighting{Evidence: migrationv1alpha1.StorageEvidence{
		Source: migrationv1alpha1.EvidenceFromStorageVersion,
		StorageVersion: &migrationv1alpha1.StorageVersionEvidence{
			UID: object.UID, ResourceVersion: object.ResourceVersion,
		},
	}}
	for _, identity := range slices.Sorted(maps.Keys(object.EncodingVersions)) {
		hash := encodingAt(object.EncodingVersions[identity], kind)
		sighting.Writing = append(sighting.Writing, hash)
		sighting.Evidence.Servers = append(sighting.Evidence.Servers, migrationv1alpha1.ServerEvidence{
			Identity: identity, Incarnation: p.servers.incarnation(identity), StorageVersionHash: hash,
		})
	}
	// A server that does not serve the resource has no entry. Its next process may serve it.
	for _, process := range p.servers.living {
		if _, published := object.EncodingVersions[process.Identity]; !published {
			sighting.Evidence.Servers = append(sighting.Evidence.Servers,
				migrationv1alpha1.ServerEvidence{Identity: process.Identity, Incarnation: process.Incarnation})
		}
	}
	sighting.Evidence.Servers = atMost(sighting.Evidence.Servers, migrationv1alpha1.MaxEvidenceServers)
	return sighting
}
