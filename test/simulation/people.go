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

package simulation

import (
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// migrateByHand is what somebody does who wants a migration.
func (w *world) migrateByHand(resource schema.GroupResource) {
	w.log("somebody creates a migration of %s", resource.Resource)
	_ = w.api.createMigration(&migrationv1alpha1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("by-hand-%s", w.api.nextVersion())},
		Spec: migrationv1alpha1.StorageVersionMigrationSpec{
			Resource: migrationv1alpha1.GroupVersionResource{Group: resource.Group, Resource: resource.Resource},
		},
	})
}

// deleteMigration is what somebody does who does not want one. It may be put back from a copy.
func (w *world) deleteMigration(which int, putBack bool) {
	names := slices.Sorted(maps.Keys(w.api.migrations))
	if len(names) == 0 {
		return
	}
	m := w.api.migrations[names[which%len(names)]]
	w.log("somebody deletes a migration")
	_ = w.api.deleteMigration(m.Name, m.UID)
	if putBack {
		w.log("and puts it back")
		_ = w.api.createMigration(m)
	}
}

func (w *world) pause(resource schema.GroupResource, paused bool) {
	value := ""
	if paused {
		value = "true"
	}
	w.log("paused %v: %s", paused, resource.Resource)
	w.api.annotate(resource.String(), migrationv1alpha1.PausedAnnotation, value)
}

func (w *world) retry(resource schema.GroupResource) {
	w.log("somebody asks for another attempt at %s", resource.Resource)
	w.api.annotate(resource.String(), migrationv1alpha1.RetryAnnotation, w.api.nextVersion())
}
