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
	"k8s.io/apimachinery/pkg/api/equality"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// If a migration failed because of denied objects, the trigger's next migration for the same target rewrites only these
// objects.

// earlierWithDenied returns an earlier migration if only its denied objects are left to rewrite, else nil. All other
// objects are stored in the target encoding if the target has the same epoch: the earlier migration has rewritten them,
// and the servers have written no other encoding since. That is also true after the start of this migration, so another
// process finds the same again. A migration that a person created rewrites all objects, because it may be for a new
// encryption key.
func (r *migrationRun) earlierWithDenied(
	target *migrationv1alpha1.MigrationTarget,
) *migrationv1alpha1.StorageVersionMigration {
	// If managedFields are cleaned, all objects are rewritten: those that the earlier migration has rewritten may name
	// versions that are not served any more.
	if !r.status.stored.HasEpoch() || target.Epoch == nil || r.cleans() {
		return nil
	}
	var last *migrationv1alpha1.StorageVersionMigration
	for _, m := range r.env.caches.MigrationsOf(r.resource) {
		if triedAll(m) && equality.Semantic.DeepEqual(m.Status.Target, target) &&
			(last == nil || createdAfter(m, last)) {
			last = m
		}
	}
	return last
}

// triedAll reports whether a migration has tried all objects, and failed only because some of them were denied.
func triedAll(m *migrationv1alpha1.StorageVersionMigration) bool {
	failed := m.Status.Condition(migrationv1alpha1.MigrationFailed)
	return m.IsConditionTrue(migrationv1alpha1.MigrationFailed) && m.Status.SweepCompletionTime != nil &&
		objectsLeft(&m.Status) > 0 && failed.Reason == migrationv1alpha1.MigrationReasonObjectsDenied
}

// positionAfter returns where a migration begins that follows one with denied objects.
func positionAfter(before *migrationv1alpha1.StorageVersionMigration) sweep.Position {
	position := sweep.Position{Baseline: before.Status.BaselineResourceVersion}
	if allDenied(before) != nil {
		position.Versions = positionOf(&before.Status).Versions // A list would count them again.
	}
	return position
}

// allDenied returns the objects that were denied, or nil if the status does not name all of them.
func allDenied(m *migrationv1alpha1.StorageVersionMigration) []migrationv1alpha1.DeniedObject {
	if objectsLeft(&m.Status) > int64(len(m.Status.DeniedObjects)) {
		return nil
	}
	return m.Status.DeniedObjects
}
