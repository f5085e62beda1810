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
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

const subsystem = "storage_version_migration_trigger"

var (
	migrationsCreated = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "migrations_created_total",
		Help:           "Number of StorageVersionMigrations created, by the reason of the decision.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})
	migrationsDeleted = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "migrations_deleted_total",
		Help:           "Number of StorageVersionMigrations deleted because they were out of date, by the reason of the decision.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"reason"})

	storageStates = metrics.NewDesc(subsystem+"_storage_states",
		"Number of StorageStates by how many encodings their stored objects may have: 1, 2, 3+, or unknown. Only 1 means that everything is migrated.",
		[]string{"persisted"}, nil, metrics.ALPHA, "")
	notAgreed = metrics.NewDesc(subsystem+"_resources_not_agreed",
		"Number of resources on whose encoding the servers do not agree, or not for long enough, by the reason of the Agreed condition.",
		[]string{"reason"}, nil, metrics.ALPHA, "")
	waitingMigrations = metrics.NewDesc(subsystem+"_migrations_waiting",
		"Number of resources whose migration is due and waits until fewer migrations are unfinished.",
		nil, nil, metrics.ALPHA, "")
	sinceLastLook = metrics.NewDesc(subsystem+"_seconds_since_last_observation",
		"Time since what the servers write was last looked at with success, by source.",
		[]string{"source"}, nil, metrics.ALPHA, "")

	registerOnce sync.Once
)

// Register adds the metrics of this package to the legacy registry, once.
func Register() {
	registerOnce.Do(func() {
		legacyregistry.MustRegister(migrationsCreated, migrationsDeleted)
		legacyregistry.CustomMustRegister(&collector{})
	})
}

// exposed is the controller that runs. A standby has none, and shows none of what only a leader knows.
var exposed atomic.Pointer[Controller]

// expose shows the controller's gauges until the returned function is called.
func expose(c *Controller) (conceal func()) {
	exposed.Store(c)
	return func() { exposed.CompareAndSwap(c, nil) }
}

// collector computes gauges when they are asked for, so that they are never out of step with the caches.
type collector struct {
	metrics.BaseStableCollector
}

// DescribeWithStability implements metrics.StableCollector.
func (*collector) DescribeWithStability(ch chan<- *metrics.Desc) {
	ch <- storageStates
	ch <- notAgreed
	ch <- waitingMigrations
	ch <- sinceLastLook
}

// CollectWithStability implements metrics.StableCollector.
func (*collector) CollectWithStability(ch chan<- metrics.Metric) {
	c := exposed.Load()
	if c == nil {
		return
	}
	gauge := func(desc *metrics.Desc, value float64, labels ...string) {
		ch <- metrics.NewLazyConstMetric(desc, metrics.GaugeValue, value, labels...)
	}
	states, err := c.states.List(labels.Everything())
	if err != nil {
		return // a cache that cannot be listed has nothing to show
	}
	persisted, reasons := map[string]int{"1": 0, "2": 0, "3+": 0, "unknown": 0}, map[string]int{}
	for _, state := range states {
		persisted[persistedCount(state)]++
		if agreed := meta.FindStatusCondition(state.Status.Conditions, migrationv1alpha1.StorageStateAgreed); agreed != nil && agreed.Status != metav1.ConditionTrue {
			reasons[agreed.Reason]++
		}
	}
	for count, number := range persisted {
		gauge(storageStates, float64(number), count)
	}
	for reason, number := range reasons {
		gauge(notAgreed, float64(number), reason)
	}
	gauge(waitingMigrations, float64(c.waiting.Load()))
	for source, looked := range c.observer.LastLook() {
		gauge(sinceLastLook, c.clock.Since(looked).Seconds(), string(source))
	}
}

func persistedCount(state *migrationv1alpha1.StorageState) string {
	hashes := state.Status.PersistedStorageVersionHashes
	switch {
	case len(hashes) == 0 || slices.Contains(hashes, migrationv1alpha1.Unknown):
		return "unknown"
	case len(hashes) == 1:
		return "1"
	case len(hashes) == 2:
		return "2"
	default:
		return "3+"
	}
}
