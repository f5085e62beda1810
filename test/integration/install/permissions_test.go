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

package install

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// rarely are the permissions that the test does not make the manager use, and when it does.
var rarely = map[string]string{
	"delete migration.k8s.io/storageversionmigrations":       "a migration is outdated",
	"get migration.k8s.io/storageversionmigrations":          "a migration follows an earlier one",
	"patch migration.k8s.io/storagestates/status":            "the rewrite of a state itself is refused",
	"patch migration.k8s.io/storageversionmigrations/status": "the rewrite of a migration itself is refused",
	"list discovery.k8s.io/endpointslices":                   "there are aggregated API servers",
	"get /pods":                                              "these have several replicas",
	"patch /events in kube-system":                           "an event is repeated",
	"patch /events in default":                               "an event is repeated",
	"list apiextensions.k8s.io/customresourcedefinitions":    "the API server does not stream lists",
	"list apiregistration.k8s.io/apiservices":                "the same",
	"list internal.apiserver.k8s.io/storageversions":         "the same",
	"list migration.k8s.io/storagestates":                    "the same",
	"list migration.k8s.io/storageversionmigrations":         "the same",
	"list coordination.k8s.io/leases in kube-system":         "the same",
	"list discovery.k8s.io/endpointslices in default":        "the same",
}

// checkPermissionsUsed complains about permissions of the manifests that the manager never used.
func (c *cluster) checkPermissionsUsed(t *testing.T) {
	t.Helper()
	used := sets.New[string]()
	c.eachRequest(t, time.Time{}, func(event *auditv1.Event) {
		of := event.ObjectRef
		if of == nil {
			path, _, _ := strings.Cut(event.RequestURI, "?")
			used.Insert(event.Verb + " " + path)
			return
		}
		resource := of.APIGroup + "/" + of.Resource
		if of.Subresource != "" {
			resource += "/" + of.Subresource
		}
		used.Insert(event.Verb+" "+resource, event.Verb+" "+resource+" in "+of.Namespace)
	})
	objects := render(t, "overlays/default")
	for _, object := range objects {
		name := object.GetName()
		known := name == "svm-controller-manager:observe" || name == "svm-controller-manager:migrate"
		if !known || !strings.HasSuffix(object.GetKind(), "Role") {
			continue
		}
		role := find[rbacv1.ClusterRole](t, objects, object.GetKind(), object.GetNamespace(), name)
		for permission := range permissions(role) {
			if _, excused := rarely[permission]; !excused && !used.Has(permission) {
				t.Errorf("the role %s %s allows to %q, which the manager did not do", name, role.Namespace, permission)
			}
		}
	}
}

func permissions(role *rbacv1.ClusterRole) sets.Set[string] {
	all := sets.New[string]()
	for _, rule := range role.Rules {
		for _, verb := range rule.Verbs {
			for _, path := range rule.NonResourceURLs {
				all.Insert(verb + " " + path)
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					permission := verb + " " + group + "/" + resource
					if role.Namespace != "" {
						permission += " in " + role.Namespace
					}
					all.Insert(permission)
				}
			}
		}
	}
	return all
}

// checkPriority wants rewrites to be in the manager's priority level, and its election to be in another one.
func (c *cluster) checkPriority(t *testing.T, config *rest.Config) {
	t.Helper()
	config = rest.CopyConfig(config)
	seen := map[string]string{}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(request *http.Request) (*http.Response, error) {
			response, err := next.RoundTrip(request)
			if err == nil {
				seen[request.URL.Path] = response.Header.Get("X-Kubernetes-PF-FlowSchema-UID")
			}
			return response, err
		})
	})
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Secrets("default").Get(t.Context(), "sample", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	leases := client.CoordinationV1().Leases("kube-system")
	if _, err := leases.Get(t.Context(), "svm-controller-manager", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	var schemas []string
	for _, name := range []string{"svm-controller-manager", "svm-controller-manager-leader-election"} {
		schema, err := c.Kube.FlowcontrolV1().FlowSchemas().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		schemas = append(schemas, string(schema.UID))
	}
	got := []string{
		seen["/api/v1/namespaces/default/secrets/sample"],
		seen["/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/svm-controller-manager"],
	}
	if !slices.Equal(got, schemas) {
		t.Errorf("a read of an object and one of the Lease are in the flow schemas %q, want %q", got, schemas)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return f(request) }
