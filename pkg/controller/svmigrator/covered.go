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
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// This file keeps migrations from repeating work. A person can create many migrations of one resource. The first that
// runs does the work of all that were created before it began, and they succeed with it. If a migration failed because
// of denied objects, the trigger's next migration for the same target rewrites only these objects.

// findCovered returns the other unfinished migrations of the resource that could start now. This run does their work.
// Migrations that have to wait are not among them, because they may need a later rewrite, for example with a new
// encryption key.
func (r *migrationRun) findCovered() map[types.UID]int64 {
	others := map[types.UID]int64{}
	for _, m := range r.env.caches.MigrationsOf(r.resource) {
		if m.UID != r.uid && !m.Finished() && r.env.decideCached(m).Verdict == Go {
			others[m.UID] = m.Generation
		}
	}
	return others
}

// endCovered ends the migrations in run.covered with success, if the run has succeeded and a migration asks for nothing
// more than the run has done. Other migrations run by themselves. So does one that somebody has suspended and resumed
// meanwhile, which its generation shows: it may be for a new encryption key.
func (c *Controller) endCovered(ctx context.Context, run *migrationRun) {
	first := run.status.stored
	if !first.IsConditionTrue(migrationv1alpha1.MigrationSucceeded) {
		return
	}
	for _, m := range c.env.caches.MigrationsOf(run.resource) {
		generation, covered := run.covered[m.UID]
		if m.Finished() || !covered || !wantsTarget(m, first.Status.Target) {
			continue
		}
		status := &statusWriter{env: c.env, stored: m}
		err := status.refresh(ctx)
		if err == nil && status.stored.Generation == generation {
			err = status.write(ctx, coveredBy(first))
		}
		if err != nil && !errors.Is(err, errMigrationGone) && !errors.Is(err, controller.ErrOutdated) {
			utilruntime.HandleErrorWithContext(ctx, err, "Ending a covered migration failed, so it will run by itself",
				"covered", m.Name)
		}
	}
}

// wantsTarget reports whether a migration asks for nothing more than a success with this target.
func wantsTarget(m *migrationv1alpha1.StorageVersionMigration, target *migrationv1alpha1.MigrationTarget) bool {
	asked := m.EffectiveTarget()
	return asked == nil || asked.StorageVersionHash == target.StorageVersionHash &&
		(asked.Epoch == nil || target.Epoch != nil && *asked.Epoch == *target.Epoch) &&
		(asked.StorageStateUID == "" || asked.StorageStateUID == target.StorageStateUID)
}

// coveredBy ends a migration with the success of another one.
func coveredBy(first *migrationv1alpha1.StorageVersionMigration) statusChange {
	return func(status *migrationv1alpha1.StorageVersionMigrationStatus, now time.Time) {
		status.Target, status.Evidence = first.Status.Target, first.Status.Evidence
		status.StartTime, status.ManagedFieldsVersions = first.Status.StartTime, first.Status.ManagedFieldsVersions
		ended(migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.MigrationReasonAllObjectsMigrated,
			"The migration "+first.Name+", which began after this one was created, has brought every object to "+
				versionName(first.Status.Target)+".")(status, now)
	}
}

// deniedBefore returns an earlier migration if only its denied objects are left to rewrite, else nil. All other objects
// are stored in the target encoding if the target has the same epoch: the earlier migration has rewritten them, and the
// servers have written no other encoding since. A migration that a person created rewrites all objects, because it may
// be for a new encryption key.
func (r *migrationRun) deniedBefore(
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
	return m.IsConditionTrue(migrationv1alpha1.MigrationFailed) && m.Status.SweepCompletionTime != nil && namesDenied(m) &&
		failed.Reason == migrationv1alpha1.MigrationReasonObjectsDenied
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
	if m.Status.Progress.Denied > int64(len(m.Status.DeniedObjects)) {
		return nil
	}
	return m.Status.DeniedObjects
}
