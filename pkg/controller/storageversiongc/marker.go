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

package storageversiongc

import (
	"slices"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apiserver/pkg/storageversion"
)

// A precondition on the resourceVersion does not notice a server that comes back:
//
//  1. Server A stops and deletes its Lease. Its entry in the StorageVersion, at resourceVersion 7, is stale.
//  2. The controller reads resourceVersion 7, does not find the Lease, and decides to remove the entry.
//  3. A starts again on the same host, so it has the same identity. It registers its Lease and publishes its entry,
//     which is already there, word for word. The API server does not store an update that changes nothing, so the
//     object stays at resourceVersion 7.
//  4. The controller removes the entry. The precondition holds, and the object lacks a living server until that server
//     publishes again, which it does every ten minutes.
//
// Between 2 and 4 the controller may write to all other StorageVersions, under the rate limit of its client. That takes
// seconds, and an API server restarts in seconds. So before the controller removes an entry, it puts a marker into the
// object: its own reason and message in the AllEncodingVersionsEqual condition. A server that publishes computes the
// condition again. So while the marker is there every publication changes the object, and a removal after it fails:
//
//  1. The controller writes the marker. The object that it decided on is the precondition.
//  2. It reads everything again, first the StorageVersions and then the Leases. The object has the marker, at
//     resourceVersion 8.
//  3. The Lease is still missing. So the server can register, and publish, only after this read. Its publication meets
//     an object with the marker, or fails by its own precondition.
//  4. The controller removes the entry, with resourceVersion 8 as the precondition. This removes the marker as well,
//     because it computes the condition again.
//
// It does not matter who wrote the marker or when, as long as it was there before the Lease was found missing. If the
// controller crashes after step 1, its successor uses the marker or removes it, and a publication removes it as
// well. The marker changes neither the status of the condition nor commonEncodingVersion, so it misleads nobody.
const (
	markerReason  = "RemovingStaleEntries"
	markerMessage = "Entries of API servers whose identity Lease is gone are about to be removed"
)

func marked(object *apiserverinternalv1alpha1.StorageVersion) bool {
	return slices.ContainsFunc(object.Status.Conditions, func(c apiserverinternalv1alpha1.StorageVersionCondition) bool {
		return c.Type == apiserverinternalv1alpha1.AllEncodingVersionsEqual && c.Reason == markerReason
	})
}

// withMarker returns a copy with the status that a publication would give it, plus the marker.
func withMarker(object *apiserverinternalv1alpha1.StorageVersion) *apiserverinternalv1alpha1.StorageVersion {
	object = republished(object, nil)
	for i := range object.Status.Conditions {
		condition := &object.Status.Conditions[i]
		if condition.Type == apiserverinternalv1alpha1.AllEncodingVersionsEqual {
			condition.Reason, condition.Message = markerReason, markerMessage
		}
	}
	return object
}

// republished returns a copy without the entries of some servers, and with the status that a publication would give it.
// It has no marker.
func republished(
	object *apiserverinternalv1alpha1.StorageVersion, without []string,
) *apiserverinternalv1alpha1.StorageVersion {
	object = object.DeepCopy()
	object.Status.StorageVersions = withoutServers(object.Status.StorageVersions, without)
	storageversion.SetCommonEncodingVersion(object)
	return object
}
