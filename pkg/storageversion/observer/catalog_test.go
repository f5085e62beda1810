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
			want: catalog{
				versions: []schema.GroupVersion{appsV1, appsV1beta1, reviewsV1, metricsV1},
				listable: map[schema.GroupVersion][]string{appsV1: {"deployments", "statefulsets"}, appsV1beta1: {}, reviewsV1: {}},
			},
		},
		{
			name:        "the core group of a server without aggregated discovery",
			contentType: "application/json",
			body:        `{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[]}`,
			want:        catalog{versions: []schema.GroupVersion{coreV1}, listable: map[schema.GroupVersion][]string{}},
		},
		{
			name:        "the other groups of a server without aggregated discovery, the preferred version first",
			contentType: "application/json",
			body: `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"apps",
				"versions":[{"groupVersion":"apps/v1beta1","version":"v1beta1"},{"groupVersion":"apps/v1","version":"v1"}],
				"preferredVersion":{"groupVersion":"apps/v1","version":"v1"}}]}`,
			want: catalog{versions: []schema.GroupVersion{appsV1, appsV1beta1}, listable: map[schema.GroupVersion][]string{}},
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
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(catalog{})); diff != "" {
				t.Errorf("catalog (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCatalogsAreCompared(t *testing.T) {
	all := catalog{
		versions: []schema.GroupVersion{appsV1, metricsV1, reviewsV1},
		listable: map[schema.GroupVersion][]string{appsV1: {"deployments"}, metricsV1: {"nodes"}, reviewsV1: {}},
	}
	isBuiltIn := func(gv schema.GroupVersion) bool { return gv != metricsV1 }
	some := all.only(isBuiltIn)
	if diff := cmp.Diff([]schema.GroupVersion{appsV1, reviewsV1}, some.versions); diff != "" {
		t.Errorf("versions (-want +got):\n%s", diff)
	}
	changed := all
	changed.listable = map[schema.GroupVersion][]string{appsV1: {"deployments"}, metricsV1: {"pods"}, reviewsV1: {}}
	if all.equal(changed) || !some.equal(changed.only(isBuiltIn)) {
		t.Error("a change of what is not built in counts, or does not show at all")
	}
	if !some.mayStore(appsV1) || some.mayStore(reviewsV1) || !some.mayStore(metricsV1) {
		t.Error("group versions that need not be read are not told apart")
	}
}
