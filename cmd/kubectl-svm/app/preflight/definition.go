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
	"slices"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// Definition is a CustomResourceDefinition.
type Definition struct {
	apiextensionsv1.CustomResourceDefinition
}

// slim drops what is large and not needed: a cluster may have thousands of definitions.
func slim(crd *apiextensionsv1.CustomResourceDefinition) Definition {
	crd.ManagedFields, crd.Annotations = nil, nil
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Schema = nil
	}
	return Definition{*crd}
}

// StorageVersion is the version that API servers write.
func (d *Definition) StorageVersion() string {
	version, _ := apihelpers.GetCRDStorageVersion(&d.CustomResourceDefinition) // A definition without one is refused.
	return version
}

// ServedVersions are the versions that API servers serve.
func (d *Definition) ServedVersions() []string {
	var served []string
	for _, v := range d.Spec.Versions {
		if v.Served {
			served = append(served, v.Name)
		}
	}
	return served
}

// Has reports whether the definition has a version, served or not.
func (d *Definition) Has(version string) bool {
	return slices.ContainsFunc(d.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Name == version
	})
}

// hash stands for a version of the definition in a StorageState.
func (d *Definition) hash(version string) string {
	return storageversion.Hash(schema.GroupVersion{Group: d.Spec.Group, Version: version}, d.Spec.Names.Kind)
}

// converts reports whether a webhook converts between versions.
func (d *Definition) converts() bool {
	return d.Spec.Conversion != nil && d.Spec.Conversion.Strategy == apiextensionsv1.WebhookConverter
}
