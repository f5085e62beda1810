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
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apiserver/pkg/storageversion"
)

// A precondition on the resourceVersion does not notice a server that comes back:
//
//  1. Server A stops and deletes its Lease. Its entry in the StorageVersion, at resourceVersion 7, is stale.
//  2. We read resourceVersion 7, then miss the Lease, and decide to remove the entry.
//  3. A starts again: the same host, hence the same identity. It registers its Lease and publishes its entry, which is
//     there already, word for word. The API server stores no update that changes nothing: resourceVersion 7 it stays.
//  4. We remove the entry. The precondition holds, and a living server is missing from the object until it publishes
//     again, which it does every ten minutes.
//
// Between 2 and 4 lie as many writes as there are StorageVersions, under a client's rate limit: seconds, while an API
// server restarts. So before an entry goes the object is given a fence: the reason and message of its
// AllEncodingVersionsEqual condition are set to ours. Whoever publishes computes the condition anew, so that with the
// fence up every publication changes the object, and a removal that comes after it fails. The order of things is:
//
//  1. The fence is written, preconditioned on what was decided on.
//  2. All is read again, the StorageVersions first and then the Leases. The object has the fence at resourceVersion 8.
//  3. The Lease is missing still. So any registration, and any publication after it, comes later than this reading, and
//     works on an object that has the fence, or loses the race with us by its own precondition.
//  4. The entry goes, preconditioned on resourceVersion 8, and the fence with it, as the condition is computed anew.
//
// Who wrote the fence, and when, does not matter: what counts is that it was there before the Lease was missing. A
// controller that crashes after step 1 leaves one that its successor uses or takes down, and a publication takes it down
// by itself. Neither the condition's status nor commonEncodingVersion changes, so that nobody is misled meanwhile.
const (
	fenceReason  = "RemovingStaleEntries"
	fenceMessage = "Entries of API servers whose identity Lease is gone are about to be removed"
)

func fenced(object *apiserverinternalv1alpha1.StorageVersion) bool {
	for _, condition := range object.Status.Conditions {
		if condition.Type == apiserverinternalv1alpha1.AllEncodingVersionsEqual {
			return condition.Reason == fenceReason
		}
	}
	return false
}

// withFence returns a copy whose status is what a publication would make it, except for the fence.
func withFence(object *apiserverinternalv1alpha1.StorageVersion) *apiserverinternalv1alpha1.StorageVersion {
	object = withoutFence(object)
	for i := range object.Status.Conditions {
		if condition := &object.Status.Conditions[i]; condition.Type == apiserverinternalv1alpha1.AllEncodingVersionsEqual {
			condition.Reason, condition.Message = fenceReason, fenceMessage
		}
	}
	return object
}

// withoutFence returns a copy whose status is what a publication would make it.
func withoutFence(object *apiserverinternalv1alpha1.StorageVersion) *apiserverinternalv1alpha1.StorageVersion {
	object = object.DeepCopy()
	storageversion.SetCommonEncodingVersion(object)
	return object
}
