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
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// documents are what an API server with a definition and an aggregated API server could serve.
var documents = []*metav1.APIResourceList{
	{GroupVersion: "v1", APIResources: []metav1.APIResource{
		{Name: "secrets", Verbs: []string{"get", "list", "patch"}},
		{Name: "pods", Verbs: []string{"get", "list", "patch"}},
		{Name: "pods/status", Verbs: []string{"get", "patch"}},
		{Name: "pods/exec", Verbs: []string{"create", "get"}},
		{Name: "events", Verbs: []string{"get", "list", "patch"}},
		{Name: "componentstatuses", Verbs: []string{"get", "list"}},
	}},
	{GroupVersion: "admissionregistration.k8s.io/v1", APIResources: []metav1.APIResource{
		{Name: "validatingadmissionpolicies", Verbs: []string{"get", "list", "patch"}},
		{Name: "validatingadmissionpolicies/status", Verbs: []string{"get", "patch"}},
	}},
	{GroupVersion: "example.com/v2", APIResources: []metav1.APIResource{
		{Name: "widgets", Verbs: []string{"get", "list", "patch"}},
		{Name: "events", Verbs: []string{"get", "list", "patch"}},
	}},
	{GroupVersion: "example.com/v1", APIResources: []metav1.APIResource{
		{Name: "widgets", Verbs: []string{"get", "list", "patch"}},
		{Name: "widgets/status", Verbs: []string{"get", "patch"}},
	}},
	{GroupVersion: "gateway.networking.k8s.io/v1", APIResources: []metav1.APIResource{
		{Name: "gateways", Verbs: []string{"get", "list", "patch"}},
	}},
	{GroupVersion: "migration.k8s.io/v1alpha1", APIResources: []metav1.APIResource{
		{Name: "storagestates", Verbs: []string{"get", "list", "patch"}},
	}},
}

func rule(group string, resources []string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs}
}

func TestRules(t *testing.T) {
	want := []rbacv1.PolicyRule{
		rule("", []string{"events"}, "list"),
		rule("", []string{"pods", "secrets"}, "get", "list", "patch"),
		rule("", []string{"pods/status"}, "patch"),
		rule("example.com", []string{"events", "widgets"}, "get", "list", "patch"),
		rule("example.com", []string{"widgets/status"}, "patch"),
		rule("gateway.networking.k8s.io", []string{"gateways"}, "get", "list", "patch"),
		rule("migration.k8s.io", []string{"storagestates"}, "get", "list", "patch"),
	}
	if diff := cmp.Diff(want, Rules(Resources(documents))); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestNewRole(t *testing.T) {
	want := []rbacv1.PolicyRule{
		rule("example.com", []string{"events", "widgets"}, "get", "list", "patch"),
		rule("example.com", []string{"widgets/status"}, "patch"),
		rule("gateway.networking.k8s.io", []string{"gateways"}, "get", "list", "patch"),
	}
	got := NewRole(Resources(documents))
	if diff := cmp.Diff(want, got.Rules); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got.Labels[AggregateLabel] != "true" {
		t.Errorf("the labels are %v", got.Labels)
	}
}
