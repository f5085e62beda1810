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
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
)

// TestGarbageThatStays has an API server that refuses every write for an hour, and one that takes 1.6 s for each list,
// so that no grace period ends. Each gets few requests.
func TestGarbageThatStays(t *testing.T) {
	for name, test := range map[string]struct {
		lists    time.Duration
		answer   error
		maxLists int
		held     string
	}{
		"writes are refused": {
			answer:   apierrors.NewForbidden(schema.GroupResource{Resource: "storageversions"}, "a", nil),
			maxLists: 110, held: "refused",
		},
		"the API server is slow": {lists: 1600 * time.Millisecond, maxLists: 120, held: "gap"},
	} {
		t.Run(name, func(t *testing.T) {
			object := published("apps.deployments", entry("living", "v1"), entry("gone", "v1"))
			f := newFixture(t, object)
			f.cache(t, object, leaseOf("living"))
			lists := 0
			f.client.PrependReactor("list", "storageversions", func(clienttesting.Action) (bool, runtime.Object, error) {
				lists++
				f.clock.Step(test.lists)
				return false, nil, nil
			})
			f.client.PrependReactor("update", "storageversions", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, test.answer
			})
			before := counters(t)
			for end := f.clock.Now().Add(time.Hour); f.clock.Now().Before(end); {
				next, err := f.sync(f.ctx)
				if err != nil || next == never {
					t.Fatalf("next look in %v, error %v", next, err)
				}
				f.clock.Step(max(next, minBackoff))
			}
			if lists > test.maxLists {
				t.Errorf("%d lists in an hour, want %d at most", lists, test.maxLists)
			}
			if since(before, counters(t))["syncs_held_back_total "+test.held] == 0 {
				t.Errorf("no sync was held back because of %s", test.held)
			}
		})
	}
}
