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

package storageversion

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// definitions knows the CustomResourceDefinition of each custom resource. It is nil if it was deleted.
type definitions map[schema.GroupResource]*Definition

// DefinitionDeleted reports whether the resource was custom, as earlier evidence may show, and its definition was
// deleted. The API server deletes the objects first, unless somebody takes its finalizer away by hand. Then nobody can
// reach the objects.
func (o *Observation) DefinitionDeleted(earlier *migrationv1alpha1.StorageEvidence) bool {
	if o.Presence == Deleted {
		return true
	}
	// The definition was deleted while nobody watched.
	return o.Class == "" && o.Presence == NotServed && earlier != nil &&
		earlier.Source == migrationv1alpha1.EvidenceFromCustomResourceDefinition
}

func (d *Definition) hash(version string) Encoding {
	return Hash(schema.GroupVersion{Group: d.Group, Version: version}, d.Kind)
}

// sighting returns what the definition has the servers write.
func (d *Definition) sighting() Sighting {
	stored := atMost(d.StoredVersions, migrationv1alpha1.MaxEvidenceStoredVersions)
	sighting := Sighting{
		Evidence: migrationv1alpha1.StorageEvidence{
			Source: migrationv1alpha1.EvidenceFromCustomResourceDefinition,
			CustomResourceDefinition: &migrationv1alpha1.CustomResourceDefinitionEvidence{
				UID: d.UID, Generation: d.Generation, StoredVersions: slices.Clone(stored),
			},
		},
		Writing: []Encoding{d.hash(d.StorageVersion)},
	}
	for _, version := range stored {
		sighting.Stored = append(sighting.Stored, d.hash(version))
	}
	return sighting
}
