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
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// TestNewer compares resource versions. Only kube-apiserver is known to count up: if those of an aggregated server were
// compared, objects that it has not rewritten would count as written by others.
func TestNewer(t *testing.T) {
	for _, test := range []struct {
		class storageversion.Class
		a, b  string
		want  bool
	}{
		{storageversion.BuiltIn, "10", "9", true},
		{storageversion.Custom, "10", "9", true},
		{storageversion.Custom, "9", "10", false},
		{storageversion.Custom, "9", "9", false},
		{storageversion.Custom, "v10", "9", false},
		{storageversion.Aggregated, "10", "9", false},
		{"", "10", "9", false},
	} {
		if got := newer(test.class)(test.a, test.b); got != test.want {
			t.Errorf("%q of class %q is newer than %q: %v", test.a, test.class, test.b, got)
		}
	}
}

// TestObjectThatChangesOutsideOfTheList has an object that was listed at 9, in a list of 20. If it is older now, nobody
// wrote it: etcd was restored, and objects may be stored in the old version again, also those that were rewritten
// before. If it was written before 20, the list was wrong, and nobody knows how it is stored. So it is tried again.
func TestObjectThatChangesOutsideOfTheList(t *testing.T) {
	for now, want := range map[string]struct {
		outcome  sweep.Outcome
		restored bool
	}{"21": {outcome: sweep.WrittenByOthers}, "8": {restored: true}, "10": {}, "20": {}} {
		for uid, try := range map[string]func(*rewriter, context.Context, *sweep.Object) tryResult{
			"u": func(w *rewriter, ctx context.Context, object *sweep.Object) tryResult {
				return w.resolve(ctx, object, Failure{kind: conflicting})
			},
			"another": func(w *rewriter, ctx context.Context, object *sweep.Object) tryResult {
				return w.resolve(ctx, object, Failure{kind: conflicting})
			},
			"u ": func(w *rewriter, ctx context.Context, object *sweep.Object) tryResult { // It is compared first.
				return w.rewrite(ctx, object)
			},
		} {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
				kind, version := "PartialObjectMetadata", "meta.k8s.io/v1"
				if !strings.Contains(request.Header.Get("Accept"), kind) {
					kind, version = "Widget", "example.com/v1"
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprintf(w, `{"kind":%q,"apiVersion":%q,"metadata":{"name":"w","uid":%q,"resourceVersion":%q}}`,
					kind, version, strings.TrimSpace(uid), now)
			}))
			e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 500, 0)
			if err != nil {
				t.Fatal(err)
			}
			class := storageversion.Custom
			w := e.newRewriter(Resource{GroupVersionResource: widgets.WithVersion("v1"), Class: class}, "20")
			object := &sweep.Object{Name: "w", UID: "u", ResourceVersion: "9"}
			w.keepOriginal(object, &metav1.PartialObjectMetadata{}, nil)
			a := try(w, t.Context(), object)
			if a.outcome != want.outcome || errors.Is(a.restored, storageversion.ErrRestored) != want.restored {
				t.Errorf("object %q at %s: %+v", uid, now, a)
			}
			again := object.ResourceVersion == now && string(object.UID) == strings.TrimSpace(uid)
			if wanted := want.outcome == sweep.NoOutcome && !want.restored; again != wanted {
				t.Errorf("object %q at %s: it is tried again as %+v", uid, now, object)
			}
			server.Close()
		}
	}
}

// TestDeniedObjectThatWasMadeAnew has an object that was denied earlier, and was listed with the UID of the one before.
func TestDeniedObjectThatWasMadeAnew(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		body, _ := io.ReadAll(request.Body)
		w.Header().Set("Content-Type", "application/json")
		if request.Method == http.MethodPatch && !strings.Contains(string(body), `"uid":"another"`) {
			w.WriteHeader(http.StatusConflict)
		}
		_, _ = fmt.Fprint(w, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1",
			"metadata":{"name":"w","uid":"another","resourceVersion":"10"}}`)
	}))
	defer server.Close()
	e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 500, 0)
	if err != nil {
		t.Fatal(err)
	}
	resource := Resource{GroupVersionResource: widgets.WithVersion("v1"), Class: storageversion.Custom}
	w := e.newRewriter(resource, "20")
	if a := w.rewrite(t.Context(), &sweep.Object{Name: "w", UID: "u"}); a.outcome != sweep.AlreadyCurrent {
		t.Errorf("got %+v", a)
	}
}

// TestARestoreThatIsToldTooLate has the answer that shows a restore arrive when the run has been stopped.
func TestARestoreThatIsToldTooLate(t *testing.T) {
	r := newFakeRun(1, fine)
	r.rewrite = func(ctx context.Context, object *sweep.Object) tryResult {
		<-ctx.Done()
		return tryResult{object: object, restored: storageversion.ErrRestored}
	}
	if err := r.play(t, 30*time.Second); !errors.Is(err, storageversion.ErrRestored) {
		t.Errorf("it ended with %v", err)
	}
}

// TestObjectOfAnotherScope has objects that are left from a definition with another scope. No request is sent for one:
// the rewriter has no client.
func TestObjectOfAnotherScope(t *testing.T) {
	for _, test := range []struct {
		namespaced     bool
		namespace, key string
	}{
		{true, "", "/example.com/widgets/left"},
		{false, "default", "/example.com/widgets/default/left"},
	} {
		w := &rewriter{resource: Resource{GroupVersionResource: widgets.WithVersion("v1"), Namespaced: &test.namespaced}}
		a := w.rewrite(t.Context(), &sweep.Object{Namespace: test.namespace, Name: "left"})
		if a.outcome != sweep.Denied || !strings.Contains(a.failure.message, "ends with "+test.key+", ") {
			t.Errorf("namespaced %t: %v, %s", test.namespaced, a.outcome, a.failure.message)
		}
	}
}
