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

package rewrite

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

func TestDifference(t *testing.T) {
	const before = `{"metadata":{"name":"a","resourceVersion":"1"},"spec":{"list":[{"image":"x"}],"empty":{},"n":null}}`
	for name, test := range map[string]struct{ after, want, lost string }{
		"only the resource version": {
			`{"metadata":{"name":"a","resourceVersion":"2"},"spec":{"list":[{"image":"x"}],"empty":{},"n":null}}`, "", "",
		},
		"a label": {
			`{"metadata":{"name":"a","labels":{"l":"1"}},"spec":{"list":[{"image":"x"}],"empty":{},"n":null}}`,
			".metadata.labels", "",
		},
		"an item": {
			`{"metadata":{"name":"a"},"spec":{"list":[{"image":"y"}],"empty":{},"n":null}}`,
			".spec.list[0].image", ".spec.list[0].image",
		},
		"a field of an item": {
			`{"metadata":{"name":"a"},"spec":{"list":[{"image":"x","tag":1}],"empty":{},"n":null}}`, ".spec.list[0].tag", "",
		},
		"another item": {
			`{"metadata":{"name":"a"},"spec":{"list":[{"image":"x"},{}],"empty":{},"n":null}}`,
			".spec.list[1]", ".spec.list[1]",
		},
		"a field less": {
			`{"metadata":{"name":"a"},"spec":{"list":[{"image":"x"}],"n":null}}`, ".spec.empty", ".spec.empty",
		},
		"a null less": {`{"metadata":{"name":"a"},"spec":{"list":[{"image":"x"}],"empty":{}}}`, "", ".spec.n"},
		"another shape": {
			`{"metadata":{"name":"a"},"spec":{"list":{"image":"x"},"empty":{},"n":null}}`, ".spec.list", ".spec.list",
		},
		"what resourceVersion is elsewhere": {
			`{"metadata":{"name":"a"},"spec":{"list":[{"image":"x"}],"empty":{},"n":null,"resourceVersion":"2"}}`,
			".spec.resourceVersion", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, errA := (&whole{json: []byte(before)}).tree()
			b, errB := (&whole{json: []byte(test.after)}).tree()
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			if got, differs := difference(a, b, false); got != test.want || differs != (got != "") {
				t.Errorf("the difference is at %q (%t), want %q", got, differs, test.want)
			}
			if got, differs := difference(a, b, true); got != test.lost || differs != (got != "") {
				t.Errorf("the loss is at %q (%t), want %q", got, differs, test.lost)
			}
		})
	}
}

// TestLongListsNeedLittleMemory compares lists as long as etcd allows. Whoever may create custom resources can have
// such lists.
func TestLongListsNeedLittleMemory(t *testing.T) {
	const items, bytesForItem = 700_000, 100
	list := func() any { return map[string]any{"spec": slices.Repeat([]any{int64(1)}, items)} }
	before, after := list(), list()
	var began, ended runtime.MemStats
	runtime.ReadMemStats(&began)
	for _, onlyLosses := range []bool{false, true} {
		if path, differs := difference(before, after, onlyLosses); differs {
			t.Errorf("equal lists differ at %q", path)
		}
	}
	runtime.ReadMemStats(&ended)
	if n := (ended.TotalAlloc - began.TotalAlloc) / items; n > bytesForItem {
		t.Errorf("two comparisons have allocated %d bytes for each item, want at most %d", n, bytesForItem)
	}
}

// TestDeepObjectsNeedLittleMemory compares fields that are as deep as etcd allows, with long names.
func TestDeepObjectsNeedLittleMemory(t *testing.T) {
	const depth = 3000
	name := strings.Repeat("n", 350)
	deep := func(value any) any {
		for range depth {
			value = map[string]any{name: value}
		}
		return value
	}
	before, after := deep("a"), deep("b")
	var began, ended runtime.MemStats
	runtime.ReadMemStats(&began)
	if path, differs := difference(before, deep("a"), false); differs {
		t.Errorf("equal objects differ at %q", path)
	}
	runtime.ReadMemStats(&ended)
	if n := (ended.TotalAlloc - began.TotalAlloc) >> 20; n > 50 {
		t.Errorf("the comparison has allocated %d MiB", n)
	}
	if path, _ := difference(before, after, false); len(path) != maxPath || !strings.HasPrefix(path, "."+name[:100]) {
		t.Errorf("the path is %q", path)
	}
}

// TestFieldsLikeMetadata has fields that differ from those of each object only in their case.
func TestFieldsLikeMetadata(t *testing.T) {
	const like = `{"kind":"W","metadata":{"uid":"u","managedFields":[{}]},"Kind":{},"Metadata":"m","apiversion":3}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, like)
	}))
	defer server.Close()
	e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 500, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := e.newRewriter(Resource{GroupVersionResource: widgets.WithVersion("v1")}, "")
	if object, err := w.getAt(t.Context(), &sweep.Object{Name: "w"}, "v1"); err != nil || len(object.ManagedFields) != 1 {
		t.Errorf("%+v, %v", object, err)
	}
}

// TestManyOwners has as many owners as etcd allows. Whoever may write an object can list them.
func TestManyOwners(t *testing.T) {
	owners := make([]metav1.OwnerReference, 0, 75_000)
	for i := range cap(owners) {
		owners = append(owners, metav1.OwnerReference{Name: fmt.Sprint(i / 2), Controller: new(false)})
	}
	if n := len(distinct(owners)); n != len(owners)/2 {
		t.Errorf("%d owners are distinct, want %d", n, len(owners)/2)
	}
}

// TestEqualObjectsNeedLittleMemory compares an object of many small parts with what a dry run answers.
func TestEqualObjectsNeedLittleMemory(t *testing.T) {
	object := func(version string) *whole {
		return &whole{json: fmt.Appendf(nil, `{"metadata":{"name":"w","resourceVersion":%q,"managedFields":[{"time":%q}]},`+
			`"spec":{"ingress":[{"from":[%s{}]}]}}`, version, version, strings.Repeat("{},", 1_000_000))}
	}
	before, after := object("1"), object("2")
	var began, ended runtime.MemStats
	runtime.ReadMemStats(&began)
	if !sameJSON(before, after) {
		t.Error("equal objects differ")
	}
	runtime.ReadMemStats(&ended)
	if n := int(ended.TotalAlloc-began.TotalAlloc) / len(before.json); n > 4 {
		t.Errorf("the comparison has allocated %d bytes for each byte of JSON", n)
	}
	other := object("3")
	other.json = slices.Concat(other.json[:len(other.json)-2], []byte(`,"egress":[]}}`))
	if sameJSON(before, other) {
		t.Error("objects with different fields are equal")
	}
}

// TestOneComparisonAtATime has another migration compare trees. An object that no dry run changes does not wait for it.
func TestOneComparisonAtATime(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		color := request.Method
		if strings.Contains(request.URL.Path, "same") {
			color = ""
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"name":"w","uid":"u",`+
			`"resourceVersion":"4"},"spec":{"color":%q}}`, color)
	}))
	defer server.Close()
	e, err := NewEngine(&rest.Config{Host: server.URL, QPS: -1}, nil, clock.RealClock{}, 500, 0)
	if err != nil {
		t.Fatal(err)
	}
	changes := func(name string) (changed string) {
		w := e.newRewriter(Resource{GroupVersionResource: widgets.WithVersion("v1")}, "")
		object := &sweep.Object{Name: name, ResourceVersion: "4", Extra: &original{}}
		_, changed, err := w.chooseWay(t.Context(), object, false)
		if err != nil {
			t.Error(err)
		}
		return changed
	}
	e.trees.Lock()
	different := make(chan string)
	go func() { different <- changes("different") }()
	if changed := changes("same"); changed != "" {
		t.Errorf("%s changes", changed)
	}
	select {
	case <-different:
		t.Error("two comparisons run at the same time")
	case <-time.After(200 * time.Millisecond):
	}
	e.trees.Unlock()
	if changed := <-different; changed != ".spec.color" {
		t.Errorf("%q changes", changed)
	}
}
