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
)

// ownWrites remembers what this manager wrote last about each resource until a cache shows it, so that no decision is
// made on what is there no longer. Without it, a decision on epoch 3 could delete the migration of epoch 4, and each
// migration would be created twice, in vain the second time.
type ownWrites struct {
	cache versioned
	// last are resource versions.
	last map[schema.GroupResource]string
}

// versioned is a cache that knows which resource version it has come to.
type versioned interface{ LastStoreSyncResourceVersion() string }

func newOwnWrites(cache versioned) ownWrites {
	return ownWrites{cache: cache, last: map[schema.GroupResource]string{}}
}

func (w *ownWrites) wrote(resource schema.GroupResource, resourceVersion string) {
	w.last[resource] = resourceVersion
}

// visible reports whether the cache has come as far as the last write about the resource.
func (w *ownWrites) visible(resource schema.GroupResource) bool {
	written, wrote := w.last[resource]
	if !wrote {
		return true
	}
	// If the versions cannot be compared nothing is worth waiting for: preconditions still keep writes from doing harm.
	order, err := resourceversion.CompareResourceVersion(w.cache.LastStoreSyncResourceVersion(), written)
	if err == nil && order < 0 {
		return false
	}
	delete(w.last, resource)
	return true
}
