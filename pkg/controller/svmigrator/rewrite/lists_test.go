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
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// TestListWithoutIdentities is what an aggregated server may answer.
func TestListWithoutIdentities(t *testing.T) {
	for name, test := range map[string]struct {
		metadata string
		want     failureKind
	}{
		"complete":            {`"name":"w","uid":"u","resourceVersion":"7"`, failureKind{}},
		"no resource version": {`"name":"w","uid":"u"`, unsupported},
		"no UID":              {`"name":"w","resourceVersion":"7"`, unsupported},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprintf(w, `{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadataList",`+
					`"metadata":{"resourceVersion":"9"},"items":[{"metadata":{%s}}]}`, test.metadata)
			}))
			defer server.Close()
			e, err := NewEngine(&rest.Config{Host: server.URL}, pacer.New(pacer.Options{}), clock.RealClock{}, 500, 0)
			if err != nil {
				t.Fatal(err)
			}
			widgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}
			_, err = e.lister(e.newRewriter(Resource{GroupVersionResource: widgets}, ""), new(int64))(t.Context(), "")
			var got failureKind
			if err != nil {
				got = Classify(err, "").kind
			}
			if got != test.want {
				t.Errorf("%v means %q, want %q", err, got.name, test.want.name)
			}
		})
	}
}

// TestListThatDoesNotEnd has an aggregated server that answers each list with the same token.
func TestListThatDoesNotEnd(t *testing.T) {
	server := httptest.NewServer(listOf(func(string) int { return 1 }, ""))
	defer server.Close()
	e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 500, 0)
	if err != nil {
		t.Fatal(err)
	}
	resource := Resource{GroupVersionResource: widgets.WithVersion("v1"), Class: storageversion.Custom}
	w := e.newRewriter(resource, "")
	list := e.lister(w, new(int64))
	chunk, err := list(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	if w.baseline == "" || w.baseline != chunk.ResourceVersion {
		t.Errorf("objects are compared with %q after a list of %q", w.baseline, chunk.ResourceVersion)
	}
	if _, err := list(t.Context(), chunk.Next); !errors.Is(err, errSameToken) || Classify(err, "").Passes() {
		t.Errorf("the second list has the error %v", err)
	}
	if _, _, err := e.WrittenBefore(t.Context(), resource, "1"); !errors.Is(err, errSameToken) {
		t.Errorf("looking for old objects has the error %v", err)
	}
}

// TestListsOfExpiringObjectsFail wants a failure that passes to cost one list, not all before it.
func TestListsOfExpiringObjectsFail(t *testing.T) {
	var tokens []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		token := request.URL.Query().Get("continue")
		tokens = append(tokens, token)
		if len(tokens) == 2 {
			http.Error(w, "later", http.StatusTooManyRequests)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"9",`+
			`"continue":%q},"items":[]}`, map[string]string{"": "second"}[token])
	}))
	defer server.Close()
	e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 500, 0)
	if err != nil {
		t.Fatal(err)
	}
	older, _, err := e.WrittenBefore(t.Context(), Resource{GroupVersionResource: widgets.WithVersion("v1")}, "8")
	if want := []string{"", "second", "second"}; older || err != nil || !slices.Equal(tokens, want) {
		t.Errorf("asked with the tokens %q, want %q; found an old object: %t, error: %v", tokens, want, older, err)
	}
}

// TestTokenThatIsTooLong has a list that ends with an object of a long name.
func TestTokenThatIsTooLong(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"apiVersion":"meta.k8s.io/v1","kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"9",`+
			`"continue":%q},"items":[{"metadata":{"name":%q,"namespace":"theirs","uid":"u","resourceVersion":"7"}}]}`,
			strings.Repeat("t", maxTokenLength+1), strings.Repeat("<", 100<<10))
	}))
	defer server.Close()
	e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 500, 0)
	if err != nil {
		t.Fatal(err)
	}
	roles := Resource{GroupVersionResource: schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1",
		Resource: "roles"}}
	_, err = e.lister(e.newRewriter(roles, ""), new(int64))(t.Context(), "")
	const want = `the namespace "theirs" has 102400 bytes`
	if f := Classify(err, ""); f.kind != tooLong || !strings.Contains(f.String(), want) {
		t.Errorf("%v means %q", err, f.kind.name)
	}
}

// TestObjectsThatNeedNoRewriteHaveAnOutcome lists objects of which the second was written after the baseline.
func TestObjectsThatNeedNoRewriteHaveAnOutcome(t *testing.T) {
	for phase, want := range map[Phase][]sweep.Outcome{
		Rewriting:      {sweep.WrittenByOthers, sweep.Rewritten},
		RetryingDenied: {sweep.Rewritten}, // The second has an outcome from the first sweep.
	} {
		t.Run(string(phase), func(t *testing.T) {
			t.Parallel()
			r := newFakeRun(0, fine)
			r.normal = phase
			r.list = func(context.Context, string) (sweep.Chunk, error) {
				return sweep.Chunk{ResourceVersion: "5", Objects: []*sweep.Object{
					{Name: "older", ResourceVersion: "4"}, {Name: "newer", ResourceVersion: "6"},
				}}, nil
			}
			if err := r.play(t, time.Hour); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, r.outcomes); diff != "" {
				t.Errorf("outcomes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestListsThatAreTooLong has objects of 100 kB, and then small ones.
func TestListsThatAreTooLong(t *testing.T) {
	var limits []string
	small := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		annotation := strings.Repeat("a", 100<<10)
		if small {
			annotation = "a"
		}
		listOf(func(limit string) int {
			limits = append(limits, limit)
			n, _ := strconv.Atoi(limit)
			return n
		}, annotation)(w, request)
	}))
	defer server.Close()
	e, err := NewEngine(bounded(server.URL), nil, clock.RealClock{}, 160, 0)
	if err != nil {
		t.Fatal(err)
	}
	list := e.lister(e.newRewriter(Resource{GroupVersionResource: schema.GroupVersionResource{
		Group: "example.com", Version: "v1", Resource: "widgets"}}, ""), new(int64))
	for range 3 {
		if _, err := list(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
	}
	small = true
	for range 3 {
		if _, err := list(t.Context(), ""); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"160", "40", "40", "40", "40", "80", "160"}; !slices.Equal(limits, want) {
		t.Errorf("asked for %v objects, want %v", limits, want)
	}
}

// TestServerWithoutLimits sends everything that it has.
func TestServerWithoutLimits(t *testing.T) {
	server := httptest.NewServer(listOf(func(string) int { return 200 }, strings.Repeat("a", 100<<10)))
	defer server.Close()
	e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 160, 0)
	if err != nil {
		t.Fatal(err)
	}
	chunk, err := e.lister(e.newRewriter(Resource{GroupVersionResource: schema.GroupVersionResource{
		Group: "example.com", Version: "v1", Resource: "widgets"}}, ""), new(int64))(t.Context(), "")
	if err != nil || len(chunk.Objects) != 200 {
		t.Errorf("listed %d objects, with the error %v", len(chunk.Objects), err)
	}
}

// TestServerThatDoesNotEnd answers every list with more than anybody has.
func TestServerThatDoesNotEnd(t *testing.T) {
	var limits []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		limits = append(limits, request.URL.Query().Get("limit"))
		w.Header().Set("Content-Type", "application/json")
		for line := []byte(strings.Repeat(" ", 1<<20)); ; {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	e, err := NewEngine(bounded(server.URL), nil, clock.RealClock{}, 16, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := e.newRewriter(Resource{GroupVersionResource: widgets.WithVersion("v1")}, "")
	_, err = e.lister(w, new(int64))(t.Context(), "")
	if !errors.Is(err, documents.ErrTooLong) || Classify(err, "").Passes() {
		t.Errorf("the list has the error %v", err)
	}
	if want := []string{"16", "4", "1"}; !slices.Equal(limits, want) {
		t.Errorf("asked for %v objects, want %v", limits, want)
	}
}

// TestObjectThatMayBlockItsRequests has a proxy cut the connection of each request for an object, and a server that
// ignores the limit of lists. As many of these as there are requests under way are read at a time.
func TestObjectThatMayBlockItsRequests(t *testing.T) {
	sent := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for line := []byte(strings.Repeat(" ", 1<<20)); sent < maxUnlimitedBytes; sent += len(line) {
			if _, err := w.Write(line); err != nil {
				return
			}
		}
	}))
	e, err := NewEngine(bounded(server.URL), nil, clock.RealClock{}, 16, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := e.newRewriter(Resource{GroupVersionResource: widgets.WithVersion("v1")}, "")
	f := w.classify(t.Context(), &sweep.Object{Tries: blamelessTries}, io.ErrUnexpectedEOF)
	if server.Close(); f.kind.name != internal.name || sent >= maxUnlimitedBytes {
		t.Errorf("%d bytes were sent, and the failure counts as %s", sent, f.kind.name)
	}
}

// bounded is the config of a program.
func bounded(url string) *rest.Config {
	config := &rest.Config{Host: url}
	documents.BoundAnswers(config)
	return config
}

// listOf answers lists with objects that have an annotation.
func listOf(objects func(limit string) int, annotation string) http.HandlerFunc {
	return func(w http.ResponseWriter, request *http.Request) {
		list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "token"}}
		list.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadataList"))
		for range objects(request.URL.Query().Get("limit")) {
			list.Items = append(list.Items, metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				Name: "w", UID: "u", ResourceVersion: "7", Annotations: map[string]string{"a": annotation}}})
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list)
	}
}
