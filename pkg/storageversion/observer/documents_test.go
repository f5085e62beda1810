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
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const aggregatedContentType = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

var (
	coreV1       = schema.GroupVersion{Version: "v1"}
	appsV1       = schema.GroupVersion{Group: "apps", Version: "v1"}
	appsV1beta1  = schema.GroupVersion{Group: "apps", Version: "v1beta1"}
	reviewsV1    = schema.GroupVersion{Group: "authorization.k8s.io", Version: "v1"}
	publishingV1 = schema.GroupVersion{Group: "internal.apiserver.k8s.io", Version: "v1alpha1"}
	metricsV1    = schema.GroupVersion{Group: "metrics.k8s.io", Version: "v1beta1"}
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
		{name: "something else", contentType: "application/json", body: `{"kind":"Status"}`, wantError: `answered with kind "Status"`},
		{name: "no JSON", contentType: "text/html", body: `<html>`, wantError: "decoding discovery"},
		{name: "cut short", contentType: aggregatedContentType, body: `{"items":[`, wantError: "decoding aggregated discovery"},
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

func resourceList(resources ...metav1.APIResource) answer {
	return answer{list: &metav1.APIResourceList{APIResources: resources}}
}

func stored(name, kind, hash string, verbs ...string) metav1.APIResource {
	return metav1.APIResource{Name: name, Kind: kind, StorageVersionHash: hash, Verbs: verbs}
}

func TestDocuments(t *testing.T) {
	notFound := apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{}, "", "404 page not found", 0, true)
	deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
	type resources = map[schema.GroupResource]storageversion.Resource
	tests := []struct {
		name    string
		catalog catalog
		answers map[schema.GroupVersion]answer
		want    storageversion.Document
	}{
		{
			name:    "one resource at two versions, the preferred first, without what is not stored",
			catalog: catalog{versions: []schema.GroupVersion{appsV1, appsV1beta1}},
			answers: map[schema.GroupVersion]answer{
				appsV1: resourceList(stored("deployments", "Deployment", "hash=", "get", "list", "patch"),
					stored("deployments/scale", "Scale", "hash=", "get", "update"), stored("computed", "Computed", "", "list", "update")),
				appsV1beta1: resourceList(stored("deployments", "Deployment", "hash=", "get")),
			},
			want: storageversion.Document{Resources: resources{
				deployments: {Kind: "Deployment", Versions: []string{"v1", "v1beta1"}, Hash: "hash=", Migratable: true}}},
		},
		{
			name:    "what can be listed and not written is not migratable",
			catalog: catalog{versions: []schema.GroupVersion{appsV1}},
			answers: map[schema.GroupVersion]answer{appsV1: resourceList(stored("deployments", "Deployment", "hash=", "list", "create", "delete"))},
			want:    storageversion.Document{Resources: resources{deployments: {Kind: "Deployment", Versions: []string{"v1"}, Hash: "hash="}}},
		},
		{
			name:    "a group version that is not found is a peer's",
			catalog: catalog{versions: []schema.GroupVersion{appsV1, appsV1beta1}},
			answers: map[schema.GroupVersion]answer{
				appsV1:      resourceList(stored("deployments", "Deployment", "hash=", "list", "update")),
				appsV1beta1: {err: notFound},
			},
			want: storageversion.Document{Resources: resources{
				deployments: {Kind: "Deployment", Versions: []string{"v1"}, Hash: "hash=", Migratable: true}}},
		},
		{
			name:    "a group version that cannot be read is no absence",
			catalog: catalog{versions: []schema.GroupVersion{coreV1, appsV1, appsV1beta1}},
			answers: map[schema.GroupVersion]answer{
				coreV1:      {err: errors.New("connection reset")},
				appsV1:      {err: apierrors.NewForbidden(deployments, "", errors.New("no"))},
				appsV1beta1: resourceList(stored("deployments", "Deployment", "hash=", "list", "update")),
			},
			want: storageversion.Document{
				Resources:    resources{deployments: {Kind: "Deployment", Versions: []string{"v1beta1"}, Hash: "hash=", Migratable: true}},
				FailedGroups: map[string]string{"": "v1: connection reset", "apps": "v1: deployments.apps is forbidden: no"},
			},
		},
		{
			name:    "two encodings of one resource were said by two processes",
			catalog: catalog{versions: []schema.GroupVersion{appsV1, appsV1beta1}},
			answers: map[schema.GroupVersion]answer{
				appsV1:      resourceList(stored("deployments", "Deployment", "hash=", "list", "update")),
				appsV1beta1: resourceList(stored("deployments", "Deployment", "other=", "list", "update")),
			},
			want: storageversion.Document{
				Resources:    resources{deployments: {Kind: "Deployment", Versions: []string{"v1", "v1beta1"}, Hash: "hash=", Migratable: true}},
				FailedGroups: map[string]string{"apps": "v1beta1: another encoding of deployments than in the version before"},
			},
		},
		{
			name: "publishing shows in the catalog, also when the group version cannot be read",
			catalog: catalog{versions: []schema.GroupVersion{publishingV1},
				listable: map[schema.GroupVersion][]string{publishingV1: {"storageversions"}}},
			answers: map[schema.GroupVersion]answer{publishingV1: {err: errors.New("timeout")}},
			want: storageversion.Document{ServesStorageVersions: true,
				FailedGroups: map[string]string{"internal.apiserver.k8s.io": "v1alpha1: timeout"}},
		},
		{
			name:    "publishing shows in the document where the catalog tells nothing",
			catalog: catalog{versions: []schema.GroupVersion{publishingV1}},
			answers: map[schema.GroupVersion]answer{publishingV1: resourceList(stored("storageversions", "StorageVersion", "hash=", "list", "update"))},
			want: storageversion.Document{ServesStorageVersions: true, Resources: resources{
				storageVersionsResource: {Kind: "StorageVersion", Versions: []string{"v1alpha1"}, Hash: "hash=", Migratable: true}}},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := newDocument(test.catalog, test.answers)
			if test.want.Resources == nil {
				test.want.Resources = resources{}
			}
			if test.want.FailedGroups == nil {
				test.want.FailedGroups = map[string]string{}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("document (-want +got):\n%s", diff)
			}
		})
	}
}

func TestAggregatedDocuments(t *testing.T) {
	const address = "metrics.kube-system.svc:443"
	nodes := schema.GroupResource{Group: "metrics.k8s.io", Resource: "nodes"}
	got := newAggregatedDocument(address, metricsV1, resourceList(stored("nodes", "NodeMetrics", "hash=", "list", "update"), stored("pods", "PodMetrics", "", "list")))
	want := &storageversion.AggregatedDocument{Address: address, Resources: map[schema.GroupResource]storageversion.Resource{
		nodes: {Kind: "NodeMetrics", Versions: []string{"v1beta1"}, Hash: "hash=", Migratable: true}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("document (-want +got):\n%s", diff)
	}

	// The APIService says that there is one, so even this is no absence.
	got = newAggregatedDocument(address, metricsV1, answer{err: apierrors.NewNotFound(nodes, "")})
	if got.Failure == "" || got.Resources != nil {
		t.Errorf("document %v", got)
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
	if !some.stores(appsV1) || some.stores(reviewsV1) || !some.stores(metricsV1) {
		t.Error("group versions that need not be read are not told apart")
	}
}
