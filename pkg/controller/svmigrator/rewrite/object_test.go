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
	"testing"

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

// TestConflictAfterARestore has an object that was listed at 9 conflict. If it is older now, nobody wrote it: etcd was
// restored, and the object may be stored in the old version again.
func TestConflictAfterARestore(t *testing.T) {
	for now, want := range map[string]sweep.Outcome{"10": sweep.WrittenByOthers, "8": sweep.NoOutcome} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1",
				"metadata":{"name":"w","uid":"u","resourceVersion":%q}}`, now)
		}))
		e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 500)
		if err != nil {
			t.Fatal(err)
		}
		class := storageversion.Custom
		w := e.newRewriter(Resource{GroupVersionResource: widgets.WithVersion("v1"), Class: class}, "")
		object := &sweep.Object{Name: "w", UID: "u", ResourceVersion: "9"}
		w.keepOriginal(object, &metav1.PartialObjectMetadata{}, nil)
		a := w.resolve(t.Context(), object, Failure{kind: conflicting})
		if a.outcome != want || a.outcome == sweep.NoOutcome && object.ResourceVersion != now {
			t.Errorf("at %s the outcome is %v, and %s is rewritten next (%+v)", now, a.outcome, object.ResourceVersion, a)
		}
		server.Close()
	}
}
