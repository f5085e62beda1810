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
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
)

// cleaner drops entries of managedFields whose version is not served any more. The API server cannot convert such an
// entry, and refuses server-side apply of an object that has one.
type cleaner struct {
	group string
	// served are the versions that are served. The cleaner writes an entry of its own in the version kept.
	served []string
	kept   string
}

// cleaned returns the managedFields that the object must get, or nil if it has no entry to drop.
func (c *cleaner) cleaned(live *metav1.PartialObjectMetadata) []metav1.ManagedFieldsEntry {
	kept := slices.DeleteFunc(slices.Clone(live.ManagedFields), c.stale)
	if len(kept) == len(live.ManagedFields) {
		return nil
	}
	if len(kept) == 0 {
		// If no entry were left, the next apply would give all fields to a manager "before-first-apply", and whoever applies
		// could never remove one of them. An entry for the name alone prevents that.
		kept = []metav1.ManagedFieldsEntry{c.seed(live)}
	}
	return kept
}

func (c *cleaner) stale(entry metav1.ManagedFieldsEntry) bool {
	version, err := schema.ParseGroupVersion(entry.APIVersion)
	return err == nil && version.Group == c.group && !slices.Contains(c.served, version.Version)
}

func (c *cleaner) seed(live *metav1.PartialObjectMetadata) metav1.ManagedFieldsEntry {
	created := live.CreationTimestamp
	return metav1.ManagedFieldsEntry{
		Manager:    controller.MigratorFieldManager,
		Operation:  metav1.ManagedFieldsOperationApply,
		APIVersion: schema.GroupVersion{Group: c.group, Version: c.kept}.String(),
		Time:       &created,
		FieldsType: "FieldsV1",
		FieldsV1:   metav1.NewFieldsV1(`{"f:metadata":{"f:name":{}}}`),
	}
}

// namesUndefinedVersion reports whether an entry names a version that the CustomResourceDefinition lacks.
func (r *rewriter) namesUndefinedVersion(entry metav1.ManagedFieldsEntry) bool {
	version, err := schema.ParseGroupVersion(entry.APIVersion)
	return err == nil && r.defined != nil && version.Group == r.resource.Group &&
		!slices.Contains(r.defined, version.Version)
}

// countVersions counts the versions of the resource that the managedFields of an object name after its rewrite. Only
// custom resources have versions that people drop.
func (r *rewriter) countVersions(counts map[string]int64, entries []metav1.ManagedFieldsEntry) map[string]int64 {
	if !r.countsVersions {
		return nil
	}
	if counts == nil {
		counts = map[string]int64{}
	}
	named := sets.New[string]()
	for _, entry := range entries {
		if version, err := schema.ParseGroupVersion(entry.APIVersion); err == nil && version.Group == r.resource.Group {
			named.Insert(version.Version)
		}
	}
	for version := range named {
		counts[version]++
	}
	return counts
}
