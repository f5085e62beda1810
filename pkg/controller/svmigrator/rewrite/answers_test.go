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
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
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
			e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 500, 0)
			if err != nil {
				t.Fatal(err)
			}
			w := e.newRewriter(Resource{GroupVersionResource: widgets.WithVersion("v1")}, "")
			if chunk, err := e.lister(w, new(int64))(t.Context(), ""); err == nil {
				t.Errorf("it counts as the list %v", chunk)
			}
			object := &sweep.Object{Name: "w", UID: "u", ResourceVersion: "4"}
			w.keepOriginal(object, &metav1.PartialObjectMetadata{}, nil)
			if live, a := w.read(t.Context(), object); live != nil || a.outcome != sweep.NoOutcome {
				t.Errorf("it counts as the object %v, with the outcome %v", live, a.outcome)
			}
			if a := w.rewrite(t.Context(), object); a.outcome != sweep.NoOutcome {
				t.Errorf("a rewrite with a dry run has the outcome %v", a.outcome)
			}
			w.waysByNamespace.Store("", &namespaceWay{way: mergeWay, next: math.MaxInt})
			if a := w.rewrite(t.Context(), object); a.outcome != sweep.NoOutcome {
				t.Errorf("a rewrite has the outcome %v", a.outcome)
			}
		})
	}
}

// TestObjectThatIsCutOff has something in between refuse all requests about one object. The API server answers lists
// all the while, so the object is the reason, and the runner gives up on it some time.
func TestObjectThatIsCutOff(t *testing.T) {
	for name, test := range map[string]struct {
		refuse      http.HandlerFunc
		kind, after failureKind
	}{
		"nobody answers": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, unreachable, internal},
		"a page": {func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no", http.StatusForbidden)
		}, unreachable, internal},
		"a 404 about nothing": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure",`+
				`"code":404,"reason":"NotFound"}`)
		}, resourceGone, internal},
		// So an API server answers if it serves another version, but not the one at which fields would be lost any more. The
		// run has to end, because the next one asks which versions are served.
		"the page of an API server": {http.NotFound, resourceGone, resourceGone},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
				if strings.HasSuffix(request.URL.Path, "/w") {
					test.refuse(w, request)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1"}`)
			}))
			defer server.Close()
			e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 500, 0)
			if err != nil {
				t.Fatal(err)
			}
			w := e.newRewriter(Resource{GroupVersionResource: widgets.WithVersion("v1")}, "")
			w.waysByNamespace.Store("", &namespaceWay{way: mergeWay, next: math.MaxInt})
			for tries, want := range []failureKind{test.kind, test.kind, test.kind, test.after} {
				for _, version := range []string{"4", ""} {
					object := &sweep.Object{Name: "w", UID: "u", ResourceVersion: version, Tries: tries}
					w.keepOriginal(object, &metav1.PartialObjectMetadata{}, nil)
					if a := w.rewrite(t.Context(), object); a.outcome != sweep.NoOutcome || a.failure.kind != want {
						t.Errorf("after %d tries the failure is %v, want %v", tries, a.failure.kind.name, want.name)
					}
				}
			}
		})
	}
}

// TestFailuresOfAggregatedServers wants the pacer, which all migrations share, to learn of no failure that is that of
// the server behind the API server.
func TestFailuresOfAggregatedServers(t *testing.T) {
	const status = `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":%q}`
	for name, test := range map[string]struct {
		code            int
		reason          metav1.StatusReason
		message         string
		direct, through failureKind
	}{
		"it does not answer":     {503, "ServiceUnavailable", "error trying to reach service", overloaded, aggregatedAway},
		"it knows nobody":        {401, "Unauthorized", "Unauthorized", unauthenticated, aggregatedAway},
		"its etcd has no leader": {500, "", "etcdserver: no leader", overloaded, aggregatedAway},
		"its etcd is full":       {500, "", "etcdserver: mvcc: database space exceeded", storageFull, aggregatedAway},
		"it is loaded":           {429, "TooManyRequests", "too many requests", overloaded, aggregatedAway},
		"a webhook is away":      {500, "InternalError", "failed calling webhook", internal, internal},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(test.code)
				_, _ = fmt.Fprintf(w, status, test.code, test.reason, test.message)
			}))
			defer server.Close()
			e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 500, 0)
			if err != nil {
				t.Fatal(err)
			}
			for class, want := range map[storageversion.Class]failureKind{
				storageversion.Custom: test.direct, storageversion.Aggregated: test.through,
			} {
				w := e.newRewriter(Resource{GroupVersionResource: widgets.WithVersion("v1"), Class: class}, "")
				w.waysByNamespace.Store("", &namespaceWay{way: mergeWay, next: math.MaxInt})
				for how, version := range map[string]string{"listed": "4", "named": ""} {
					object := &sweep.Object{Name: "w", UID: "u", ResourceVersion: version}
					w.keepOriginal(object, &metav1.PartialObjectMetadata{}, nil)
					a := w.rewrite(t.Context(), object)
					if quiet := a.paceResult().Signal == pacer.OK; a.failure.kind != want || want == aggregatedAway && !quiet {
						t.Errorf("%v, %s: the failure is %v, want %v, and it shows the pacer nothing: %t",
							class, how, a.failure.kind.name, want.name, quiet)
					}
				}
			}
		})
	}
}

// TestAnswersOfAggregatedServersThatCannotBeRead wants them to slow down nobody else.
func TestAnswersOfAggregatedServersThatCannotBeRead(t *testing.T) {
	for name, answer := range map[string]http.HandlerFunc{
		"no JSON": func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{") },
		"cut off": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "{")
		},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				answer(w, request)
			}))
			defer server.Close()
			e, err := NewEngine(bounded(server.URL), nil, clock.RealClock{}, 500, 0)
			if err != nil {
				t.Fatal(err)
			}
			w := e.newRewriter(
				Resource{GroupVersionResource: widgets.WithVersion("v1"), Class: storageversion.Aggregated}, "")
			w.waysByNamespace.Store("", &namespaceWay{way: mergeWay, next: math.MaxInt})
			object := &sweep.Object{Name: "w", UID: "u", ResourceVersion: "4"}
			w.keepOriginal(object, &metav1.PartialObjectMetadata{}, nil)
			if a := w.rewrite(t.Context(), object); a.failure.kind != aggregatedAway {
				t.Errorf("the failure is %v", a.failure)
			}
		})
	}
}

// TestAggregatedServerThatAsksToWait wants no other object to be sent meanwhile, also if the run ends.
func TestAggregatedServerThatAsksToWait(t *testing.T) {
	const wait = 2 * StuckAfter
	early := 0
	r := newFakeRun(50, func(_ string, _ int, now time.Time) tryResult {
		if left := wait - now.Sub(noon); left > 0 {
			early++
			a := failing(aggregatedAway)
			a.failure.retryAfter = left
			return a
		}
		return tryResult{outcome: sweep.Rewritten}
	})
	r.atOnce = 1
	r.crowded = true
	if err := r.play(t, wait); !errors.Is(err, ErrStuck) {
		t.Fatalf("the first run ended with %v", err)
	}
	r.crowded = false
	first := early
	if err := r.play(t, 2*wait); err != nil {
		t.Fatal(err)
	}
	if early > 3 || early > first { // One was in flight, and others may have been on their way.
		t.Errorf("%d objects were sent before the server wanted them, %d of them in the first run", early, first)
	}
}
