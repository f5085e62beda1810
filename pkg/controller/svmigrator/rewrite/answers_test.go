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
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// TestAnswersOfAnotherKind has a proxy answer every request with 200 and something else than what was asked for. None
// of it may count as the end of a list or as a rewrite.
func TestAnswersOfAnotherKind(t *testing.T) {
	for name, body := range map[string]string{
		"nothing":        `{}`,
		"null":           `null`,
		"a success":      `{"kind":"Status","apiVersion":"v1","status":"Success"}`,
		"a discovery":    `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"example.com/v1","resources":[]}`,
		"a table":        `{"kind":"Table","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"9"},"rows":[]}`,
		"a list of Pods": `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"9"},"items":[]}`,
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, body)
			}))
			defer server.Close()
			e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 500)
			if err != nil {
				t.Fatal(err)
			}
			w := e.newRewriter(Resource{GroupVersionResource: widgets.WithVersion("v1")}, "")
			if chunk, err := e.lister(w)(t.Context(), ""); err == nil {
				t.Errorf("it counts as the list %v", chunk)
			}
			object := &sweep.Object{Name: "w", UID: "u", ResourceVersion: "4"}
			w.keep(object, &metav1.PartialObjectMetadata{}, nil)
			if live, a := w.read(t.Context(), object); live != nil || a.outcome != sweep.NoOutcome {
				t.Errorf("it counts as the object %v, with the outcome %v", live, a.outcome)
			}
			if a := w.rewrite(t.Context(), object); a.outcome != sweep.NoOutcome {
				t.Errorf("a rewrite with a dry run has the outcome %v", a.outcome)
			}
			w.rehearsals.Store("", &rehearsed{way: mergeWay, next: math.MaxInt})
			if a := w.rewrite(t.Context(), object); a.outcome != sweep.NoOutcome {
				t.Errorf("a rewrite has the outcome %v", a.outcome)
			}
		})
	}
}

// TestWriteThatNobodyAnswers has a proxy end the connection whenever an object is written. If its reads are answered
// all the while, the object is the reason, and the runner gives up on it some time.
func TestWriteThatNobodyAnswers(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.Method == http.MethodPatch {
			panic(http.ErrAbortHandler)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1",`+
			`"metadata":{"name":"w","uid":"u","resourceVersion":"4"}}`)
	}))
	defer server.Close()
	e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 500)
	if err != nil {
		t.Fatal(err)
	}
	w := e.newRewriter(Resource{GroupVersionResource: widgets.WithVersion("v1")}, "")
	w.rehearsals.Store("", &rehearsed{way: mergeWay, next: math.MaxInt})
	for tries, want := range []failureKind{unreachable, unreachable, unreachable, internal} {
		object := &sweep.Object{Name: "w", UID: "u", ResourceVersion: "4", Tries: tries}
		w.keep(object, &metav1.PartialObjectMetadata{}, nil)
		if a := w.rewrite(t.Context(), object); a.outcome != sweep.NoOutcome || a.failure.kind != want {
			t.Errorf("after %d tries the failure is %v, want %v", tries, a.failure.kind, want)
		}
	}
}
