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
	"context"
	"errors"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

var errDefinitionUnread = errors.New("reading the CustomResourceDefinition")

// versionsToKeep returns the versions whose entries in managedFields stay, or nil if all entries stay. It must be
// called after the entries were read, and reads the definition from etcd. So it knows each version at which an entry
// can have been written by then: an API server serves a version only after the definition says so. If somebody writes
// an entry later, the rewrite fails with a conflict.
func (r *rewriter) versionsToKeep(ctx context.Context) ([]string, error) {
	if r.resource.ReadServedVersions == nil {
		return nil, nil
	}
	served, err := r.resource.ReadServedVersions(ctx)
	if err != nil && ctx.Err() == nil {
		err = fmt.Errorf("%w: %v", errDefinitionUnread, err) // It must not count as an answer about an object.
	}
	return served, err
}

// cleaned returns the managedFields that the rewrite must write, or nil if they stay as they are. It drops entries
// whose version is not served any more. When that version leaves the definition, the API server cannot convert such an
// entry, and refuses server-side apply of an object that has one.
func (r *rewriter) cleaned(live *metav1.PartialObjectMetadata, served []string) []metav1.ManagedFieldsEntry {
	kept := slices.DeleteFunc(slices.Clone(live.ManagedFields), r.namesOther(served))
	if len(kept) == len(live.ManagedFields) {
		return nil
	}
	if len(kept) == 0 {
		// If no entry were left, the next apply would give all fields to a manager "before-first-apply", and no later apply
		// could remove one of them. An entry for the name alone prevents that.
		kept = []metav1.ManagedFieldsEntry{{
			Manager:    controller.MigratorFieldManager,
			Operation:  metav1.ManagedFieldsOperationApply,
			APIVersion: r.resource.GroupVersion().String(),
			Time:       live.CreationTimestamp.DeepCopy(),
			FieldsType: "FieldsV1",
			FieldsV1:   metav1.NewFieldsV1(`{"f:metadata":{"f:name":{}}}`),
		}}
	}
	return kept
}

// namesOther returns a function that reports whether an entry of managedFields names a version of the resource that is
// none of these versions. If versions is nil, the function always returns false.
func (r *rewriter) namesOther(versions []string) func(metav1.ManagedFieldsEntry) bool {
	return func(entry metav1.ManagedFieldsEntry) bool {
		version, err := schema.ParseGroupVersion(entry.APIVersion)
		return versions != nil && err == nil && version.Group == r.resource.Group &&
			!slices.Contains(versions, version.Version)
	}
}

// countVersions counts the versions of the resource that the managedFields of an object name after its rewrite. It
// counts only for custom resources, because people remove only their versions.
func (r *rewriter) countVersions(counts map[string]int64, entries []metav1.ManagedFieldsEntry) map[string]int64 {
	if r.resource.Class != storageversion.Custom {
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
