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

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// fingerprint stands for the metadata of an object that a rewrite must not change. The API server counts changes of the
// rest in the generation, for resources that have one.
type fingerprint struct {
	generation                              int64
	labels, annotations, finalizers, owners uint64
}

func fingerprintOf(m *metav1.ObjectMeta) fingerprint {
	return fingerprint{
		m.Generation, hashOf(m.Labels), hashOf(m.Annotations), hashOf(m.Finalizers), hashOf(m.OwnerReferences),
	}
}

// hashOf does not depend on the order of a map: Marshal sorts.
func hashOf(value any) uint64 {
	encoded, _ := json.Marshal(value) // Metadata can always be encoded: it was decoded.
	h := fnv.New64a()
	_, _ = h.Write(encoded) // never fails
	return h.Sum64()
}

// differs returns the first field that differs, or nothing.
func (f fingerprint) differs(other fingerprint) string {
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
	// managedFields are those that the object must get, nil if they stay as they are.
	managedFields []metav1.ManagedFieldsEntry
	// managed means that the object of a custom resource has managedFields.
	managed bool
	// namesUndefinedVersion means that an entry of them names a version that the definition lacks, and that the entry
	// stays.
	namesUndefinedVersion bool
}

// keep remembers the metadata of an object before its rewrite. It reports whether managedFields have to be cleaned.
func (r *rewriter) keep(object *sweep.Object, live *metav1.PartialObjectMetadata) (cleans bool) {
	kept := &original{
		fingerprint:   fingerprintOf(&live.ObjectMeta),
		managedFields: r.cleaned(live),
		managed:       r.resource.DefinedVersions != nil && len(live.ManagedFields) > 0,
	}
	if r.resource.CleanVersions == nil {
		kept.namesUndefinedVersion = slices.ContainsFunc(live.ManagedFields, r.namesOther(r.resource.DefinedVersions))
	}
	object.Extra = kept
	return kept.managedFields != nil
}
