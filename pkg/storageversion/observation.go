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

// Unknown stands in a list of encodings for one that nobody could ask for.
const Unknown = migrationv1alpha1.Unknown

// Class tells who serves a resource, and with that what there is to observe.
type Class string

const (
	// BuiltIn resources are part of kube-apiserver: each server may write them in an encoding of its own.
	BuiltIn Class = "BuiltIn"
	// Custom resources follow their CustomResourceDefinition.
	Custom Class = "Custom"
	// Aggregated resources are served by a server behind the aggregator.
	Aggregated Class = "Aggregated"
)

// Presence tells whether a resource is served. What was not found out is PresenceUnknown, the zero value.
type Presence string

const (
	PresenceUnknown Presence = ""
	// Served: at least one server serves the resource.
	Served Presence = "Served"
	// NotServed: all servers were seen, and none serves the resource. Objects may be stored all the same.
	NotServed Presence = "NotServed"
	// Deleted: the definition of a custom resource was deleted, and its objects with it.
	Deleted Presence = "Deleted"
)

// Observation is what is known at one moment of the encodings that the servers write one resource in.
type Observation struct {
	Resource schema.GroupResource
	Time     time.Time
	Class    Class
	Presence Presence
	// Problem is why the observation is not complete: something that may write the resource was not seen. Nil if it is.
	Problem *Problem
	// Looked is when the source was last read in full, or Time where it is watched. Zero if it never was.
	Looked time.Time
	// Confirmed is from when on the last sighting counts for sure as one of the processes that live. A process answers before
	// its Lease is known: a look at one that crashed may have met the next. Zero if there can be no doubt.
	Confirmed time.Time
	// Unseen are server processes that live and were in no complete look, if the resource has to be seen by looking.
	Unseen []Server
	// Run is what was seen, oldest first, in a row in which nothing can have gone unseen except where a sighting says so.
	// It begins anew after each gap. The last sighting is the latest complete one; with a Problem it is out of date. It is
	// empty as long as there was none.
	Run []Sighting
	// Versions are the versions that are known behind hashes.
	Versions map[string]string
	// Served are the versions at which the resource is served, the preferred first.
	Served []string
	// SharedWith are other resources that are the same objects in the same storage.
	SharedWith []schema.GroupResource
	// SharedBy is the resource that stands for all that share the storage: the one that is migrated. It is Resource itself
	// where the storage is not shared.
	SharedBy schema.GroupResource
	// Expires says that objects vanish by themselves, and that a rewrite would prolong their life.
	Expires bool
}

// Sighting is one complete look at a resource.
type Sighting struct {
	// Evidence identifies what was seen. No two sightings of a run have the same FirstObservedTime.
	Evidence migrationv1alpha1.StorageEvidence
	// Writing are the hashes of the encodings that servers write, sorted. One means that they agree, none that nobody
	// writes.
	Writing []string
	// Unseen are processes that left before anybody asked them. They may have written anything, unless who keeps a record
	// asked them earlier.
	Unseen []Server
	// Stored are the hashes of Evidence.CustomResourceDefinition.StoredVersions, in that order.
	Stored []string
}

// Problem is why an observation is not complete.
type Problem struct {
	// Reason is one of the reasons of the Agreed condition.
	Reason string
	// Message tells a person what is missing and what to do.
	Message string
	// Since is when the problem began.
	Since time.Time
}

// Last returns the latest complete sighting.
func (o *Observation) Last() (Sighting, bool) {
	if len(o.Run) == 0 {
		return Sighting{}, false
	}
	return o.Run[len(o.Run)-1], true
}
