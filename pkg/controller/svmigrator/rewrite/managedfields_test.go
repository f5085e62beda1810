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
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// TestEntriesOfVersionsThatAreServedAnew has somebody serve one more version during the run, and apply the object at
// it, just before each request is answered. Only the entry of v1, which is not served, may be dropped.
func TestEntriesOfVersionsThatAreServedAnew(t *testing.T) {
	served, versions := []string{"v2"}, []string{"v1", "v2"}
	entries := func() (entries []metav1.ManagedFieldsEntry) {
		for _, version := range versions {
			entries = append(entries, metav1.ManagedFieldsEntry{Manager: "m", APIVersion: "example.com/" + version})
		}
		return entries
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		added := "v3"
		if strings.HasSuffix(request.URL.Path, "/w") {
			added = "v4"
		}
		served, versions = append(served, added), append(versions, added)
		object := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Name: "w", UID: "u", ResourceVersion: added, ManagedFields: entries()}}
		object.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"))
		var answer any = &object
		if added == "v3" {
			list := &metav1.PartialObjectMetadataList{Items: []metav1.PartialObjectMetadata{object}}
			list.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PartialObjectMetadataList"))
			answer = list
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}))
	defer server.Close()
	e, err := NewEngine(&rest.Config{Host: server.URL}, nil, clock.RealClock{}, 500, 0)
	if err != nil {
		t.Fatal(err)
	}
	w := e.newRewriter(Resource{
		GroupVersionResource: widgets.WithVersion("v2"), Class: storageversion.Custom,
		ReadServedVersions: func(context.Context) ([]string, error) { return slices.Clone(served), nil },
	}, "")
	check := func(object *sweep.Object, want ...string) {
		t.Helper()
		var kept []string
		for _, entry := range originalOf(object).cleaned {
			kept = append(kept, strings.TrimPrefix(entry.APIVersion, "example.com/"))
		}
		if !slices.Equal(kept, want) {
			t.Errorf("the rewrite keeps the entries of %q, want %q", kept, want)
		}
	}
	chunk, err := e.lister(w, new(int64))(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	check(chunk.Objects[0], "v2", "v3")
	if live, a := w.read(t.Context(), chunk.Objects[0]); live == nil {
		t.Fatal(a.failure)
	}
	check(chunk.Objects[0], "v2", "v3", "v4")

	w.resource.ReadServedVersions = func(context.Context) ([]string, error) {
		return nil, apierrors.NewTooManyRequests("later", 7)
	}
	_, a := w.read(t.Context(), chunk.Objects[0])
	if a.outcome != sweep.NoOutcome || a.failure.kind != definitionUnread || a.paceResult().Signal != pacer.OK {
		t.Errorf("the definition cannot be read, and the result is %+v", a)
	}
}
