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
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// TestRoundedIntegers has a rule round an integer that a float64 cannot hold.
func TestRoundedIntegers(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		big := int64(1)<<53 + 1
		if request.Method == http.MethodPatch {
			big--
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"name":"w","uid":"u",`+
			`"resourceVersion":"4"},"spec":{"big":%d}}`, big)
	}))
	defer server.Close()
	e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 500, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := e.newRewriter(Resource{GroupVersionResource: widgets.WithVersion("v1")}, "")
	object := &sweep.Object{Name: "w", UID: "u", ResourceVersion: "4"}
	w.keepOriginal(object, &metav1.PartialObjectMetadata{}, nil)
	a := w.rewrite(t.Context(), object)
	if a.failure.kind != changesObject || !strings.Contains(a.failure.message, ".spec.big") {
		t.Errorf("the failure is %v", a.failure)
	}
}

// TestRewriteThatOwnsFields has an API server make the manager an owner of a field whose value is the same afterwards.
// So it does with a default that reads show anyway. Cleaning of managedFields may add an entry of another kind.
func TestRewriteThatOwnsFields(t *testing.T) {
	for operation, want := range map[metav1.ManagedFieldsOperationType]failureKind{
		metav1.ManagedFieldsOperationUpdate: changesObject, metav1.ManagedFieldsOperationApply: {},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
			kind := metav1.TypeMeta{Kind: "Widget", APIVersion: "example.com/v1"}
			if strings.Contains(request.Header.Get("Accept"), "PartialObjectMetadata") {
				kind = metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: "meta.k8s.io/v1"}
			}
			entries := []metav1.ManagedFieldsEntry{{Manager: "kubectl", Operation: metav1.ManagedFieldsOperationUpdate}}
			if request.Method == http.MethodPatch {
				entries = append(entries, metav1.ManagedFieldsEntry{
					Manager: controller.MigratorFieldManager, Operation: operation,
				})
			}
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(&metav1.PartialObjectMetadata{
				TypeMeta:   kind,
				ObjectMeta: metav1.ObjectMeta{Name: "w", UID: "u", ResourceVersion: "4", ManagedFields: entries},
			})
		}))
		e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 500, 0)
		if err != nil {
			t.Fatal(err)
		}
		w := e.newRewriter(Resource{GroupVersionResource: widgets.WithVersion("v1")}, "")
		object := &sweep.Object{Name: "w", UID: "u", ResourceVersion: "4"}
		w.keepOriginal(object, &metav1.PartialObjectMetadata{}, nil)
		if a := w.rewrite(t.Context(), object); a.failure.kind != want {
			t.Errorf("%s: the failure is %v", operation, a.failure)
		}
		server.Close()
	}
}

// TestDefaultsWithoutDryRuns has a webhook that supports no dry runs. Nothing shows whether a merge patch adds
// defaults, so none is sent.
func TestDefaultsWithoutDryRuns(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case request.Method == http.MethodGet:
			_, _ = fmt.Fprint(w, `{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"name":"w","uid":"u",`+
				`"resourceVersion":"4"}}`)
		case request.URL.Query().Has("dryRun"):
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"BadRequest","code":400,`+
				`"message":"admission webhook \"w\" does not support dry run"}`)
		default:
			t.Errorf("a rewrite without a dry run: %s", request.URL)
		}
	}))
	defer server.Close()
	e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 500, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := e.newRewriter(Resource{
		GroupVersionResource: widgets.WithVersion("v1"), Schemas: &documents.Schemas{AddsDefaults: true},
	}, "")
	object := &sweep.Object{Name: "w", UID: "u", ResourceVersion: "4"}
	w.keepOriginal(object, &metav1.PartialObjectMetadata{}, nil)
	if a := w.rewrite(t.Context(), object); a.outcome != sweep.Denied {
		t.Errorf("the outcome is %v, the failure %v", a.outcome, a.failure)
	}
}

// TestStatusWithoutDryRuns has a rule that changes objects, and a webhook of their status that supports no dry runs.
func TestStatusWithoutDryRuns(t *testing.T) {
	const widget = `{"kind":"Widget","apiVersion":"example.com/v1","metadata":{"name":"w","uid":"u",` +
		`"resourceVersion":"4"},"spec":{"color":%q}}`
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case request.Method == http.MethodGet:
			_, _ = fmt.Fprintf(w, widget, "red")
		case !request.URL.Query().Has("dryRun"):
			t.Errorf("a rewrite that changes the object: %s", request.URL)
		case strings.HasSuffix(request.URL.Path, "/status"):
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"BadRequest","code":400,`+
				`"message":"admission webhook \"w\" does not support dry run"}`)
		default:
			_, _ = fmt.Fprintf(w, widget, "blue")
		}
	}))
	defer server.Close()
	e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 500, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := e.newRewriter(Resource{GroupVersionResource: widgets.WithVersion("v1"), MayUseStatus: true}, "")
	object := &sweep.Object{Name: "w", UID: "u", ResourceVersion: "4"}
	w.keepOriginal(object, &metav1.PartialObjectMetadata{}, nil)
	if a := w.rewrite(t.Context(), object); a.failure.kind != changesObject {
		t.Errorf("the outcome is %v, the failure %v", a.outcome, a.failure)
	}
}

// TestWholeObjectsInMemory chooses the ways of many namespaces at once. Each read lasts until as many as may be are
// under way.
func TestWholeObjectsInMemory(t *testing.T) {
	var reads atomic.Int32
	answer := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.Method == http.MethodGet {
			reads.Add(1)
			<-answer
			reads.Add(-1)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprint(w, `{"kind":"Widget","apiVersion":"example.com/v1",`+
			`"metadata":{"name":"w","uid":"u","resourceVersion":"4"}}`)
	}))
	defer server.Close()
	e, err := NewEngine(&rest.Config{Host: server.URL, QPS: -1}, nil, clock.RealClock{}, 500, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := e.newRewriter(Resource{GroupVersionResource: widgets.WithVersion("v1")}, "")
	var choices sync.WaitGroup
	for i := range 3 * maxComparedObjects {
		choices.Go(func() {
			object := &sweep.Object{Namespace: fmt.Sprint(i), Name: "w", ResourceVersion: "4", Extra: &original{}}
			if _, changed, err := w.chooseWay(t.Context(), object, false); changed != "" || err != nil {
				t.Errorf("it changes %q, %v", changed, err)
			}
		})
	}
	for reads.Load() < maxComparedObjects {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(200 * time.Millisecond) // Others may come.
	if n := reads.Load(); n != maxComparedObjects {
		t.Errorf("%d objects are read at a time, want %d", n, maxComparedObjects)
	}
	close(answer)
	choices.Wait()
}

func TestFingerprint(t *testing.T) {
	meta := func(change func(*metav1.ObjectMeta)) fingerprint {
		m := &metav1.ObjectMeta{
			Generation: 3, Labels: map[string]string{"a": "1", "b": "2"}, Annotations: map[string]string{"c": "3"},
			Finalizers: []string{"f"}, OwnerReferences: []metav1.OwnerReference{{Name: "o"}}, ResourceVersion: "1",
		}
		change(m)
		return fingerprintOf(m)
	}
	before := meta(func(*metav1.ObjectMeta) {})
	for want, change := range map[string]func(*metav1.ObjectMeta){
		"":                          func(m *metav1.ObjectMeta) { m.ResourceVersion = "2" },
		".metadata.labels":          func(m *metav1.ObjectMeta) { m.Labels["a"] = "2" },
		".metadata.annotations":     func(m *metav1.ObjectMeta) { m.Annotations = nil },
		".metadata.finalizers":      func(m *metav1.ObjectMeta) { m.Finalizers = append(m.Finalizers, "g") },
		".metadata.ownerReferences": func(m *metav1.ObjectMeta) { m.OwnerReferences[0].Name = "p" },
		"what .metadata.generation counts, the spec for most resources": func(m *metav1.ObjectMeta) { m.Generation++ },
	} {
		if got := before.firstDifference(meta(change)); got != want {
			t.Errorf("what differs is %q, want %q", got, want)
		}
	}
	twice := meta(func(m *metav1.ObjectMeta) { m.OwnerReferences = slices.Repeat(m.OwnerReferences, 2) })
	if got := before.firstDifference(twice); got != "" {
		t.Errorf("an owner that is listed twice makes a difference: %q", got)
	}
}

// TestAdviceWhereTheFenceRefuses wants the advice to fit why a rewrite is no no-op.
func TestAdviceWhereTheFenceRefuses(t *testing.T) {
	const rule, component = "A mutating webhook", "The fence refuses to let this manager clean managedFields"
	for want, before := range map[string]*original{
		rule:      {},
		component: {cleaned: []metav1.ManagedFieldsEntry{{Manager: "a"}}},
		"API servers before 1.37 remove all managedFields": {namesUndefinedVersion: true},
	} {
		failure := (&rewriter{}).changeFailure(&sweep.Object{Name: "a", Extra: before}, "would change", fencedOff)
		if _, advice, _ := strings.Cut(failure.message, fencedOff+". "); !strings.HasPrefix(advice, want) {
			t.Errorf("the advice is %q, want %q", advice, want)
		}
	}
}
