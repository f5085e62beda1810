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
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	migrationlisters "sigs.k8s.io/svm-api/client/listers/migration/v1alpha1"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// coreSubsystem begins the names of those metrics that the earlier migrators have as well. All others begin with
// rewrite.Subsystem.
const coreSubsystem = "storage_migrator_core_migrator"

var (
	migratedObjects = controller.NewCounter(coreSubsystem, "migrated_objects_total",
		"Number of objects that are known to be stored in the target encoding or deleted, by resource.", "resource")
	migrations = controller.NewCounter(coreSubsystem, "migrations_total",
		"Number of migrations that ended, by resource and status: Succeeded or Failed.", "resource", "status")
	outcomes = controller.NewCounter(rewrite.Subsystem, "object_outcomes_total",
		"Number of objects by outcome: Rewritten, AlreadyCurrent, WrittenByOthers, Gone or Denied. An object that was "+
			"denied and tried once more counts twice. An object that needs no rewrite does not count after the list had to "+
			"begin anew.", "outcome")
	warnings = controller.NewCounter(rewrite.Subsystem, "warnings_total",
		"Number of Warning events on StorageVersionMigrations, by their reason.", "reason")
	migrationDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem:      rewrite.Subsystem,
		Name:           "migration_duration_seconds",
		Help:           "Time from the start of a migration to its end, by status.",
		Buckets:        metrics.ExponentialBuckets(1, 4, 10),
		StabilityLevel: metrics.ALPHA,
	}, []string{"status"})

	remainingObjects = controller.NewGaugeDesc(coreSubsystem, "remaining_objects",
		"Number of objects that running migrations have not processed yet, by resource. It is missing where the API server "+
			"does not report how many there are.", "resource")
	newestMigrations = controller.NewGaugeDesc(rewrite.Subsystem, "newest_migrations",
		"Number of resources by the condition of their migration that runs, otherwise of their newest one: Waiting, "+
			"Running, Succeeded or Failed, and the reason of this condition.", "condition", "reason")
	runningMigrations = controller.NewGaugeDesc(rewrite.Subsystem, "running_migrations",
		"Number of migrations that write.")
	queuedMigrations = controller.NewGaugeDesc(rewrite.Subsystem, "queued_migrations",
		"Number of migrations that wait for a slot.")
	paceLimit = controller.NewGaugeDesc(rewrite.Subsystem, "pace_limit",
		"Number of rewrites that may be under way at a time. Less than one means that there are pauses between rewrites.")
	paceInFlight = controller.NewGaugeDesc(rewrite.Subsystem, "pace_in_flight", "Number of rewrites that are under way.")
	paceOthers   = controller.NewGaugeDesc(rewrite.Subsystem, "pace_others_writes_per_second",
		"Number of objects that other clients wrote per second lately, as etcd's revision shows. It is measured only while "+
			"migrations run.")
	storageGrowth = controller.NewGaugeDesc(rewrite.Subsystem, "storage_growth_bytes",
		"By how much the database file of etcd has grown since migrations began to rewrite.")
	awaitingSpace = controller.NewGaugeDesc(rewrite.Subsystem, "awaiting_storage_space",
		"1 while migrations wait for a compaction of etcd, or for an API server that reports the size of etcd's "+
			"database, else 0.")

	gauges = controller.NewGauges(collect, remainingObjects, newestMigrations, runningMigrations, queuedMigrations,
		paceLimit, paceInFlight, paceOthers, storageGrowth, awaitingSpace)
)

// Register adds the metrics of the migrator to the legacy registry, once.
var Register = sync.OnceFunc(func() {
	legacyregistry.MustRegister(migratedObjects, migrations, outcomes, warnings, migrationDuration,
		rewrite.RetriedRequests)
	legacyregistry.CustomMustRegister(gauges)
	// Create the series at zero. The function increase() does not count a series that appears with the value one.
	for _, reason := range []string{EventFailed, EventStoredVersionsNotPruned, EventStatusNotWritten} {
		warnings.WithLabelValues(reason)
	}
	migrationDuration.WithLabelValues(string(migrationv1alpha1.MigrationSucceeded))
	migrationDuration.WithLabelValues(string(migrationv1alpha1.MigrationFailed))
	for _, outcome := range sweep.Outcomes {
		outcomes.WithLabelValues(outcome.String())
	}
})

func collect(c *Controller, gauge controller.Gauge) {
	running := c.runs.all()
	for _, run := range running {
		m := c.env.caches.Migration(run.name)
		if m != nil && m.Status.Progress != nil && m.Status.Progress.EstimatedTotal != nil {
			remaining := max(0, *m.Status.Progress.EstimatedTotal-m.Status.Progress.Processed)
			gauge(remainingObjects, float64(remaining), run.resource.String())
		}
	}
	collectNewest(c.env.caches.Migrations, c.env.observer, gauge)
	gauge(runningMigrations, float64(len(running)))
	gauge(queuedMigrations, float64(c.ready.Len()))
	pace := c.pacer.Snapshot()
	gauge(paceLimit, pace.Limit)
	gauge(paceInFlight, float64(pace.InFlight))
	gauge(paceOthers, pace.OthersWrite)
	c.env.space.collect(gauge)
}

// countsInsteadOf reports whether a migration is counted instead of another one of its resource. One that waits for the
// end of the other does not hide it: otherwise no alert would say that the other one makes no progress.
func countsInsteadOf(m, other *migrationv1alpha1.StorageVersionMigration) bool {
	runs := m.IsConditionTrue(migrationv1alpha1.MigrationRunning)
	if runs != other.IsConditionTrue(migrationv1alpha1.MigrationRunning) {
		return runs
	}
	return createdAfter(m, other)
}

// collectNewest leaves out resources whose definition was deleted: nothing of them is left to be migrated.
func collectNewest(
	migrations migrationlisters.StorageVersionMigrationLister, observer Observer, gauge controller.Gauge,
) {
	// Listing from a cache never fails.
	all, _ := migrations.List(labels.Everything())
	newest := map[schema.GroupResource]*migrationv1alpha1.StorageVersionMigration{}
	for _, m := range all {
		if other := newest[m.GroupResource()]; other == nil || countsInsteadOf(m, other) {
			newest[m.GroupResource()] = m
		}
	}
	type state struct{ condition, reason string }
	resources := map[state]int{}
	for resource, m := range newest {
		if observed := observer.Observe(resource); observed.DefinitionDeleted(m.Status.Evidence) {
			continue
		}
		is := state{condition: "Pending"} // Nobody has written a condition yet.
		for _, condition := range migrationv1alpha1.MigrationConditionTypes {
			if m.IsConditionTrue(condition) {
				is = state{string(condition), m.Status.Condition(condition).Reason}
			}
		}
		resources[is]++
	}
	for s, number := range resources {
		gauge(newestMigrations, float64(number), s.condition, s.reason)
	}
}

func (s *space) collect(gauge controller.Gauge) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if file := s.growth.file; file.last > 0 {
		gauge(storageGrowth, float64(file.last-file.first))
	}
	paused := 0.
	if s.pause != nil {
		paused = 1
	}
	gauge(awaitingSpace, paused)
}
