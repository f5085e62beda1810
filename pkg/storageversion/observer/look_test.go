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
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

func TestDocuments(t *testing.T) {
	type resources = map[schema.GroupResource]storageversion.Resource
	type served = map[schema.GroupVersion][]metav1.APIResource
	writable := stored("deployments", "Deployment", "hash=", "get", "list", "patch")
	migratable := func(versions ...string) resources {
		return resources{deployments: {Kind: "Deployment", Versions: versions, Hash: "hash=", Migratable: true}}
	}
	for name, test := range map[string]struct {
		serves  []schema.GroupVersion
		served  served
		failing schema.GroupVersion
		want    storageversion.Document
		failed  string
	}{
		"one resource at two versions, the preferred first, without what is not stored or no name": {
			serves: []schema.GroupVersion{appsV1, appsV1beta1},
			served: served{
				appsV1: {writable, stored("deployments/scale", "Scale", "hash=", "get", "update"),
					stored("No_name", "None", "hash=", "list", "update"),
					stored("computed", "Computed", "", "list", "update")},
				appsV1beta1: {stored("deployments", "Deployment", "hash=", "get")},
			},
			want: storageversion.Document{Resources: migratable("v1", "v1beta1")},
		},
		"what can be listed and not written is not migratable": {
			serves: []schema.GroupVersion{appsV1},
			served: served{appsV1: {stored("deployments", "Deployment", "hash=", "list", "create", "delete")}},
			want: storageversion.Document{
				Resources: resources{deployments: {Kind: "Deployment", Versions: []string{"v1"}, Hash: "hash="}}},
		},
		"a group version that is not served is a peer's": {
			serves: []schema.GroupVersion{appsV1, appsV1beta1},
			served: served{appsV1: {writable}},
			want:   storageversion.Document{Resources: migratable("v1")},
		},
		"a group version that cannot be read is not absent": {
			serves:  []schema.GroupVersion{appsV1beta1, appsV1},
			served:  served{appsV1: {writable}, appsV1beta1: {writable}},
			failing: appsV1beta1, failed: "getting /apis/apps/v1beta1: Internal Server Error",
		},
		"two processes said two encodings": {
			serves: []schema.GroupVersion{appsV1, appsV1beta1},
			served: served{
				appsV1: {writable}, appsV1beta1: {stored("deployments", "Deployment", "other=", "list", "update")}},
			failed: "apps/v1beta1 has another encoding of deployments than the version before",
		},
		"a server that publishes": {
			serves: []schema.GroupVersion{publishingV1},
			served: served{publishingV1: {stored("storageversions", "StorageVersion", "hash=", "list", "update")}},
			want: storageversion.Document{ServesStorageVersions: true, Resources: resources{storageVersionsResource: {
				Kind: "StorageVersion", Versions: []string{"v1alpha1"}, Hash: "hash=", Migratable: true}}},
		},
		"a server that publishes at another version than the one that is watched": {
			serves: []schema.GroupVersion{publishingV2},
			served: served{publishingV2: {stored("storageversions", "StorageVersion", "hash=", "list", "update")}},
			want: storageversion.Document{Resources: resources{storageVersionsResource: {
				Kind: "StorageVersion", Versions: []string{"v1"}, Hash: "hash=", Migratable: true}}},
		},
		"what turns out to be custom while the server answers is left out": {
			serves: []schema.GroupVersion{customV1, appsV1},
			served: served{customV1: {stored("widgets", "Widget", "hash=", "list", "update")}, appsV1: {writable}},
			want:   storageversion.Document{Resources: migratable("v1")},
		},
		"a server that reports no hashes is not read": {
			serves: []schema.GroupVersion{appsV1},
			served: served{appsV1: {stored("deployments", "Deployment", "", "list", "update")}},
			failed: errNoHashes.Error(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newFakeServer(t)
			s.change(func() {
				for gv, list := range test.served {
					s.documents["/apis/"+gv.String()] = marshal(metav1.APIResourceList{
						TypeMeta: metav1.TypeMeta{Kind: "APIResourceList"}, APIResources: list})
				}
				if !test.failing.Empty() {
					s.failing["/apis/"+test.failing.String()] = http.StatusInternalServerError
				}
			})
			isBuiltIn := func(gv schema.GroupVersion) bool { return gv != customV1 }
			got := storageversion.Document{Serves: test.serves}
			err := readResources(t.Context(), s.reader(t), &got, isBuiltIn)
			if test.failed != "" {
				if err == nil || !strings.Contains(err.Error(), test.failed) {
					t.Errorf("error %v, want %q", err, test.failed)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got.Serves = nil
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("document (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatServersSayTheyServe(t *testing.T) {
	isBuiltIn := func(gv schema.GroupVersion) bool { return gv != metricsV1 }
	tests := []struct {
		name, body, wantError string
		want                  []schema.GroupVersion
	}{
		{
			name: "one group version that is not built-in",
			body: `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","items":[
				{"metadata":{"name":"apps","annotations":{"list":"list"}},"versions":[
					{"version":"v1","freshness":"Current","resources":[
						{"resource":"statefulsets","verbs":["get","list"],"subresources":[{"subresource":"status","verbs":["get"]}]},
						{"resource":"deployments","verbs":["create","list","watch"]}]},
					{"version":"v1beta1","freshness":"Current","resources":[]}]},
				{"metadata":{"name":"authorization.k8s.io"},"versions":[
					{"version":"v1","resources":[{"resource":"selfsubjectaccessreviews","verbs":["create"]}]}]},
				{"metadata":{"name":"metrics.k8s.io"},"versions":[{"version":"v1beta1","freshness":"Stale"}]}]}`,
			want: []schema.GroupVersion{appsV1, appsV1beta1, reviewsV1},
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
			got, err := builtInVersions(t.Context(), s.reader(t), isBuiltIn)
			if test.wantError != "" {
				if err == nil || !strings.Contains(err.Error(), test.wantError) {
					t.Errorf("error %v, want %q", err, test.wantError)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("versions (-want +got):\n%s", diff)
			}
		})
	}
}
