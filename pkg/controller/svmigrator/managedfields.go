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

package svmigrator

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// cleaner drops entries of managedFields whose version is served no longer. The API server cannot convert them, and refuses
// server-side apply of an object that has one.
type cleaner struct {
	group string
	// served are the versions that are served, kept is the one in which an entry is made where no other is left.
	served []string
	kept   string
}

// prepare puts on the object what its managedFields are to become, nothing if they are as they should be. It says which.
func (c *cleaner) prepare(object *sweep.Object, live *metav1.PartialObjectMetadata) bool {
	object.Extra = nil
	kept := slices.DeleteFunc(slices.Clone(live.ManagedFields), c.stale)
	if len(kept) == len(live.ManagedFields) {
		return false
	}
	if len(kept) == 0 {
		// With no entry left, the next apply would put all fields down to a manager "before-first-apply", and whoever applies
		// could never remove one again. An entry of nothing but the name keeps that from happening.
		kept = []metav1.ManagedFieldsEntry{c.seed(live)}
	}
	object.Extra = kept
	return true
}

func (c *cleaner) stale(entry metav1.ManagedFieldsEntry) bool {
	version, err := schema.ParseGroupVersion(entry.APIVersion)
	return err == nil && version.Group == c.group && !slices.Contains(c.served, version.Version)
}

func (c *cleaner) seed(live *metav1.PartialObjectMetadata) metav1.ManagedFieldsEntry {
	created := live.CreationTimestamp
	return metav1.ManagedFieldsEntry{
		Manager:    fieldManager,
		Operation:  metav1.ManagedFieldsOperationApply,
		APIVersion: schema.GroupVersion{Group: c.group, Version: c.kept}.String(),
		Time:       &created,
		FieldsType: "FieldsV1",
		FieldsV1:   metav1.NewFieldsV1(`{"f:metadata":{"f:name":{}}}`),
	}
}
