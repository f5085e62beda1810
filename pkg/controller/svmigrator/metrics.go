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
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

const (
	subsystem = "storage_version_migrator"
	// coreSubsystem is that of the names which dashboards for the migrators before this one know.
	coreSubsystem = "storage_migrator_core_migrator"
)

var (
	migratedObjects = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      coreSubsystem,
		Name:           "migrated_objects_total",
		Help:           "Number of objects that are known to be stored in the target encoding or deleted, by resource.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"resource"})
	migrations = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      coreSubsystem,
		Name:           "migrations_total",
		Help:           "Number of migrations that ended, by resource and status: Succeeded or Failed.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"resource", "status"})
	outcomes = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "object_outcomes_total",
		Help:           "Number of objects by outcome: Rewritten, AlreadyCurrent, WrittenByOthers, Gone or Denied. An object that was denied and tried once more counts twice, one that a list which began anew shows to be newer not at all.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"outcome"})
	retriedRequests = metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem:      subsystem,
		Name:           "retried_rewrites_total",
		Help:           "Number of rewrites that were sent again, by what failed: Unreachable, Overloaded, BehindAway (an aggregated server), Unauthenticated, Internal or ResourceGone.",
		StabilityLevel: metrics.ALPHA,
	}, []string{"failure"})
	migrationDuration = metrics.NewHistogramVec(&metrics.HistogramOpts{
		Subsystem:      subsystem,
		Name:           "migration_duration_seconds",
		Help:           "Time from the start of a migration to its end, by status.",
		Buckets:        metrics.ExponentialBuckets(1, 4, 10),
		StabilityLevel: metrics.ALPHA,
	}, []string{"status"})

	remainingObjects = metrics.NewDesc(coreSubsystem+"_remaining_objects",
		"Number of objects that migrations which run have not come to yet, by resource. Resources whose server does not tell are left out.",
		[]string{"resource"}, nil, metrics.ALPHA, "")
	runningMigrations = metrics.NewDesc(subsystem+"_running_migrations", "Number of migrations that write.", nil, nil, metrics.ALPHA, "")
	queuedMigrations  = metrics.NewDesc(subsystem+"_queued_migrations", "Number of migrations that may write and wait for others.", nil, nil, metrics.ALPHA, "")
	paceLimit         = metrics.NewDesc(subsystem+"_pace_limit", "Number of rewrites that may be under way at a time. Less than one means that there are pauses between rewrites.", nil, nil, metrics.ALPHA, "")
	paceInFlight      = metrics.NewDesc(subsystem+"_pace_in_flight", "Number of rewrites that are under way.", nil, nil, metrics.ALPHA, "")
	paceRate          = metrics.NewDesc(subsystem+"_pace_rewrites_per_second", "Rate at which objects were rewritten lately.", nil, nil, metrics.ALPHA, "")
	pacePaused        = metrics.NewDesc(subsystem+"_pace_paused_seconds", "Time until the next rewrite may be sent, by why: AskedToWait or Unreachable.", []string{"reason"}, nil, metrics.ALPHA, "")

	registerOnce sync.Once
)

// Register adds the metrics of this package to the legacy registry, once.
func Register() {
	registerOnce.Do(func() {
		legacyregistry.MustRegister(migratedObjects, migrations, outcomes, retriedRequests, migrationDuration)
		legacyregistry.CustomMustRegister(&collector{})
	})
}

func countObject(resource schema.GroupResource, outcome sweep.Outcome) {
	outcomes.WithLabelValues(string(outcome)).Inc()
	if outcome != sweep.Denied {
		migratedObjects.WithLabelValues(resource.String()).Inc()
	}
}

func countMigration(resource schema.GroupResource, status string) {
	migrations.WithLabelValues(resource.String(), status).Inc()
}

// exposed is the controller that runs. A standby has none.
var exposed atomic.Pointer[Controller]

// expose shows the controller's gauges until the returned function is called.
func expose(c *Controller) (conceal func()) {
	exposed.Store(c)
	return func() { exposed.CompareAndSwap(c, nil) }
}

// collector computes gauges when they are asked for.
type collector struct {
	metrics.BaseStableCollector
}

// DescribeWithStability implements metrics.StableCollector.
func (*collector) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, desc := range []*metrics.Desc{remainingObjects, runningMigrations, queuedMigrations, paceLimit, paceInFlight, paceRate, pacePaused} {
		ch <- desc
	}
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
	c.mu.Lock()
	running := len(c.active)
	remaining := map[schema.GroupResource]int64{}
	for resource, t := range c.active {
		if m := t.saved.Load(); m != nil {
			if total := estimatedTotal(m); total != nil {
				remaining[resource] = max(0, *total-m.Status.Progress.Processed)
			}
		}
	}
	c.mu.Unlock()
	for resource, objects := range remaining {
		gauge(remainingObjects, float64(objects), resource.String())
	}
	gauge(runningMigrations, float64(running))
	gauge(queuedMigrations, float64(c.turns.Len()))
	pace := c.pacer.State()
	gauge(paceLimit, pace.Limit)
	gauge(paceInFlight, float64(pace.InFlight))
	gauge(paceRate, pace.PerSecond)
	if pace.PausedFor != "" {
		gauge(pacePaused, max(0, pace.PausedUntil.Sub(c.clock.Now()).Seconds()), string(pace.PausedFor))
	}
}

func estimatedTotal(m *migrationv1alpha1.StorageVersionMigration) *int64 {
	if m.Status.Progress == nil {
		return nil
	}
	return m.Status.Progress.EstimatedTotal
}
