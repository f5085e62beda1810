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
	"errors"
	"net/http"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
)

// TestGarbageThatStays has an API server that refuses every write for an hour, one that takes 1.6 s for each list, so
// that no grace period ends, and an object that a finalizer keeps. Each costs few requests.
func TestGarbageThatStays(t *testing.T) {
	for name, test := range map[string]struct {
		deleted  bool
		lists    time.Duration
		answer   error
		maxLists int
		held     string
	}{
		"a finalizer keeps it": {deleted: true, maxLists: 61},
		"writes are refused": {
			answer:   apierrors.NewForbidden(schema.GroupResource{Resource: "storageversions"}, "a", nil),
			maxLists: 140, held: "refused",
		},
		"the API server is slow": {lists: 1600 * time.Millisecond, maxLists: 120, held: "gap"},
	} {
		t.Run(name, func(t *testing.T) {
			object := published("apps.deployments", entry("living", "v1"), entry("gone", "v1"))
			if test.deleted {
				object = terminating(published("apps.deployments", entry("gone", "v1")))
			}
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
				next, err := f.look()
				if err != nil || next == never {
					t.Fatalf("next look in %v, error %v", next, err)
				}
				f.clock.Step(max(next, minBackoff))
			}
			if lists > test.maxLists {
				t.Errorf("%d lists in an hour, want %d at most", lists, test.maxLists)
			}
			if test.held != "" && since(before, counters(t))["syncs_held_back_total "+test.held] == 0 {
				t.Errorf("no sync was held back because of %s", test.held)
			}
		})
	}
}

func TestWriteThatFailsDoesNotKeepBackTheRest(t *testing.T) {
	for name, answer := range map[string]error{
		"it fails":   apierrors.NewInternalError(errors.New("no")),
		"is refused": apierrors.NewForbidden(schema.GroupResource{}, "apps.a", errors.New("no")),
		// The API is off on this server. Another one has answered the list.
		"is not served": apierrors.NewGenericServerResponse(http.StatusNotFound, "delete",
			schema.GroupResource{}, "", "", 0, true),
	} {
		t.Run(name, func(t *testing.T) { testWriteThatFails(t, answer) })
	}
}

func testWriteThatFails(t *testing.T, answer error) {
	t.Helper()
	refused := withMarker(published("apps.a", entry("gone", "v1")))
	fine := withMarker(published("apps.b", entry("gone", "v1")))
	f := newFixture(t, refused, fine)
	f.cache(t, refused, fine)
	f.memory = memory{at: epoch, absentSince: missedSince(epoch.Add(-grace), "gone")}
	f.client.PrependReactor("delete", "storageversions", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.DeleteAction).GetName() == refused.Name {
			return true, nil, answer
		}
		return false, nil, nil
	})
	switch next, err := f.look(); {
	case controller.Refused(answer) && (err != nil || next != recheckInterval):
		t.Errorf("next look in %v, error %v", next, err)
	case !controller.Refused(answer) && !errors.Is(err, answer):
		t.Errorf("error %v", err)
	}
	_, err := f.client.InternalV1alpha1().StorageVersions().Get(f.ctx, fine.Name, metav1.GetOptions{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the other object is not deleted: %v", err)
	}
}

// TestRowOfRefusals has three syncs with refused writes behind it. Only a write that succeeds ends the row.
func TestRowOfRefusals(t *testing.T) {
	for name, test := range map[string]struct {
		verb, resource string
		answer         error
		want           int
	}{
		"a write succeeds":   {want: 0},
		"a write is refused": {"update", "storageversions", apierrors.NewForbidden(schema.GroupResource{}, "a", nil), 4},
		"a read fails":       {"get", "leases", apierrors.NewInternalError(errors.New("no")), 3},
	} {
		t.Run(name, func(t *testing.T) {
			object := withMarker(published("apps.a", entry("living", "v1"), entry("gone", "v1")))
			f := newFixture(t, object)
			f.cache(t, object, leaseOf("living"))
			f.memory = memory{at: epoch, absentSince: missedSince(epoch.Add(-grace), "gone"), refusals: 3}
			f.client.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
				return action.GetVerb() == test.verb && action.GetResource().Resource == test.resource, nil, test.answer
			})
			_, _ = f.look()
			if got := f.memory.refusals; got != test.want {
				t.Errorf("%d refusals are remembered, want %d", got, test.want)
			}
		})
	}
}
