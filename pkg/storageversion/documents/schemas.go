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

package documents

import (
	"context"
	"maps"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// LossyVersions returns the served versions of a custom resource that have fields which API servers drop when they
// store an object.
func (r Reader) LossyVersions(ctx context.Context, resource schema.GroupResource) (lossy []string, err error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := r.decodeJSON(ctx, DefinitionPath(resource), definitionKind, crd); err != nil {
		return nil, err
	}
	lost := LostFields(crd)
	for _, v := range crd.Spec.Versions {
		if v.Served && len(lost[v.Name]) > 0 {
			lossy = append(lossy, v.Name)
		}
	}
	return lossy, nil
}

// LostFields returns the fields of each version of a definition that its storage version lacks. API servers drop them
// when they store an object. If a webhook converts the objects, it returns none, because the webhook may keep them.
func LostFields(crd *apiextensionsv1.CustomResourceDefinition) map[string][]string {
	all := map[string][]string{}
	versions, conversion := crd.Spec.Versions, crd.Spec.Conversion
	stored := slices.IndexFunc(versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Storage })
	if stored < 0 || crd.Spec.PreserveUnknownFields || versions[stored].Schema == nil ||
		conversion != nil && conversion.Strategy == apiextensionsv1.WebhookConverter {
		return all
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
	return all
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
	switch {
	case ptr.Deref(from.XPreserveUnknownFields, false), from.AdditionalProperties != nil && to.AdditionalProperties == nil:
		paths = append(paths, path+".*")
	case from.AdditionalProperties != nil:
		paths = append(paths, lost(from.AdditionalProperties.Schema, to.AdditionalProperties.Schema, path+".*")...)
	}
	return paths
}
