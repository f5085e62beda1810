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
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"

	migrationlisters "sigs.k8s.io/svm-api/client/listers/migration/v1alpha1"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// TestMadeUpResourcesAreNoLabels creates migrations of resources that do not exist. Each label would stay in
// memory, and at whoever collects the metrics.
func TestMadeUpResourcesAreNoLabels(t *testing.T) {
	Register()
	_, ctx := ktesting.NewTestContext(t)
	const count = 30
	c := &environment{events: record.NewFakeRecorder(2 * count), clock: clocktesting.NewFakeClock(noon)}
	for i := range count {
		before := made(func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Resource: fmt.Sprintf("made-up-%d", i)}
		})
		after := before.DeepCopy()
		after.Status.Conditions = []migrationv1alpha1.MigrationCondition{{
			Type: migrationv1alpha1.MigrationFailed, Status: corev1.ConditionTrue,
			Reason: migrationv1alpha1.MigrationReasonResourceNotServed,
		}}
		c.recordTransition(ctx, before, after)
	}
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := 0.0
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if label.GetName() == "resource" && label.GetValue() != "" {
					t.Errorf("%s has the resource %q", family.GetName(), label.GetValue())
				}
			}
			if family.GetName() == coreSubsystem+"_migrations_total" {
				counted += metric.GetCounter().GetValue()
			}
		}
	}
	if counted != count {
		t.Errorf("%v migrations were counted, want %d", counted, count)
	}
}

// withoutGoners observes that the definition of goners was deleted.
type withoutGoners struct{ Observer }

func (withoutGoners) Observe(resource schema.GroupResource) storageversion.Observation {
	if resource.Resource == "goners" {
		return storageversion.Observation{Presence: storageversion.Deleted}
	}
	return storageversion.Observation{}
}

// TestNewestMigrations counts each resource that is left once, by the migration that runs or by its newest one.
func TestNewestMigrations(t *testing.T) {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	add := func(name, resource string, age time.Duration, condition, reason string) {
		m := made(func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Name, m.Spec.Resource.Resource = name, resource
			m.CreationTimestamp = metav1.NewTime(noon.Add(-age))
			m.Status.Conditions = []migrationv1alpha1.MigrationCondition{
				{Type: migrationv1alpha1.MigrationConditionType(condition), Status: corev1.ConditionTrue, Reason: reason},
				{Type: "example.com/Approved", Status: corev1.ConditionTrue, Reason: "ByAnother"},
			}
			if !m.IsConditionTrue(migrationv1alpha1.MigrationRunning) {
				m.Status.Conditions = append(m.Status.Conditions, migrationv1alpha1.MigrationCondition{
					Type: migrationv1alpha1.MigrationRunning, Status: corev1.ConditionFalse, Reason: "Waiting",
				})
			}
		})
		if err := indexer.Add(m); err != nil {
			t.Fatal(err)
		}
	}
	add("mended", "widgets", time.Hour, "Failed", "ObjectsDenied")
	add("succeeded", "widgets", time.Minute, "Succeeded", "AllObjectsMigrated")
	add("changed", "gadgets", time.Minute, "Failed", "RewritesChangeObjects")
	add("changed-too", "gizmos", time.Minute, "Failed", "RewritesChangeObjects")
	add("deleted", "goners", time.Minute, "Failed", "ObjectsDenied")
	add("queued", "gears", time.Minute, "Waiting", "Queued")
	add("stuck", "axles", time.Hour, "Running", "NoProgress")
	add("behind-it", "axles", time.Minute, "Waiting", "Queued")
	got := map[string]float64{}
	collectNewest(migrationlisters.NewStorageVersionMigrationLister(indexer), withoutGoners{},
		func(_ *metrics.Desc, value float64, labels ...string) { got[strings.Join(labels, " ")] = value })
	want := map[string]float64{
		"Succeeded AllObjectsMigrated": 1, "Failed RewritesChangeObjects": 2, "Waiting Queued": 1,
		"Running NoProgress": 1,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
