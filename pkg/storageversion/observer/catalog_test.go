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
		name, contentType, body string
		want                    catalog
		wantError               string
	}{
		{
			name:        "aggregated discovery, one group version of which its server did not tell",
			contentType: aggregatedContentType + ";profile=nopeer",
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
			name:        "the core group of a server without aggregated discovery",
			contentType: "application/json",
			body:        `{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[]}`,
			want:        catalog{{coreV1, true}},
		},
		{
			name:        "the other groups of a server without aggregated discovery, the preferred version first",
			contentType: "application/json",
			body: `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"apps",
				"versions":[{"groupVersion":"apps/v1beta1","version":"v1beta1"},{"groupVersion":"apps/v1","version":"v1"}],
				"preferredVersion":{"groupVersion":"apps/v1","version":"v1"}}]}`,
			want: catalog{{appsV1, true}, {appsV1beta1, true}},
		},
		{name: "something else", contentType: "application/json", body: `{"kind":"Status"}`, wantError: `kind "Status"`},
		{name: "no JSON", contentType: "text/html", body: `<html>`, wantError: "invalid character"},
		{name: "cut short", contentType: aggregatedContentType, body: `{"items":[`, wantError: "unexpected end"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseCatalog(test.contentType, []byte(test.body))
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
