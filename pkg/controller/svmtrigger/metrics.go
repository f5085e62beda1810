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

package svmtrigger

import (
	"slices"
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-base/metrics/legacyregistry"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
)

const subsystem = "storage_version_migration_trigger"

var (
	migrationsCreated = controller.NewCounter(subsystem, "migrations_created_total",
		"Number of StorageVersionMigrations that the trigger created.")
	migrationsDeleted = controller.NewCounter(subsystem, "migrations_deleted_total",
		"Number of unfinished StorageVersionMigrations that the trigger deleted, by the reason.", "reason")
	warnings = controller.NewCounter(subsystem, "warnings_total",
		"Number of Warning events on StorageStates, by their reason.", "reason")

	storageStates = controller.NewGaugeDesc(subsystem, "storage_states",
		"Number of StorageStates by how many encodings their stored objects may have: 1, 2, 3+, or unknown. "+
			"Everything is migrated when all have 1.", "persisted")
	notAgreed = controller.NewGaugeDesc(subsystem, "resources_not_agreed",
		"Number of resources on whose encoding the servers have not agreed for long enough, "+
			"by the reason of the Agreed condition.", "reason")
	notMigrated = controller.NewGaugeDesc(subsystem, "resources_not_migrated",
		"Number of resources with objects that may be stored in old encodings, by the reason of the Migrated condition.",
		"reason")
	sinceLastRead = controller.NewGaugeDesc(subsystem, "seconds_since_last_observation",
		"Time since the last successful observation of what the servers write, by source.", "source")

	gauges = controller.NewGauges(collectGauges, storageStates, notAgreed, notMigrated, sinceLastRead)
)

// Register adds the metrics of this package to the legacy registry, once.
var Register = sync.OnceFunc(func() {
	legacyregistry.MustRegister(migrationsCreated, migrationsDeleted, warnings)
	legacyregistry.CustomMustRegister(gauges)
	// Create the series at zero. The function increase() does not count a series that appears with the value one.
	for _, reason := range []string{eventServersDisagree, eventServersUnseen, eventEncodingsUnknown,
		eventStoredVersionsShortened, eventMigrationFailed, eventNotServed, eventNotWritten, eventMigrationRefused} {
		warnings.WithLabelValues(reason)
	}
	migrationsCreated.WithLabelValues()
})

// collectGauges computes the gauges from the caches.
func collectGauges(c *Controller, gauge controller.Gauge) {
	states, _ := c.caches.States.List(labels.Everything()) // A cache has no errors.
	persisted := map[string]int{"1": 0, "2": 0, "3+": 0, "unknown": 0}
	for _, state := range states {
		persisted[persistedCount(state)]++
	}
	for count, number := range persisted {
		gauge(storageStates, float64(number), count)
	}
	for reason, number := range reasonsAgainst(migrationv1alpha1.StorageStateAgreed, states) {
		gauge(notAgreed, float64(number), reason)
	}
	for reason, number := range reasonsAgainst(migrationv1alpha1.StorageStateMigrated, states) {
		gauge(notMigrated, float64(number), reason)
	}
	lastRead := c.observer.LastRead()
	if _, read := lastRead[migrationv1alpha1.EvidenceFromServerDiscovery]; !read { // All clusters have API servers.
		gauge(sinceLastRead, c.clock.Since(c.made).Seconds(), string(migrationv1alpha1.EvidenceFromServerDiscovery))
	}
	for source, read := range lastRead {
		gauge(sinceLastRead, c.clock.Since(read).Seconds(), string(source))
	}
}

// reasonsAgainst counts the states whose condition is not True, by its reason.
func reasonsAgainst(conditionType string, states []*migrationv1alpha1.StorageState) map[string]int {
	reasons := map[string]int{}
	for _, state := range states {
		condition := meta.FindStatusCondition(state.Status.Conditions, conditionType)
		if condition != nil && condition.Status != metav1.ConditionTrue {
			reasons[condition.Reason]++
		}
	}
	return reasons
}

func persistedCount(state *migrationv1alpha1.StorageState) string {
	hashes := state.Status.PersistedStorageVersionHashes
	switch n := len(hashes); {
	case n == 0 || slices.Contains(hashes, migrationv1alpha1.Unknown):
		return "unknown"
	case n > 2:
		return "3+"
	default:
		return strconv.Itoa(n)
	}
}
