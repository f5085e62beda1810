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

package preflight

import (
	"fmt"
	"maps"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// lostFields returns the fields of each version of a definition that its storage version lacks. Without a conversion
// webhook the API server drops them when it stores an object.
func lostFields(object *unstructured.Unstructured) (map[string][]string, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &crd); err != nil {
		return nil, fmt.Errorf("reading CustomResourceDefinition %q: %w", object.GetName(), err)
	}
	all := map[string][]string{}
	versions := crd.Spec.Versions
	stored := slices.IndexFunc(versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })
	if stored < 0 || crd.Spec.PreserveUnknownFields || versions[stored].Schema == nil {
		return all, nil
	}
	for i := range versions {
		if schema := versions[i].Schema; schema != nil && schema.OpenAPIV3Schema != nil {
			from := schema.OpenAPIV3Schema.DeepCopy()
			maps.DeleteFunc(from.Properties, func(name string, _ apiextensionsv1.JSONSchemaProps) bool {
				return slices.Contains([]string{"apiVersion", "kind", "metadata"}, name) // Every object has them.
			})
			all[versions[i].Name] = lost(from, versions[stored].Schema.OpenAPIV3Schema, "")
		}
	}
	return all, nil
}

// lost returns the paths of what one schema allows and another one does not keep.
func lost(from, to *apiextensionsv1.JSONSchemaProps, path string) (paths []string) {
	if from == nil || to == nil || ptr.Deref(to.XPreserveUnknownFields, false) {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(from.Properties)) {
		field := from.Properties[name]
		kept, has := to.Properties[name]
		switch {
		case has:
			paths = append(paths, lost(&field, &kept, path+"."+name)...)
		case to.AdditionalProperties != nil:
			paths = append(paths, lost(&field, to.AdditionalProperties.Schema, path+"."+name)...)
		default:
			paths = append(paths, path+"."+name)
		}
	}
	if from.Items != nil && to.Items != nil {
		paths = append(paths, lost(from.Items.Schema, to.Items.Schema, path+"[]")...)
	}
	anyName := from.AdditionalProperties != nil || ptr.Deref(from.XPreserveUnknownFields, false)
	switch {
	case from.AdditionalProperties != nil && to.AdditionalProperties != nil:
		paths = append(paths, lost(from.AdditionalProperties.Schema, to.AdditionalProperties.Schema, path+".*")...)
	case anyName && to.AdditionalProperties == nil:
		paths = append(paths, path+".*")
	}
	return paths
}
