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

package rewrite

import (
	"encoding/json"
	"hash/fnv"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// fingerprint stands for the metadata that a rewrite must not change. For resources with a generation, the API server
// counts changes of the rest of the object in the generation.
type fingerprint struct {
	generation                              int64
	labels, annotations, finalizers, owners uint64
}

func fingerprintOf(m *metav1.ObjectMeta) fingerprint {
	return fingerprint{
		m.Generation, hashOf(m.Labels), hashOf(m.Annotations), hashOf(m.Finalizers), hashOf(distinct(m.OwnerReferences)),
	}
}

// distinct returns the owners without repetitions. API servers once let owners be listed twice, and remove repetitions
// in every patch.
func distinct(owners []metav1.OwnerReference) []metav1.OwnerReference {
	var all []metav1.OwnerReference
	known := sets.New[string]()
	for _, owner := range owners {
		encoded, _ := json.Marshal(owner) // It was decoded.
		if !known.Has(string(encoded)) {
			all = append(all, owner)
			known.Insert(string(encoded))
		}
	}
	return all
}

// hashOf returns a hash of a value. It does not depend on the order of a map, because Marshal sorts the keys.
func hashOf(value any) uint64 {
	encoded, _ := json.Marshal(value) // Metadata can always be encoded, because it was decoded.
	h := fnv.New64a()
	_, _ = h.Write(encoded) // never fails
	return h.Sum64()
}

// firstDifference returns the first field that differs, or an empty string.
func (f fingerprint) firstDifference(other fingerprint) string {
	switch {
	case f.labels != other.labels:
		return ".metadata.labels"
	case f.annotations != other.annotations:
		return ".metadata.annotations"
	case f.finalizers != other.finalizers:
		return ".metadata.finalizers"
	case f.owners != other.owners:
		return ".metadata.ownerReferences"
	case f.generation != other.generation:
		return "what .metadata.generation counts, the spec for most resources"
	default:
		return ""
	}
}

// original is what the rewriter keeps of the metadata of an object until its rewrite is answered.
type original struct {
	fingerprint
	// cleaned are the managedFields that the rewrite must write, or nil if they stay as they are.
	cleaned []metav1.ManagedFieldsEntry
	// hasManagedFields means that it is an object of a custom resource and has managedFields.
	hasManagedFields bool
	// namesUndefinedVersion means that an entry of managedFields names a version that the CustomResourceDefinition lacks,
	// and that managedFields are not cleaned.
	namesUndefinedVersion bool
}

// originalOf returns what keepOriginal has stored.
func originalOf(object *sweep.Object) *original { return object.Extra.(*original) }

// keepOriginal stores in object.Extra what is needed of the metadata for the rewrite. served is what versionsToKeep
// returned.
func (r *rewriter) keepOriginal(object *sweep.Object, live *metav1.PartialObjectMetadata, served []string) {
	kept := &original{fingerprint: fingerprintOf(&live.ObjectMeta), cleaned: r.cleaned(live, served)}
	if schemas := r.resource.Schemas; schemas != nil {
		kept.hasManagedFields = len(live.ManagedFields) > 0
		kept.namesUndefinedVersion = served == nil &&
			slices.ContainsFunc(live.ManagedFields, r.namesOther(schemas.Defined))
	}
	object.Extra, object.NeedsCleaning = kept, kept.cleaned != nil
}
