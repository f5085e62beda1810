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
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Definition has what matters of a CustomResourceDefinition.
type Definition struct {
	Group, Plural, Kind string
	// UID and Generation are those of the definition in the cluster.
	UID            types.UID
	Generation     int64
	Versions       []apiextensionsv1.CustomResourceDefinitionVersion
	Conversion     *apiextensionsv1.CustomResourceConversion
	StoredVersions []string
}

// slim drops the schemas, which are large.
func slim(crd *apiextensionsv1.CustomResourceDefinition) Definition {
	d := Definition{
		UID: crd.UID, Generation: crd.Generation,
		Group: crd.Spec.Group, Plural: crd.Spec.Names.Plural, Kind: crd.Spec.Names.Kind, Conversion: crd.Spec.Conversion,
		StoredVersions: crd.Status.StoredVersions,
	}
	for _, v := range crd.Spec.Versions {
		d.Versions = append(d.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: v.Name, Served: v.Served, Storage: v.Storage,
		})
	}
	return d
}

// Name is the name of the definition, and of the StorageState of its resource.
func (d *Definition) Name() string { return d.Plural + "." + d.Group }

// StorageVersion is the version that API servers write.
func (d *Definition) StorageVersion() string {
	for _, v := range d.Versions {
		if v.Storage {
			return v.Name
		}
	}
	return ""
}

// ServedVersions are the versions that API servers serve.
func (d *Definition) ServedVersions() []string {
	var served []string
	for _, v := range d.Versions {
		if v.Served {
			served = append(served, v.Name)
		}
	}
	return served
}

// Has reports whether the definition has a version, served or not.
func (d *Definition) Has(version string) bool {
	for _, v := range d.Versions {
		if v.Name == version {
			return true
		}
	}
	return false
}

// converts reports whether a webhook converts between versions.
func (d *Definition) converts() bool {
	return d.Conversion != nil && d.Conversion.Strategy == apiextensionsv1.WebhookConverter
}
