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

package svmtrigger

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// ownWrites keeps what this process wrote last to each StorageState until the cache has caught up with it. Without it:
//
//  1. A sync records epoch 4, in which the servers write v2.
//  2. The next sync comes before the watch has delivered that. It finds epoch 3 in the cache, and v1.
//  3. It decides that a migration to v1 is due. The API server would stop it where a precondition does, but not everything
//     that follows from a decision is a write to the state: a migration would be deleted, a slot handed out.
//
// Resource versions of custom resources come from one counter, so that the newer of two objects can be told.
type ownWrites struct {
	last map[schema.GroupResource]ownWrite
}

type ownWrite struct {
	// state is what was stored, nil after a deletion.
	state *migrationv1alpha1.StorageState
	// resourceVersion is that of state, or of the object that was deleted.
	resourceVersion string
}

func newOwnWrites() *ownWrites {
	return &ownWrites{last: map[schema.GroupResource]ownWrite{}}
}

func (w *ownWrites) stored(resource schema.GroupResource, state *migrationv1alpha1.StorageState) {
	w.last[resource] = ownWrite{state: state, resourceVersion: state.ResourceVersion}
}

func (w *ownWrites) deleted(resource schema.GroupResource, state *migrationv1alpha1.StorageState) {
	w.last[resource] = ownWrite{resourceVersion: state.ResourceVersion}
}

// newest returns the state as it was written last, or the cached one if that is not older. cacheVersion is the resource
// version that the whole cache has reached, empty if that is not known.
func (w *ownWrites) newest(resource schema.GroupResource, cached *migrationv1alpha1.StorageState, cacheVersion string) *migrationv1alpha1.StorageState {
	own, wrote := w.last[resource]
	if !wrote {
		return cached
	}
	if own.caughtUp(cached, cacheVersion) {
		delete(w.last, resource)
		return cached
	}
	return own.state
}

func (o ownWrite) caughtUp(cached *migrationv1alpha1.StorageState, cacheVersion string) bool {
	if o.state == nil {
		// The deletion has a resource version that nobody told us. The object is gone from the cache, or replaced, or kept by
		// a finalizer and marked.
		return cached == nil || !atLeast(o.resourceVersion, cached.ResourceVersion)
	}
	// Without the version of the cache, a state that somebody deleted right after we wrote it would be waited for for ever.
	return atLeast(cacheVersion, o.resourceVersion) || (cached != nil && atLeast(cached.ResourceVersion, o.resourceVersion))
}

// atLeast is false where the two cannot be compared.
func atLeast(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order >= 0
}
