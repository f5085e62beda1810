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

package model

import (
	"fmt"
	"strconv"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"
)

const (
	// Group is the API group of the custom resources.
	Group = "chaos.example.com"
	// Namespace is where the objects are.
	Namespace = "chaos"
	// WriteLabel has the number of the write that an object says it comes from.
	WriteLabel = Group + "/write"
	// NamePrefix is what names of objects begin with.
	NamePrefix = "object-"
)

// Resource is a resource that the writers write.
type Resource struct {
	schema.GroupResource
	Kind string
	// Versions are those that are served and may be stored, the older one first.
	Versions []string
	// Prefix is where etcd has the objects.
	Prefix string
	// ClusterScoped is true if the objects have no namespace.
	ClusterScoped bool
	// Names is how many names there are for objects.
	Names int
}

// Gears have a conversion webhook, because the two versions call a field differently. Springs have none.
var (
	Gears      = custom("gears", "Gear", 120)
	Springs    = custom("springs", "Spring", 120)
	ConfigMaps = Resource{schema.GroupResource{Resource: "configmaps"}, "ConfigMap", []string{"v1"},
		"/registry/configmaps/" + Namespace + "/", false, 30}
	Secrets = Resource{schema.GroupResource{Resource: "secrets"}, "Secret", []string{"v1"},
		"/registry/secrets/" + Namespace + "/", false, 30}
	// Policies are stored as v1beta1 by servers that emulate Kubernetes 1.36, and as v1 by those that do not.
	Policies = Resource{schema.GroupResource{Group: "admissionregistration.k8s.io", Resource: "mutatingadmissionpolicies"},
		"MutatingAdmissionPolicy", []string{"v1beta1", "v1"}, "/registry/mutatingadmissionpolicies/", true, 30}

	// Resources are all of them.
	Resources = []Resource{Gears, Springs, ConfigMaps, Secrets, Policies}
)

func custom(plural, kind string, names int) Resource {
	return Resource{schema.GroupResource{Group: Group, Resource: plural}, kind, []string{"v1", "v2"},
		"/registry/" + Group + "/" + plural + "/" + Namespace + "/", false, names}
}

// Custom tells whether the resource has a definition.
func (r Resource) Custom() bool { return r.Group == Group }

// Name is one of the names of objects.
func (r Resource) Name(i int) string { return fmt.Sprintf("%s%03d", NamePrefix, i) }

// Hash is that of the encoding of a version.
func (r Resource) Hash(version string) string {
	return discovery.StorageVersionHash(r.Group, version, r.Kind)
}

// Path is where an API server has the objects, or the one of that name.
func (r Resource) Path(version, name string) string {
	path := "/apis/" + r.Group + "/" + version
	if r.Group == "" {
		path = "/api/" + version
	}
	if !r.ClusterScoped {
		path += "/namespaces/" + Namespace
	}
	path += "/" + r.Resource
	if name != "" {
		path += "/" + name
	}
	return path
}

// Object is what a write creates. All of it that may change comes from the number of the write.
func (r Resource) Object(version, name string, write int64) map[string]any {
	object := r.Change(version, write)
	object["apiVersion"] = schema.GroupVersion{Group: r.Group, Version: version}.String()
	object["kind"] = r.Kind
	metadata := object["metadata"].(map[string]any)
	metadata["name"] = name
	if r.Resource == Policies.Resource {
		spec := object["spec"].(map[string]any)
		spec["failurePolicy"], spec["reinvocationPolicy"] = "Ignore", "Never"
		spec["matchConstraints"] = map[string]any{"resourceRules": []any{map[string]any{
			"apiGroups": []any{"nothing.example.com"}, "apiVersions": []any{"*"}, "resources": []any{"*"},
			"operations": []any{"CREATE"},
		}}}
		spec["mutations"] = []any{map[string]any{
			"patchType": "ApplyConfiguration", "applyConfiguration": map[string]any{"expression": "Object{}"},
		}}
	}
	return object
}

// Change is the merge patch of a write that changes an object.
func (r Resource) Change(version string, write int64) map[string]any {
	number := strconv.FormatInt(write, 10)
	change := map[string]any{"metadata": map[string]any{"labels": map[string]any{WriteLabel: number}}}
	switch r.Resource {
	case ConfigMaps.Resource:
		change["data"] = map[string]any{"write": number}
	case Secrets.Resource:
		change["stringData"] = map[string]any{"write": number}
	case Policies.Resource:
		change["spec"] = map[string]any{"variables": []any{map[string]any{"name": "write", "expression": number}}}
	default:
		change["spec"] = map[string]any{r.field(version): write}
	}
	return change
}

// Payload is the number of the write that is in the body of a stored object.
func (r Resource) Payload(content map[string]any) string {
	switch r.Resource {
	case ConfigMaps.Resource, Secrets.Resource:
		number, _, _ := unstructured.NestedString(content, "data", "write")
		return number
	case Policies.Resource:
		variables, _, _ := unstructured.NestedSlice(content, "spec", "variables")
		if len(variables) != 1 {
			return ""
		}
		number, _ := variables[0].(map[string]any)["expression"].(string)
		return number
	}
	number, _, _ := unstructured.NestedInt64(content, "spec", fieldNames["v1"])
	return strconv.FormatInt(number, 10)
}

// fieldNames has the name of the only field of gears by version.
var fieldNames = map[string]string{"v1": "size", "v2": "length"}

// FieldNames is what the conversion webhook of gears needs to know.
func FieldNames() map[string]string { return fieldNames }

func (r Resource) field(version string) string {
	if r.Resource == Gears.Resource {
		return fieldNames[version]
	}
	return fieldNames["v1"]
}

// Definition is the definition of a custom resource that stores the version.
func (r Resource) Definition(storage string) *apiextensionsv1.CustomResourceDefinition {
	definition := &apiextensionsv1.CustomResourceDefinition{}
	definition.Name = r.GroupResource.String()
	definition.Spec.Group = r.Group
	definition.Spec.Scope = apiextensionsv1.NamespaceScoped
	definition.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: r.Resource, Kind: r.Kind}
	for _, version := range r.Versions {
		definition.Spec.Versions = append(definition.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: version, Served: true, Storage: version == storage,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object",
				Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
						r.field(version): {Type: "integer", Format: "int64"},
					},
				}},
			}},
		})
	}
	return definition
}
