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
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

// wave orders the resources whose migration is due and has to wait, because only so many migrations may be unfinished at
// a time. A first installation finds that everything is due; without a bound it would start everything at once.
//
// A resource that waits is granted a slot when it is the first of those that wait. The slot is its own until it takes it,
// which it does in its next sync, whatever comes of it: from then on it counts as a migration, if it became one.
type wave struct {
	waiting map[schema.GroupResource]int // the priority of each
	granted sets.Set[schema.GroupResource]
}

func newWave() *wave {
	return &wave{waiting: map[schema.GroupResource]int{}, granted: sets.New[schema.GroupResource]()}
}

// wait puts a resource among those that wait. The lower the priority, the earlier its turn.
func (w *wave) wait(resource schema.GroupResource, priority int) {
	w.waiting[resource] = priority
}

// take ends the waiting of a resource, and tells whether it was granted a slot.
func (w *wave) take(resource schema.GroupResource) bool {
	delete(w.waiting, resource)
	granted := w.granted.Has(resource)
	w.granted.Delete(resource)
	return granted
}

// grant hands out what is left of free slots after those that were granted and not taken yet. It returns the resources that
// got one, in order.
func (w *wave) grant(free int) []schema.GroupResource {
	free -= w.granted.Len()
	if free <= 0 || len(w.waiting) == 0 {
		return nil
	}
	first := w.ordered()
	first = first[:min(free, len(first))]
	for _, resource := range first {
		delete(w.waiting, resource)
		w.granted.Insert(resource)
	}
	return first
}

// size is how many resources have a migration due that they may not start yet.
func (w *wave) size() int {
	return len(w.waiting) + w.granted.Len()
}

func (w *wave) ordered() []schema.GroupResource {
	ordered := make([]schema.GroupResource, 0, len(w.waiting))
	for resource := range w.waiting {
		ordered = append(ordered, resource)
	}
	slices.SortFunc(ordered, func(a, b schema.GroupResource) int {
		return cmp.Or(cmp.Compare(w.waiting[a], w.waiting[b]), cmp.Compare(a.String(), b.String()))
	})
	return ordered
}
