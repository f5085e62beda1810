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

// learnCohabitants finds resources that are the same objects: one server writes resources of the same name in the same
// encoding. That is never forgotten, for a server may serve one of them only.
func (l *Ledger) learnCohabitants(look Look) {
	for _, document := range look.Documents {
		byNameAndHash := map[[2]string]sets.Set[schema.GroupResource]{}
		for resource, r := range document.Resources {
			if r.Hash == "" {
				continue
			}
			key := [2]string{resource.Resource, r.Hash}
			if byNameAndHash[key] == nil {
				byNameAndHash[key] = sets.Set[schema.GroupResource]{}
			}
			byNameAndHash[key].Insert(resource)
		}
		for _, same := range byNameAndHash {
			for resource := range same {
				if same.Len() > 1 {
					l.cohabitants[resource] = same.Union(l.cohabitants[resource]).Delete(resource)
				}
			}
		}
	}
}

// addShared names the resources that are the same objects, and the one of them that is migrated.
func (l *Ledger) addShared(o *Observation) {
	o.SharedWith = slices.SortedFunc(maps.Keys(l.cohabitants[o.Resource]), compareResources)
	for _, other := range o.SharedWith {
		for v := range l.builtin[other].candidates {
			groupVersion := schema.GroupVersion{Group: other.Group, Version: v}
			o.Versions[Hash(groupVersion, l.builtin[other].kind)] = groupVersion.String()
		}
	}
	last, ok := o.Last()
	if !ok || len(last.Writing) != 1 {
		return
	}
	// The group that the objects are stored in is the one that stays when the others are served no longer.
	stored, _ := schema.ParseGroupVersion(o.Versions[last.Writing[0]])
	for _, other := range o.SharedWith {
		switch {
		case o.SharedBy.Group == stored.Group:
		case other.Group == stored.Group, compareResources(other, o.SharedBy) < 0:
			o.SharedBy = other
		}
	}
}
