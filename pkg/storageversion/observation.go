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
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// Unknown stands in a list of encodings for what a process wrote that nobody could read.
const Unknown = migrationv1alpha1.Unknown

// Class tells who serves a resource, and with that which evidence there is.
type Class string

const (
	// BuiltIn resources are part of kube-apiserver. Each server may write them in another encoding.
	BuiltIn Class = "BuiltIn"
	// Custom resources follow their CustomResourceDefinition.
	Custom Class = "Custom"
	// Aggregated resources are served by a server behind the aggregator.
	Aggregated Class = "Aggregated"
)

// Presence tells whether a resource is served. The zero value is PresenceUnknown.
type Presence string

const (
	PresenceUnknown Presence = ""
	// Served: at least one server serves the resource.
	Served Presence = "Served"
	// NotServed: all servers were read, and none serves the resource. Objects may still be stored.
	NotServed Presence = "NotServed"
	// Deleted: the definition of a custom resource was deleted, and its objects before it.
	Deleted Presence = "Deleted"
)

// Observation is what is known at one moment of the encodings that servers write one resource in.
type Observation struct {
	Resource schema.GroupResource
	Time     time.Time
	Class    Class
	Presence Presence
	// Problem is why the observation is not complete: something that may write the resource was not read. Nil if it is
	// complete.
	Problem *Problem
	// StoredVersionsManager is the field manager that was the last to change status.storedVersions of the definition.
	StoredVersionsManager string
	// ReadAt is when the source was last read in full, or Time if it is watched. Zero if it was never read.
	ReadAt time.Time
	// CertainFrom is from when on etcd can show that the last sighting describes the processes that live. Before that, a
	// process may have crashed and its successor may have answered, because a server answers before it renews its Lease.
	// It is zero if there is no doubt.
	CertainFrom time.Time
	// UnreadLiving are the living processes that no complete look has read (only where looks are the evidence), and
	// processes whose connection ended. The latter have the name of their document as identity.
	UnreadLiving []Process
	// Sightings are those since the last gap, oldest first. Between two of them nothing went unseen, except where a
	// sighting says so. The last is the latest complete one; with a Problem it is out of date. There may be none.
	Sightings []Sighting
	// Versions are the versions behind encodings, as far as they are known.
	Versions map[Encoding]string
	// ServedVersions are the versions at which the resource is served, the preferred first.
	ServedVersions []string
	// DefinedVersions are the versions of the CustomResourceDefinition, served or not.
	DefinedVersions []string
	// ContentSince is when this manager first saw the content that the CustomResourceDefinition has now: see
	// Definition.Content. No evidence shows whether a server uses its schemas already.
	ContentSince time.Time
	// DefinitionCount is how many CustomResourceDefinitions the cluster has, if the resource is custom.
	DefinitionCount int
	// SharedWith are other resources that are the same objects in the same storage.
	SharedWith []schema.GroupResource
	// ServersSince is when a process of kube-apiserver came or left last, as far as this manager knows. The end of a
	// connection counts as well: a process of an old release may have the Lease of the process before it.
	ServersSince time.Time
}

// Sighting is what was written at one moment, from complete evidence.
type Sighting struct {
	// Evidence identifies what was read. No two sightings of an observation have the same FirstObservedTime.
	Evidence migrationv1alpha1.StorageEvidence
	// Since is when this manager saw it first, by its own clock.
	Since time.Time
	// Writing are the encodings that servers write, sorted. One means that they agree, none that nobody writes.
	Writing []Encoding
	// UnreadDeparted are processes that left before a look read them. They may have written anything. They do not count
	// for a record whose writer has read them earlier. A process that no Lease identifies has the name of its document as
	// identity.
	UnreadDeparted []Process
	// Stored are the encodings of Evidence.CustomResourceDefinition.StoredVersions, in that order.
	Stored []Encoding
}

// WritesOnly reports whether the servers write the encoding hash and no other. It says nothing about UnreadDeparted.
func (s *Sighting) WritesOnly(hash Encoding) bool { return len(s.Writing) == 1 && s.Writing[0] == hash }

// ProvesOnly reports whether all servers, also those that left, were seen to write the encoding hash and no other.
func (s *Sighting) ProvesOnly(hash Encoding) bool {
	return len(s.UnreadDeparted) == 0 && s.WritesOnly(hash)
}

// Problem is why an observation is not complete.
type Problem struct {
	// Reason is one of the reasons of the Agreed condition.
	Reason string
	// Message tells an administrator what is missing, why, and what to do. It has no full stop at its end.
	Message string
	// Since is when the problem began.
	Since time.Time
}

// Last returns the latest complete sighting.
func (o *Observation) Last() (Sighting, bool) { return lastOf(o.Sightings) }

func lastOf(row []Sighting) (Sighting, bool) {
	if len(row) == 0 {
		return Sighting{}, false
	}
	return row[len(row)-1], true
}
