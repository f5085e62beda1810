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
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// migrate creates a migration as people do.
func (c *cluster) migrate(t *testing.T, name string, resource schema.GroupVersionResource) {
	t.Helper()
	if _, err := c.Migrations().Create(t.Context(), newMigration(name, resource), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func newMigration(name string, resource schema.GroupVersionResource) *v1alpha1.StorageVersionMigration {
	m := &v1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: name}}
	m.Spec.Resource = v1alpha1.GroupVersionResource{
		Group:    resource.Group,
		Version:  resource.Version,
		Resource: resource.Resource,
	}
	return m
}

// ended waits until the migration has ended, and returns it.
func (c *cluster) ended(t *testing.T, name string, within time.Duration) *v1alpha1.StorageVersionMigration {
	t.Helper()
	var m *v1alpha1.StorageVersionMigration
	framework.Eventually(t, within, func(ctx context.Context) (err error) {
		if m, err = c.fetch(ctx, name); err != nil {
			return err
		}
		if condition(m, v1alpha1.MigrationSucceeded) == nil && condition(m, v1alpha1.MigrationFailed) == nil {
			return fmt.Errorf("%s has not ended", words(m))
		}
		return nil
	})
	checkEnd(t, m)
	return m
}

// checkEnd complains about what must not be said of a migration that has ended.
func checkEnd(t *testing.T, m *v1alpha1.StorageVersionMigration) {
	t.Helper()
	if running := condition(m, v1alpha1.MigrationRunning); running != nil {
		t.Errorf("%s ended and runs all the same", words(m))
	}
	if m.Status.CompletionTime == nil {
		t.Fatalf("%s ended and does not say when", words(m))
	}
	checkCounts(t, m)
}

// reports waits until the migration's condition has the status and the reason, and returns the condition.
func (c *cluster) reports(
	t *testing.T,
	name string,
	conditionType v1alpha1.MigrationConditionType,
	status corev1.ConditionStatus,
	reason string,
	within time.Duration,
) v1alpha1.MigrationCondition {
	t.Helper()
	var found v1alpha1.MigrationCondition
	framework.Eventually(t, within, func(ctx context.Context) error {
		m, err := c.fetch(ctx, name)
		if err != nil {
			return err
		}
		for _, found = range m.Status.Conditions {
			if found.Type == conditionType && found.Status == status && found.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("%s does not say %s=%s because of %s", words(m), conditionType, status, reason)
	})
	return found
}

// runningSays waits until a migration runs, for that reason, and its condition says all of this. What it said first may
// have been about a request that was on its way when something else happened.
func (c *cluster) runningSays(t *testing.T, name, reason string, parts ...string) {
	t.Helper()
	framework.Eventually(t, soon, func(ctx context.Context) error {
		m, err := c.fetch(ctx, name)
		if err != nil {
			return err
		}
		running := condition(m, v1alpha1.MigrationRunning)
		if running == nil || running.Reason != reason {
			return fmt.Errorf("%s does not run because of %s", words(m), reason)
		}
		for _, part := range parts {
			if !strings.Contains(running.Message, part) {
				return fmt.Errorf("%s does not say %q", words(m), part)
			}
		}
		if m.Status.StartTime == nil || m.Status.CompletionTime != nil {
			return fmt.Errorf("it was to have begun and not ended: %s", words(m))
		}
		return nil
	})
}

// during is framework.During for looks that ask an API server. One that fails shows nothing, but not all may fail.
func during(t *testing.T, period time.Duration, look func(ctx context.Context) (complaint, failure error)) {
	t.Helper()
	looks, last := 0, error(nil)
	framework.During(t, period, func(ctx context.Context) error {
		complaint, failure := look(ctx)
		if last = failure; failure == nil {
			looks++
		}
		return complaint
	})
	if looks == 0 {
		t.Errorf("nobody could look for %v: %v", period, last)
	}
}

// condition returns the condition if it is True.
func condition(
	m *v1alpha1.StorageVersionMigration, conditionType v1alpha1.MigrationConditionType,
) *v1alpha1.MigrationCondition {
	i := slices.IndexFunc(m.Status.Conditions, func(c v1alpha1.MigrationCondition) bool {
		return c.Type == conditionType && c.Status == corev1.ConditionTrue
	})
	if i < 0 {
		return nil
	}
	return &m.Status.Conditions[i]
}

func mustSucceed(t *testing.T, m *v1alpha1.StorageVersionMigration) {
	t.Helper()
	if condition(m, v1alpha1.MigrationSucceeded) == nil {
		t.Fatalf("%s did not succeed", words(m))
	}
}

func mustFail(t *testing.T, m *v1alpha1.StorageVersionMigration, reason string, inMessage ...string) {
	t.Helper()
	failed := condition(m, v1alpha1.MigrationFailed)
	if failed == nil || failed.Reason != reason {
		t.Fatalf("%s did not fail because of %s", words(m), reason)
	}
	for _, part := range inMessage {
		if !strings.Contains(failed.Message, part) {
			t.Errorf("the message does not say %q: %s", part, failed.Message)
		}
	}
}

// checkCounts complains about counters that do not add up.
func checkCounts(t *testing.T, m *v1alpha1.StorageVersionMigration) {
	t.Helper()
	p := m.Status.Progress
	if p == nil {
		return
	}
	if sum := p.Rewritten + p.AlreadyCurrent + p.WrittenByOthers + p.Gone + p.Denied; sum != p.Processed {
		t.Errorf("%s: the outcomes are %d in all, and %d were processed", words(m), sum, p.Processed)
	}
	if p.Denied < int64(len(m.Status.DeniedObjects)) {
		t.Errorf("%s names more denied objects than it counts", words(m))
	}
}

func words(m *v1alpha1.StorageVersionMigration) string {
	status, err := json.Marshal(m.Status)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("migration %s of %s: %s", m.Name, m.Spec.Resource.Resource, status)
}

// judgement compares what is stored before and after a migration.
type judgement struct {
	c        *cluster
	resource schema.GroupResource
	before   []controlplane.StoredObject
}

func (c *cluster) judge(t *testing.T, resource schema.GroupResource) *judgement {
	t.Helper()
	before, err := c.Stored(t.Context(), resource)
	if err != nil {
		t.Fatal(err)
	}
	return &judgement{c: c, resource: resource, before: before}
}

// onlyEncodings complains if anything was lost, changed or created since, and about objects that were written more
// often.
func (j *judgement) onlyEncodings(t *testing.T, mostWrites int64) controlplane.StoredChanges {
	t.Helper()
	after, err := j.c.Stored(t.Context(), j.resource)
	if err != nil {
		t.Fatal(err)
	}
	changes := controlplane.CompareStored(j.before, after)
	if err := changes.OnlyEncodings(); err != nil {
		t.Errorf("the migration of %s did more than rewrite: %v", j.resource, err)
	}
	for key, writes := range changes.Writes {
		if writes > mostWrites {
			t.Errorf("%s was written %d times, want %d at most", key, writes, mostWrites)
		}
	}
	return changes
}

// stored complains about objects that are not stored in the encoding.
func (j *judgement) stored(t *testing.T, encoding string, except ...string) {
	t.Helper()
	after, err := j.c.Stored(t.Context(), j.resource)
	if err != nil {
		t.Fatal(err)
	}
	var stale []string
	for _, object := range after {
		name := object.Key[strings.LastIndex(object.Key, "/")+1:]
		if object.Encoding != encoding && !slices.Contains(except, name) {
			stale = append(stale, object.Key+" in "+object.Encoding)
		}
	}
	if len(stale) > 0 {
		t.Errorf(
			"%d of %d objects are not stored in %s, for instance %v",
			len(stale),
			len(after),
			encoding,
			stale[:min(3, len(stale))],
		)
	}
}
