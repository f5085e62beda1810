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
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

func TestWave(t *testing.T) {
	a, b, c := schema.GroupResource{Resource: "a"}, schema.GroupResource{Resource: "b"}, schema.GroupResource{Resource: "c"}
	type resources = []schema.GroupResource
	for name, tc := range map[string]struct {
		before func(w *wave)
		free   int
		want   resources
		size   int
	}{
		"nobody waits": {
			before: func(*wave) {}, free: 4,
		},
		"the order is that of names where priorities are equal": {
			before: func(w *wave) { w.wait(c, 1); w.wait(a, 1); w.wait(b, 1) },
			free:   2, want: resources{a, b}, size: 3,
		},
		"a lower priority comes first": {
			before: func(w *wave) { w.wait(a, 2); w.wait(b, 1); w.wait(c, 0) },
			free:   4, want: resources{c, b, a}, size: 3,
		},
		"the latest priority counts": {
			before: func(w *wave) { w.wait(a, 0); w.wait(b, 1); w.wait(a, 2) },
			free:   1, want: resources{b}, size: 2,
		},
		"no slot is free": {
			before: func(w *wave) { w.wait(a, 0) },
			free:   0, size: 1,
		},
		"more migrations are unfinished than may be": {
			before: func(w *wave) { w.wait(a, 0) },
			free:   -3, size: 1,
		},
		"a slot that was granted is not free until it is taken": {
			before: func(w *wave) { w.wait(a, 0); w.wait(b, 1); w.grant(1) },
			free:   1, size: 2,
		},
		"a slot that was taken and came to nothing is free": {
			before: func(w *wave) { w.wait(a, 0); w.wait(b, 1); w.grant(1); w.take(a) },
			free:   1, want: resources{b}, size: 1,
		},
		"who does not wait any more gets nothing": {
			before: func(w *wave) { w.wait(a, 0); w.wait(b, 1); w.take(a) },
			free:   1, want: resources{b}, size: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWave()
			tc.before(w)
			if diff := cmp.Diff(tc.want, w.grant(tc.free)); diff != "" {
				t.Errorf("granted (-want +got):\n%s", diff)
			}
			if w.size() != tc.size {
				t.Errorf("%d are waiting, want %d", w.size(), tc.size)
			}
		})
	}
}

func TestSlotIsTakenOnce(t *testing.T) {
	w, a := newWave(), schema.GroupResource{Resource: "a"}
	w.wait(a, 0)
	if w.take(a) {
		t.Error("took a slot that was never granted")
	}
	w.wait(a, 0)
	w.grant(1)
	if !w.take(a) || w.take(a) {
		t.Error("a granted slot is to be taken once")
	}
}

// TestWaveProperties plays a controller: resources become due and cease to be, take their slots, use them or not, and
// their migrations end.
func TestWaveProperties(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		limit := 1 + random.IntN(5)
		w := newWave()
		due := map[schema.GroupResource]int{}
		granted, running := sets.New[schema.GroupResource](), sets.New[schema.GroupResource]()
		for range 200 {
			resource := schema.GroupResource{Resource: fmt.Sprintf("r%02d", random.IntN(30))}
			switch random.IntN(4) {
			case 0, 1: // a sync that finds a migration due
				if running.Has(resource) {
					break
				}
				if got := w.take(resource); got != granted.Has(resource) {
					t.Fatalf("%v has a slot: %t, want %t", resource, got, granted.Has(resource))
				}
				delete(due, resource)
				if granted.Has(resource) {
					granted.Delete(resource)
					running.Insert(resource)
					break
				}
				due[resource] = random.IntN(3)
				w.wait(resource, due[resource])
			case 2: // a sync that finds nothing due
				w.take(resource)
				granted.Delete(resource)
				delete(due, resource)
			case 3: // a migration ends
				running.Delete(resource)
			}
			got := w.grant(limit - running.Len())
			checkGrant(t, limit, due, granted, running, got)
			for _, next := range got {
				granted.Insert(next)
				delete(due, next)
			}
			if w.size() != len(due)+granted.Len() {
				t.Fatalf("%d wait, want %d", w.size(), len(due)+granted.Len())
			}
		}
		checkNobodyStarves(t, w, limit, due, granted)
	}
}

// checkGrant compares with the obvious: as many as there is room for, and nobody is passed over.
func checkGrant(t *testing.T, limit int, due map[schema.GroupResource]int, granted, running sets.Set[schema.GroupResource], got []schema.GroupResource) {
	t.Helper()
	room := max(0, limit-running.Len()-granted.Len())
	if want := min(room, len(due)); len(got) != want {
		t.Fatalf("granted %d slots of %d, with %d running, %d granted and %d waiting", len(got), limit, running.Len(), granted.Len(), len(due))
	}
	earlier := func(a, b schema.GroupResource) bool {
		return due[a] < due[b] || (due[a] == due[b] && a.Resource < b.Resource)
	}
	for i, next := range got {
		if _, waits := due[next]; !waits {
			t.Fatalf("%v was granted a slot and does not wait", next)
		}
		if i > 0 && !earlier(got[i-1], next) {
			t.Fatalf("%v is out of order", got)
		}
		for other := range due {
			if !slices.Contains(got, other) && earlier(other, next) {
				t.Fatalf("%v was passed over for %v", other, next)
			}
		}
	}
}

// checkNobodyStarves lets every migration end, with nobody new: all of them have their turn.
func checkNobodyStarves(t *testing.T, w *wave, limit int, due map[schema.GroupResource]int, granted sets.Set[schema.GroupResource]) {
	t.Helper()
	for resource := range granted {
		w.take(resource)
	}
	left := len(due)
	for rounds := 0; left > 0; rounds++ {
		if rounds > len(due) {
			t.Fatalf("%d never had their turn", left)
		}
		for _, next := range w.grant(limit) {
			w.take(next)
			left--
		}
	}
}
