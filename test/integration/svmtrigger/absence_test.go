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
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// testAbsence stops the manager for longer than a heartbeat is good for, and changes things meanwhile.
func testAbsence(t *testing.T, c *cluster) {
	untouched := custom(customGroup, "untoucheds", "Untouched")
	once := custom(customGroup, "onces", "Once")
	often := custom(customGroup, "oftens", "Often")
	all := []resource{untouched, once, often}
	c.define(t, all...)
	for _, r := range all {
		c.create(t, r, "old")
	}
	startJudge(t, c, append(all, configMaps, flowSchema)...)
	startMigrator(t, c)
	first := c.startManager(t, "first")
	for _, r := range all {
		framework.EventuallySeen(t, soon, func() error { return c.migrated(r, "v1") })
	}
	expected := migratable(t, c)
	framework.EventuallySeen(t, soon, func() error { return c.allMigrated(expected) })
	before := c.allStates()
	framework.StopManager(t, first)

	began := c.mark(t)
	for name := range before {
		c.ageHeartbeat(t, name, time.Hour)
	}
	c.flip(t, once, "v2")
	c.flip(t, often, "v2")
	c.createStoredAs(t, often, "between", "v2")
	c.setStoredVersions(t, often, "v2")
	c.flip(t, often, "v1")
	second := c.startManager(t, "second")

	framework.EventuallySeen(t, soon, func() error { return c.listed(once, began, "v2", "v1", "v2") })
	framework.EventuallySeen(t, soon, func() error {
		for _, write := range c.stateWrites(often.String(), began) {
			if write.state != nil && !certain(write.state) {
				return nil
			}
		}
		return fmt.Errorf("two changes went by unseen: %s", c.lifeOf(often.String(), began))
	})
	framework.EventuallySeen(t, soon, func() error { return c.migrated(once, "v2") })
	framework.EventuallySeen(t, soon, func() error { return c.migrated(often, "v1") })

	delete(before, once.String())
	delete(before, often.String())
	framework.EventuallySeen(t, soon, func() error { return c.allConfirmed(before) })
	for _, life := range c.migrationsAfter(began) {
		if _, same := before[resourceOf(life.last()).String()]; same {
			t.Errorf("nothing changed, and there is a migration: %v", life)
		}
	}
	for name := range before {
		for _, write := range c.stateWrites(name, began) {
			if write.state == nil || !certain(write.state) && certain(before[name]) {
				t.Errorf("nothing changed, and the state became %s", words(write.state))
			}
		}
	}
	framework.StopManager(t, second)
}

// allConfirmed complains unless a manager has confirmed all these states since their heartbeats were aged.
func (c *cluster) allConfirmed(states map[string]*v1alpha1.StorageState) error {
	for name := range states {
		if state := c.state(name); state == nil || time.Since(state.Status.LastHeartbeatTime.Time) > time.Hour/2 {
			return fmt.Errorf("nobody has looked at %s since the second manager started: %s", name, words(state))
		}
	}
	return nil
}

// ageHeartbeat makes the last heartbeat of a state that much older.
func (c *cluster) ageHeartbeat(t *testing.T, name string, by time.Duration) {
	t.Helper()
	then := metav1.NewTime(time.Now().Add(-by))
	patch := fmt.Appendf(nil, `{"status":{"lastHeartbeatTime":%q}}`, then.UTC().Format(time.RFC3339))
	_, err := c.States().Patch(t.Context(), name, types.MergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatal(err)
	}
}
