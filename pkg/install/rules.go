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
	"cmp"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/releases"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	// AggregateLabel marks ClusterRoles whose rules the manager gets as well. Its value is "true".
	AggregateLabel = v1alpha1.GroupName + "/aggregate-to-migrator"
	// AggregatedRole is the name of the ClusterRole of the manifests that has the rules of all these.
	AggregatedRole = "svm-controller-manager:custom"
	// CustomRole is the name of the ClusterRole that NewRole makes of the custom resources of a cluster.
	CustomRole = "svm-controller-manager:cluster-resources"
	// AdmissionRole is the name of the ClusterRole that NewAdmissionRole makes.
	AdmissionRole = "svm-controller-manager:admission"
	// AdmissionGroup has the webhook configurations and admission policies. NewRole leaves it out.
	AdmissionGroup = "admissionregistration.k8s.io"

	statusSuffix = "/status"
)

// Resource is a resource whose objects can be rewritten.
type Resource struct {
	schema.GroupResource
	// HasStatus means that the status subresource can be patched as well.
	HasStatus bool
}

func (r Resource) isAdmission() bool { return r.Group == AdmissionGroup }

// Resources returns the resources in these discovery documents whose objects can be listed and patched, in order. A
// resource that several versions serve is there once.
func Resources(documents []*metav1.APIResourceList) []Resource {
	found, withStatus := sets.New[schema.GroupResource](), sets.New[schema.GroupResource]()
	for _, document := range documents {
		version, err := schema.ParseGroupVersion(document.GroupVersion)
		if err != nil {
			continue // No server serves such a document.
		}
		for _, resource := range document.APIResources {
			name, isStatus := strings.CutSuffix(resource.Name, statusSuffix)
			of := schema.GroupResource{Group: version.Group, Resource: name}
			switch {
			case isStatus && slices.Contains(resource.Verbs, "patch"):
				withStatus.Insert(of)
			case slices.Contains(resource.Verbs, "list") && slices.Contains(resource.Verbs, "patch"):
				found.Insert(of)
			}
		}
	}
	var resources []Resource
	for of := range found {
		resources = append(resources, Resource{GroupResource: of, HasStatus: withStatus.Has(of)})
	}
	slices.SortFunc(resources, func(a, b Resource) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Resource, b.Resource))
	})
	return resources
}

// Rules returns the narrowest rules that let the manager rewrite these resources. Events are only listed: they expire.
// Admission objects are left out: whoever may patch them can remove the fence, which cannot guard itself.
func Rules(resources []Resource) []rbacv1.PolicyRule {
	return rulesFor(slices.DeleteFunc(slices.Clone(resources), Resource.isAdmission))
}

func rulesFor(resources []Resource) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for len(resources) > 0 {
		group := resources[0].Group
		end := slices.IndexFunc(resources, func(r Resource) bool { return r.Group != group })
		if end < 0 {
			end = len(resources)
		}
		var rewritten, statuses, listed []string
		for _, resource := range resources[:end] {
			if storageversion.Expires(resource.GroupResource) {
				listed = append(listed, resource.Resource)
				continue
			}
			rewritten = append(rewritten, resource.Resource)
			if resource.HasStatus {
				statuses = append(statuses, resource.Resource+statusSuffix)
			}
		}
		rules = appendRule(rules, group, listed, "list")
		rules = appendRule(rules, group, rewritten, "get", "list", "patch")
		rules = appendRule(rules, group, statuses, "patch")
		resources = resources[end:]
	}
	return rules
}

func appendRule(rules []rbacv1.PolicyRule, group string, resources []string, verbs ...string) []rbacv1.PolicyRule {
	if len(resources) == 0 {
		return rules
	}
	return append(rules, rbacv1.PolicyRule{APIGroups: []string{group}, Resources: resources, Verbs: verbs})
}

// NewRole returns the ClusterRole with which the manager may rewrite the custom resources and the resources of
// aggregated API servers among these. The other ones are in the role of the manifests.
func NewRole(resources []Resource) *rbacv1.ClusterRole {
	return aggregated(CustomRole, Rules(slices.DeleteFunc(slices.Clone(resources), func(r Resource) bool {
		return releases.BuiltIn(r.Group) || r.Group == v1alpha1.GroupName
	})))
}

// NewAdmissionRole returns the ClusterRole with which the manager may rewrite the admission objects among these.
func NewAdmissionRole(resources []Resource) *rbacv1.ClusterRole {
	return aggregated(AdmissionRole, rulesFor(slices.DeleteFunc(slices.Clone(resources), func(r Resource) bool {
		return !r.isAdmission()
	})))
}

// aggregated returns a ClusterRole whose rules the manager gets as long as it exists.
func aggregated(name string, rules []rbacv1.PolicyRule) *rbacv1.ClusterRole {
	return &rbacv1.ClusterRole{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{AggregateLabel: "true"}},
		Rules:      rules,
	}
}
