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
)

// sharing knows which resources are the same objects in the same storage, as the events of two API groups are. It
// never forgets, because a server may serve only one of them later.
type sharing map[schema.GroupResource]resourceSet

// learn finds resources of one name that one server writes in one encoding.
func (s sharing) learn(look Look) {
	for _, document := range look.Documents {
		for resource, r := range document.Resources {
			for other, o := range document.Resources {
				if r.Hash != "" && r.Hash == o.Hash && resource.Resource == other.Resource && resource != other {
					s[resource] = s[resource].Union(sets.New(other))
				}
			}
		}
	}
}

// with returns the other resources that share the storage of a resource, in order.
func (s sharing) with(resource schema.GroupResource) []schema.GroupResource {
	return slices.SortedFunc(maps.Keys(s[resource]), compareResources)
}
