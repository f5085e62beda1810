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
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics/testutil"
	testingclock "k8s.io/utils/clock/testing"

	"sigs.k8s.io/svm-api/client/clientset/versioned/fake"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// TestStatusThatLostItsTarget has definitions of another program take the place of ours while a migration runs. They
// know no target, so the API server drops it.
func TestStatusThatLostItsTarget(t *testing.T) {
	bound := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "u"}}
	stripped := bound.DeepCopy()
	bound.Status.Target = &migrationv1alpha1.MigrationTarget{StorageVersionHash: "hash"}
	client := fake.NewClientset(stripped).MigrationV1alpha1()
	w := &statusWriter{env: &environment{client: client}, stored: bound}
	if err := w.refresh(t.Context()); err == nil || !strings.Contains(err.Error(), "has lost its target") {
		t.Errorf("the error is %v", err)
	}
	if w.stored.Status.Target == nil {
		t.Error("the run goes on without a target")
	}
}

// TestMigrationThatWasRestored has etcd go back to an earlier position of a run.
func TestMigrationThatWasRestored(t *testing.T) {
	for restored, want := range map[string]error{"98": storageversion.ErrRestored, "99": nil, "100": nil} {
		stored := &migrationv1alpha1.StorageVersionMigration{
			ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "u", ResourceVersion: "99"},
		}
		live := stored.DeepCopy()
		live.ResourceVersion = restored
		client := fake.NewClientset(live).MigrationV1alpha1()
		w := &statusWriter{env: &environment{client: client}, stored: stored}
		if err := w.refresh(t.Context()); !errors.Is(err, want) {
			t.Errorf("resource version %s: the error is %v", restored, err)
		}
	}
}

// TestStatusThatIsRefused counts each status that the API server refuses, because an alert depends on it.
func TestStatusThatIsRefused(t *testing.T) {
	Register()
	client := fake.NewClientset()
	client.PrependReactor("update", "storageversionmigrations", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(migrationv1alpha1.Resource("storageversionmigrations"), "m", nil)
	})
	w := &statusWriter{
		env: &environment{
			client: client.MigrationV1alpha1(), clock: testingclock.NewFakeClock(noon), events: record.NewFakeRecorder(1),
		},
		stored: &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "u"}},
	}
	count := func() float64 {
		n, err := testutil.GetCounterMetricValue(warnings.WithLabelValues(EventStatusNotWritten))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := count()
	err := w.write(t.Context(), waiting(waitDecision(migrationv1alpha1.MigrationReasonQueued, "it waits")))
	if !apierrors.IsForbidden(err) {
		t.Errorf("the error is %v", err)
	}
	if n := count() - before; n != 1 {
		t.Errorf("%v refusals were counted, want 1", n)
	}
}

// TestConditionsOfOthers leaves a condition of another program as it is, and ends the migrator's own ones.
func TestConditionsOfOthers(t *testing.T) {
	theirs := migrationv1alpha1.MigrationCondition{Type: "example.com/Approved", Status: corev1.ConditionTrue}
	status := migrationv1alpha1.StorageVersionMigrationStatus{Conditions: []migrationv1alpha1.MigrationCondition{theirs}}
	waiting(waitDecision(migrationv1alpha1.MigrationReasonQueued, "it waits"))(&status, noon)
	succeeded(&migrationv1alpha1.MigrationTarget{EncodingVersion: "example.com/v2"})(&status, noon)
	if got := *status.Condition(theirs.Type); got != theirs {
		t.Errorf("the condition of another program is %+v", got)
	}
	if c := status.Condition(migrationv1alpha1.MigrationWaiting); c.Status != corev1.ConditionFalse {
		t.Errorf("the migration has succeeded, and waits: %+v", c)
	}
}
