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
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// Definition has the few fields of a CustomResourceDefinition that matter.
type Definition struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        objectMeta `json:"metadata"`
	Spec            struct {
		Group string `json:"group"`
		Names struct {
			Plural string `json:"plural"`
			Kind   string `json:"kind"`
		} `json:"names"`
		PreserveUnknownFields bool                `json:"preserveUnknownFields,omitempty"`
		Versions              []DefinitionVersion `json:"versions"`
		Conversion            struct {
			Strategy string `json:"strategy"`
			Webhook  struct {
				ClientConfig struct {
					// Service is nil if the webhook has a URL.
					Service *struct {
						Namespace string `json:"namespace"`
						Name      string `json:"name"`
					} `json:"service"`
				} `json:"clientConfig"`
			} `json:"webhook"`
		} `json:"conversion"`
	} `json:"spec"`
	Status struct {
		StoredVersions []string           `json:"storedVersions"`
		Conditions     []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

// DefinitionVersion is one version. Of its schema there is only a sum.
type DefinitionVersion struct {
	Name    string    `json:"name"`
	Served  bool      `json:"served"`
	Storage bool      `json:"storage"`
	Schema  schemaSum `json:"schema,omitzero"`
	// Subresources says whether the status has a resource of its own, through which objects may be rewritten.
	Subresources struct {
		Status json.RawMessage `json:"status,omitempty"`
	} `json:"subresources,omitzero"`
}

// schemaSum differs if the JSON of two schemas differs. Schemas are too large to be kept.
type schemaSum [8]byte

// UnmarshalJSON takes the sum of a schema.
func (s *schemaSum) UnmarshalJSON(schema []byte) error {
	sum := sha256.Sum256(schema)
	copy(s[:], sum[:])
	return nil
}

// GetObjectMeta lets a Reflector read the metadata.
func (d *Definition) GetObjectMeta() metav1.Object { return d.Metadata.object() }

// DeepCopyObject makes it a runtime.Object.
func (d *Definition) DeepCopyObject() runtime.Object { return shallowCopy(d) }

// Resource is what the definition defines.
func (d *Definition) Resource() schema.GroupResource {
	return schema.GroupResource{Group: d.Spec.Group, Resource: d.Spec.Names.Plural}
}

// StorageVersion is the version that API servers write.
func (d *Definition) StorageVersion() string {
	for _, v := range d.Spec.Versions {
		if v.Storage {
			return v.Name
		}
	}
	return ""
}

// Hash is the hash of the encoding that API servers write.
func (d *Definition) Hash() string { return d.HashAt(d.StorageVersion()) }

// HashAt is the hash of the encoding at a version.
func (d *Definition) HashAt(version string) string {
	return storageversion.Hash(schema.GroupVersion{Group: d.Spec.Group, Version: version}, d.Spec.Names.Kind)
}

// Has reports whether there is a version, served or not.
func (d *Definition) Has(version string) bool { return slices.Contains(d.DefinedVersions(), version) }

// DefinedVersions are all versions.
func (d *Definition) DefinedVersions() []string {
	var defined []string
	for _, v := range d.Spec.Versions {
		defined = append(defined, v.Name)
	}
	return defined
}

// ServedVersions are the versions that API servers serve, in the order in which discovery prefers them.
func (d *Definition) ServedVersions() []string {
	var served []string
	for _, v := range d.Spec.Versions {
		if v.Served {
			served = append(served, v.Name)
		}
	}
	slices.SortFunc(served, func(a, b string) int { return version.CompareKubeAwareVersionStrings(b, a) })
	return served
}

// ConvertedByWebhook reports whether a webhook converts objects between versions. Otherwise API servers only change
// apiVersion, and remove the fields that the schema of the version of a request does not have.
func (d *Definition) ConvertedByWebhook() bool { return d.Spec.Conversion.Strategy == "Webhook" }

// Content differs if two definitions differ in how API servers store an object: in the versions, their schemas, whether
// they have a status, or the strategy of conversion.
func (d *Definition) Content() string {
	return fmt.Sprint(d.Spec.Versions, d.Spec.Conversion.Strategy, d.Spec.PreserveUnknownFields)
}

// StoredVersionsManager is the field manager whose request was the last to change status.storedVersions, or empty. The
// storage versions that an API server adds by itself do not count.
func (d *Definition) StoredVersionsManager() string {
	for _, fields := range d.Metadata.ManagedFields {
		if fields.FieldsV1.Status.StoredVersions != nil {
			return fields.Manager
		}
	}
	return ""
}

// Established reports whether API servers serve the resource.
func (d *Definition) Established() bool {
	return meta.IsStatusConditionTrue(d.Status.Conditions, "Established")
}

// StorageMigrating reports whether kube-controller-manager migrates the resource.
func (d *Definition) StorageMigrating() bool {
	return meta.IsStatusConditionTrue(d.Status.Conditions, "StorageMigrating")
}
