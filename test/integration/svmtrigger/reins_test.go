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
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// testReins is what administrators and failures do to migrations.
func testReins(t *testing.T, c *cluster) {
	excluded := custom(customGroup, "excludeds", "Excluded")
	paused := custom(customGroup, "pauseds", "Paused")
	failed := custom(customGroup, "faileds", "Failed")
	boasted := custom(customGroup, "boasteds", "Boasted")
	deleted := custom(customGroup, "deleteds", "Deleted")
	byHand := custom(customGroup, "byhands", "ByHand")
	hurried := custom(customGroup, "hurrieds", "Hurried")
	all := []resource{excluded, paused, failed, boasted, deleted, byHand, hurried}
	inherited := custom(customGroup, "inheriteds", "Inherited")
	c.define(t, append(all, inherited)...)
	for _, r := range append(all, inherited) {
		c.create(t, r, "old")
	}
	startJudge(t, c, all...)
	c.inherit(t, inherited)
	left := c.mark(t)
	m := startMigrator(t, c)
	m.behave(failed, holding)
	m.behave(boasted, boasting)
	m.behave(deleted, holding)

	// Before anything may be migrated: a pause that comes in time.
	observing := c.startManager(t, "observing", "--auto-migrate=-*")
	framework.EventuallySeen(t, soon, func() error { return c.notSelected(all...) })
	framework.During(t, 2*settle, func(context.Context) error { return c.noMigrationsOf(0, all...) })
	c.annotate(t, paused, v1alpha1.PausedAnnotation, "true")
	framework.StopManager(t, observing)

	selected := fmt.Sprintf("--auto-migrate=*.%s,-%s,-%s", customGroup, excluded, byHand)
	t.Run("soaking", func(t *testing.T) {
		c.patchState(t, hurried, `{"spec": {"soakSeconds": 0}}`)
		soaking := c.startManager(t, "soaking", selected, "--soak-period=1h")
		testSoaking(t, c, hurried, failed, boasted, deleted)
		framework.StopManager(t, soaking)
	})
	c.startManager(t, "manager", selected)
	t.Run("what is not selected waits, and says so", func(t *testing.T) {
		framework.EventuallySeen(t, soon, func() error { return c.notSelected(excluded, byHand) })
	})
	t.Run("paused", func(t *testing.T) { testPaused(t, c, paused) })
	t.Run("failed", func(t *testing.T) { testFailed(t, c, m, failed) })
	t.Run("a success without a target", func(t *testing.T) { testBoasted(t, c, m, boasted) })
	t.Run("deleted by hand", func(t *testing.T) { testDeleted(t, c, m, deleted) })
	t.Run("made by hand", func(t *testing.T) { testByHand(t, c, byHand) })
	t.Run("started over", func(t *testing.T) { testStartedOver(t, c, paused) })
	t.Run("deleted while it is paused", func(t *testing.T) { testDeletedWhilePaused(t, c, hurried) })
	t.Run("inherited from another controller", func(t *testing.T) {
		framework.EventuallySeen(t, soon, func() error { return c.migrated(inherited, "v1") })
		if err := c.migrationCount(inherited, left, 1); err != nil {
			t.Error(err)
		}
	})
	if err := c.noMigrationsOf(0, excluded); err != nil {
		t.Error(err)
	}
}

func (c *cluster) notSelected(resources ...resource) error {
	var errs []error
	for _, r := range resources {
		errs = append(errs, c.says(r, v1alpha1.StorageStateMigrated, metav1.ConditionFalse, v1alpha1.StateReasonNotSelected))
	}
	return errors.Join(errs...)
}

// testSoaking wants resources to wait for the soak period of the manager, and one not to that has none.
func testSoaking(t *testing.T, c *cluster, hurried resource, soaking ...resource) {
	framework.EventuallySeen(t, soon, func() error { return c.migrated(hurried, "v1") })
	for _, r := range soaking {
		framework.EventuallySeen(t, soon, func() error {
			return c.says(r, v1alpha1.StorageStateMigrated, metav1.ConditionFalse, v1alpha1.StateReasonSoaking)
		})
	}
	if err := c.noMigrationsOf(0, soaking...); err != nil {
		t.Error(err)
	}
}

// testDeletedWhilePaused deletes a state that a person paused. The next one is paused as well.
func testDeletedWhilePaused(t *testing.T, c *cluster, r resource) {
	c.patchState(t, r, `{"spec": {"paused": true}}`)
	old := c.state(r.String())
	framework.EventuallySeen(t, soon, func() error {
		if old = c.state(r.String()); !old.Spec.Paused {
			return errors.New("the history does not have the pause yet")
		}
		return nil
	})
	// The manager remembers a pause that it has seen. That it puts back the heartbeat shows that it has.
	c.ageHeartbeat(t, r.String(), 2*time.Hour)
	framework.EventuallySeen(t, soon, func() error {
		if at := c.state(r.String()).Status.LastHeartbeatTime; time.Since(at.Time) > time.Hour {
			return fmt.Errorf("the last heartbeat was at %v", at)
		}
		return nil
	})
	began := c.mark(t)
	if err := c.States().Delete(t.Context(), r.String(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	framework.EventuallySeen(t, soon, func() error {
		if state := c.state(r.String()); state == nil || state.UID == old.UID {
			return fmt.Errorf("there is no new state yet: %s", words(state))
		}
		return c.says(r, v1alpha1.StorageStateMigrated, metav1.ConditionFalse, v1alpha1.StateReasonPaused)
	})
	if state := c.state(r.String()); !state.Spec.Paused {
		t.Errorf("the pause is gone: %s", words(state))
	}
	framework.During(t, 2*settle, func(context.Context) error { return c.noMigrationsOf(began, r) })
}

func testPaused(t *testing.T, c *cluster, r resource) {
	framework.EventuallySeen(t, soon, func() error {
		return c.says(r, v1alpha1.StorageStateMigrated, metav1.ConditionFalse, v1alpha1.StateReasonPaused)
	})
	framework.During(t, settle, func(context.Context) error { return c.noMigrationsOf(0, r) })
	c.annotate(t, r, v1alpha1.PausedAnnotation, "false")
	framework.EventuallySeen(t, soon, func() error { return c.migrated(r, "v1") })
}

// testFailed wants one attempt, a backoff in the state, and another attempt when the administrator asks.
func testFailed(t *testing.T, c *cluster, m *migrator, r resource) {
	m.behave(r, failing) // Not before: the backoff goes by.
	framework.EventuallySeen(t, soon, func() error {
		return c.says(r, v1alpha1.StorageStateMigrated, metav1.ConditionFalse, v1alpha1.StateReasonMigrationFailed)
	})
	backoff := c.state(r.String()).Status.Backoff
	if backoff == nil || backoff.Failures != 1 || backoff.NextAttemptTime == nil || backoff.LastFailedMigration == nil {
		t.Fatalf("after a failure the state does not tell of the next attempt: %s", words(c.state(r.String())))
	}
	t.Logf("the next attempt is due %v after the failure", backoff.NextAttemptTime.Sub(backoff.LastFailureTime.Time))
	framework.During(t, settle, func(context.Context) error { return c.migrationCount(r, 0, 1) })
	m.behave(r, honest)
	c.annotate(t, r, v1alpha1.RetryAnnotation, "please")
	framework.EventuallySeen(t, soon, func() error { return c.migrated(r, "v1") })
	state := c.state(r.String())
	if state.Status.LastHandledRetry != "please" || state.Status.Backoff != nil {
		t.Errorf("after the attempt that was asked for: answered %q, %s", state.Status.LastHandledRetry, words(state))
	}
	if err := c.migrationCount(r, 0, 2); err != nil {
		t.Error(err)
	}
	framework.During(t, settle, func(context.Context) error { return c.migrationCount(r, 0, 2) })
}

// testBoasted wants a success that proves nothing to have no effect on what is listed.
func testBoasted(t *testing.T, c *cluster, m *migrator, r resource) {
	framework.EventuallySeen(t, soon, func() error {
		lives := c.migrationsOf(r.GroupResource, 0)
		if len(lives) == 0 || !hasCondition(lives[0].last(), v1alpha1.MigrationSucceeded) {
			return fmt.Errorf("no migration of %s has ended: %v", r, lives)
		}
		return nil
	})
	framework.During(t, settle, func(context.Context) error {
		if state := c.state(r.String()); certain(state) {
			return errors.New("a success without a target counts: " + words(state))
		}
		return nil
	})
	state := c.state(r.String())
	t.Logf("after a success without a target: %s", words(state))
	if err := c.says(r, v1alpha1.StorageStateMigrated, metav1.ConditionFalse); err != nil {
		t.Error(err)
	}
	if attempts := len(c.migrationsOf(r.GroupResource, 0)); attempts > 2 {
		t.Errorf("%d migrations in a row are no use", attempts)
	}
	m.behave(r, honest)
	c.annotate(t, r, v1alpha1.RetryAnnotation, "with a migrator that knows targets")
	framework.EventuallySeen(t, soon, func() error { return c.migrated(r, "v1") })
}

// testDeleted deletes a migration that runs. It still is needed.
func testDeleted(t *testing.T, c *cluster, m *migrator, r resource) {
	framework.EventuallySeen(t, soon, func() error { return c.migrationCount(r, 0, 1) })
	life := c.migrationsOf(r.GroupResource, 0)[0]
	if err := c.Migrations().Delete(t.Context(), life.last().Name,
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	framework.EventuallySeen(t, soon, func() error { return c.migrationCount(r, 0, 2) })
	m.behave(r, honest)
	framework.EventuallySeen(t, soon, func() error { return c.migrated(r, "v1") })
	if err := c.migrationCount(r, 0, 2); err != nil {
		t.Error(err)
	}
}

// testByHand wants a migration that a person made to count, of a resource that the trigger leaves alone.
func testByHand(t *testing.T, c *cluster, r resource) {
	migration := &v1alpha1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "by-hand-"},
		Spec: v1alpha1.StorageVersionMigrationSpec{Resource: v1alpha1.GroupVersionResource{Group: r.Group,
			Resource: r.Resource}},
	}
	if _, err := c.Migrations().Create(t.Context(), migration,
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	framework.EventuallySeen(t, soon, func() error { return c.migrated(r, "v1") })
	if err := c.migrationCount(r, 0, 1); err != nil {
		t.Error(err)
	}
}

// testStartedOver deletes a state, as one does to start over. What was proven for the old one proves nothing for the
// new one.
func testStartedOver(t *testing.T, c *cluster, r resource) {
	began, old := c.mark(t), c.state(r.String())
	if err := c.States().Delete(t.Context(), r.String(),
		metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	framework.EventuallySeen(t, soon, func() error {
		if state := c.state(r.String()); state == nil || state.UID == old.UID || state.Status.Epoch != old.Status.Epoch {
			return fmt.Errorf("there is no new state yet: %s", words(state))
		}
		return nil
	})
	if first := c.asCreated(c.state(r.String())); certain(first) {
		t.Errorf("a state that starts over begins with %s", words(first))
	}
	framework.EventuallySeen(t, soon, func() error { return c.migrated(r, "v1") })
	if err := c.migrationCount(r, began, 1); err != nil {
		t.Error(err)
	}
}

// inherit leaves what kube-storage-version-migrator leaves: a state without an epoch, and a success without a target.
func (c *cluster) inherit(t *testing.T, r resource) {
	t.Helper()
	states, migrations := c.States(),
		c.Migrations()
	state, err := states.Create(t.Context(), &v1alpha1.StorageState{
		ObjectMeta: metav1.ObjectMeta{Name: r.String()},
		Spec:       v1alpha1.StorageStateSpec{Resource: v1alpha1.GroupResource{Group: r.Group, Resource: r.Resource}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	state.Status.CurrentStorageVersionHash = r.hash("v1")
	state.Status.PersistedStorageVersionHashes = []string{r.hash("v1")}
	state.Status.LastHeartbeatTime = metav1.Now()
	if _, err := states.UpdateStatus(t.Context(), state, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	migration, err := migrations.Create(t.Context(), &v1alpha1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: "inherited"},
		Spec: v1alpha1.StorageVersionMigrationSpec{Resource: v1alpha1.GroupVersionResource{Group: r.Group,
			Version: "v1", Resource: r.Resource}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	migration.Status.Conditions = []v1alpha1.MigrationCondition{{Type: v1alpha1.MigrationSucceeded, Status: "True"}}
	if _, err := migrations.UpdateStatus(t.Context(), migration, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// annotate sets an annotation of the state.
func (c *cluster) annotate(t *testing.T, r resource, key, value string) {
	t.Helper()
	c.patchState(t, r, fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, key, value))
}

// patchState changes a state, as a person does.
func (c *cluster) patchState(t *testing.T, r resource, patch string) {
	t.Helper()
	if _, err := c.States().Patch(t.Context(), r.String(), types.MergePatchType, []byte(patch),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}
