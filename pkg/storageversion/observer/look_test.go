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
		catalog catalog
		served  served
		failing schema.GroupVersion
		want    storageversion.Document
		// failed is in the reason for the group of the failing group version.
		failed string
	}{
		"one resource at two versions, the preferred first, without what is not stored": {
			catalog: catalog{{appsV1, true}, {appsV1beta1, true}},
			served: served{
				appsV1: {writable, stored("deployments/scale", "Scale", "hash=", "get", "update"),
					stored("computed", "Computed", "", "list", "update")},
				appsV1beta1: {stored("deployments", "Deployment", "hash=", "get")},
			},
			want: storageversion.Document{Resources: migratable("v1", "v1beta1")},
		},
		"what can be listed and not written is not migratable": {
			catalog: catalog{{appsV1, true}},
			served:  served{appsV1: {stored("deployments", "Deployment", "hash=", "list", "create", "delete")}},
			want: storageversion.Document{
				Resources: resources{deployments: {Kind: "Deployment", Versions: []string{"v1"}, Hash: "hash="}}},
		},
		"a group version that is not served is a peer's": {
			catalog: catalog{{appsV1, true}, {appsV1beta1, true}},
			served:  served{appsV1: {writable}},
			want:    storageversion.Document{Resources: migratable("v1")},
		},
		"a group version that cannot be read is not absent": {
			catalog: catalog{{appsV1beta1, true}, {appsV1, true}},
			served:  served{appsV1: {writable}, appsV1beta1: {writable}},
			failing: appsV1beta1, failed: "getting /apis/apps/v1beta1: Internal Server Error",
			want: storageversion.Document{Resources: migratable("v1")},
		},
		"two processes said two encodings": {
			catalog: catalog{{appsV1, true}, {appsV1beta1, true}},
			served: served{
				appsV1: {writable}, appsV1beta1: {stored("deployments", "Deployment", "other=", "list", "update")}},
			failed: "apps/v1beta1 has another encoding of deployments than the version before",
			want:   storageversion.Document{Resources: migratable("v1", "v1beta1")},
		},
		"a server that publishes": {
			catalog: catalog{{publishingV1, true}},
			served:  served{publishingV1: {stored("storageversions", "StorageVersion", "hash=", "list", "update")}},
			want: storageversion.Document{ServesStorageVersions: true, Resources: resources{storageVersionsResource: {
				Kind: "StorageVersion", Versions: []string{"v1alpha1"}, Hash: "hash=", Migratable: true}}},
		},
		"what turns out to be custom while the server answers is left out": {
			catalog: catalog{{customV1, true}},
			served:  served{customV1: {stored("widgets", "Widget", "hash=", "list", "update")}},
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
			got := readDocument(t.Context(), s.reader(t), process{}, test.catalog, isBuiltIn)
			for _, reason := range got.FailedGroups {
				if test.failed == "" || !strings.Contains(reason, test.failed) {
					t.Errorf("failed because %q, want %q", reason, test.failed)
				}
			}
			if (test.failed != "") != (len(got.FailedGroups) == 1) {
				t.Errorf("%d groups failed", len(got.FailedGroups))
			}
			got.FailedGroups = nil
			if test.want.Resources == nil {
				test.want.Resources = resources{}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("document (-want +got):\n%s", diff)
			}
		})
	}
}
