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

package observer

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestWhatServersSayTheyServe(t *testing.T) {
	tests := []struct {
		name, body, wantError string
		want                  catalog
	}{
		{
			name: "one group version of which its server did not tell",
			body: `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[
				{"metadata":{"name":"apps","annotations":{"list":"list"}},"versions":[
					{"version":"v1","freshness":"Current","resources":[
						{"resource":"statefulsets","verbs":["get","list"],"subresources":[{"subresource":"status","verbs":["get"]}]},
						{"resource":"deployments","verbs":["create","list","watch"]}]},
					{"version":"v1beta1","freshness":"Current","resources":[]}]},
				{"metadata":{"name":"authorization.k8s.io"},"versions":[
					{"version":"v1","resources":[{"resource":"selfsubjectaccessreviews","verbs":["create"]}]}]},
				{"metadata":{"name":"metrics.k8s.io"},"versions":[{"version":"v1beta1","freshness":"Stale"}]}]}`,
			want: catalog{{appsV1, true}, {appsV1beta1, false}, {reviewsV1, false}, {metricsV1, true}},
		},
		{
			name: "a server without aggregated discovery", body: `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
			wantError: `getting /apis: the server answered with kind "APIGroupList" instead of "APIGroupDiscoveryList"`,
		},
		{name: "no JSON", body: `<html>`, wantError: "decoding /apis: invalid character"},
		{name: "cut short", body: `{"items":[`, wantError: "unexpected end"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newFakeServer(t)
			s.documents["/api"], s.documents["/apis"] = `{"kind":"APIGroupDiscoveryList"}`, test.body
			got, err := readCatalog(t.Context(), s.reader(t))
			if test.wantError != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantError) {
					t.Errorf("error %v, want %q", err, test.wantError)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(servedVersion{})); diff != "" {
				t.Errorf("catalog (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOnlyPartOfACatalog(t *testing.T) {
	all := catalog{{appsV1, true}, {metricsV1, true}, {reviewsV1, false}}
	isBuiltIn := func(gv schema.GroupVersion) bool { return gv != metricsV1 }
	want := catalog{{appsV1, true}, {reviewsV1, false}}
	if diff := cmp.Diff(want, all.only(isBuiltIn), cmp.AllowUnexported(servedVersion{})); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
}
