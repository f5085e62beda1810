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
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const customGroup = "trigger.example.com"

// onlyCustom lets the trigger start migrations of the definitions of these tests only, so that nothing else is in the
// way.
const onlyCustom = "--auto-migrate=*." + customGroup

// testDefinitions is what happens to custom resources when people change their definitions.
func testDefinitions(t *testing.T, c *cluster) {
	flipped := custom(customGroup, "flippeds", "Flipped")
	twice := custom(customGroup, "twices", "Twice")
	shortened := custom(customGroup, "shorteneds", "Shortened")
	recreated := custom(customGroup, "recreateds", "Recreated")
	overtaken := custom(customGroup, "overtakens", "Overtaken")
	all := []resource{flipped, twice, shortened, recreated, overtaken}
	c.define(t, all...)
	for _, r := range all {
		c.create(t, r, "old")
	}
	startJudge(t, c, all...)
	m := startMigrator(t, c)
	c.startManager(t, "manager", onlyCustom)
	for _, r := range all {
		framework.EventuallySeen(t, soon, func() error { return c.migrated(r, "v1") })
	}

	t.Run("a flip", func(t *testing.T) { testFlip(t, c, flipped) })
	t.Run("two flips within a second", func(t *testing.T) { testTwoFlips(t, c, twice) })
	t.Run("stored versions shortened by hand", func(t *testing.T) { testShortened(t, c, m, shortened) })
	t.Run("a flip while a migration runs", func(t *testing.T) { testOvertaken(t, c, m, overtaken) })
	t.Run("deleted and recreated", func(t *testing.T) { testRecreated(t, c, recreated) })
}

// testFlip wants a flip on record before it has settled, and a migration when it has.
func testFlip(t *testing.T, c *cluster, r resource) {
	began := c.mark(t)
	epoch := c.state(r.String()).Status.Epoch
	flipped := c.flip(t, r, "v2")
	framework.EventuallySeen(t, soon, func() error {
		for _, write := range c.stateWrites(r.String(), began) {
			if write.state == nil {
				continue
			}
			agreed := meta.FindStatusCondition(write.state.Status.Conditions, v1alpha1.StorageStateAgreed)
			if agreed == nil || agreed.Reason != v1alpha1.StateReasonSettling {
				continue
			}
			t.Logf("recorded %v after the flip: %s", write.seen.Sub(flipped).Round(time.Millisecond), words(write.state))
			if !covers(write.state, r.hash("v1")) || !covers(write.state, r.hash("v2")) || write.state.Status.Epoch <= epoch {
				t.Errorf("the epoch was %d, and while the flip settles the state is %s", epoch, words(write.state))
			}
			return nil
		}
		return fmt.Errorf("no state settles: %s", c.lifeOf(r.String(), began))
	})
	framework.EventuallySeen(t, soon, func() error { return c.migrated(r, "v2") })
	c.migratedOnceSettled(t, r, began, flipped)
	if stored, err := c.storedVersions(t, r); err != nil || !slices.Equal(stored, []string{r.Group + "/v2"}) {
		t.Errorf("%s is stored as %v (%v)", r, stored, err)
	}
}

// migratedOnceSettled wants one migration since a revision, created when the evidence had stood for the settle period.
func (c *cluster) migratedOnceSettled(t *testing.T, r resource, since int64, changed time.Time) {
	t.Helper()
	if err := c.migrationCount(r, since, 1); err != nil {
		t.Fatal(err)
	}
	after := c.migrationsOf(r.GroupResource, since)[0].seen.Sub(changed)
	t.Logf("the migration of %s was created %v after the change", r, after.Round(time.Millisecond))
	if after < settle {
		t.Errorf("the migration of %s was created %v after the change, before it settled", r, after)
	}
}

// testTwoFlips flips to v2 and back before anything settles. What was stored as v2 in between has to be found.
func testTwoFlips(t *testing.T, c *cluster, r resource) {
	began := c.mark(t)
	first := c.flip(t, r, "v2")
	c.createStoredAs(t, r, "between", "v2")
	second := c.flip(t, r, "v1")
	t.Logf("the second flip came at most %v after the first", time.Since(first).Round(time.Millisecond))
	framework.EventuallySeen(t, soon, func() error { return c.listed(r, began, "v1", "v1", "v2") })
	framework.EventuallySeen(t, soon, func() error { return c.migrated(r, "v1") })
	for _, life := range c.migrationsOf(r.GroupResource, began) {
		// On a busy machine the manager may see the second flip only after the first has settled.
		if target := life.writes[0].migration.Spec.Target; target == nil || target.StorageVersionHash != r.hash("v2") {
			break
		}
		after, state := life.seen.Sub(first), c.stateAt(r.String(), life.created)
		if after < settle || state.Status.CurrentStorageVersionHash != r.hash("v2") {
			t.Errorf("a migration to v2 was created %v after the first flip: %v, with %s", after, life, words(state))
		}
		began = life.created
	}
	c.migratedOnceSettled(t, r, began, second)
	if stored, err := c.storedVersions(t, r); err != nil || !slices.Equal(stored, []string{r.Group + "/v1"}) {
		t.Errorf("%s is stored as %v (%v)", r, stored, err)
	}
}

// testShortened removes a version from what the definition says was stored, while objects are stored in it.
func testShortened(t *testing.T, c *cluster, m *migrator, r resource) {
	m.behave(r, holding)
	c.flip(t, r, "v2")
	framework.EventuallySeen(t, soon, func() error { return c.lists(r, r.hashes("v1", "v2")) })
	c.setStoredVersions(t, r, "v2")
	framework.Eventually(t, soon, func(ctx context.Context) error { return c.warned(ctx, r, "storedVersions") })
	framework.During(t, settle, func(context.Context) error { return c.lists(r, r.hashes("v1", "v2")) })
	m.behave(r, honest)
	framework.EventuallySeen(t, soon, func() error { return c.migrated(r, "v2") })
}

// testOvertaken flips back while objects are on their way to v2. That migration has to go, and another to come.
func testOvertaken(t *testing.T, c *cluster, m *migrator, r resource) {
	m.behave(r, holding)
	began := c.mark(t)
	c.flip(t, r, "v2")
	c.createStoredAs(t, r, "new", "v2")
	framework.EventuallySeen(t, soon, func() error {
		if lives := c.migrationsOf(r.GroupResource, began); len(lives) != 1 || lives[0].last().Status.StartTime == nil {
			return fmt.Errorf("no migration runs: %v", lives)
		}
		return nil
	})
	running, back := c.migrationsOf(r.GroupResource, began)[0], c.mark(t)
	flipped := c.flip(t, r, "v1")
	framework.EventuallySeen(t, soon, func() error {
		if c.exists(running.uid()) {
			return fmt.Errorf("the migration to the encoding of before still exists: %v", running)
		}
		return nil
	})
	m.behave(r, honest)
	framework.EventuallySeen(t, soon, func() error { return c.migrated(r, "v1") })
	c.migratedOnceSettled(t, r, back, flipped)
}

// warned complains unless there is a warning about the state that contains a text.
func (c *cluster) warned(ctx context.Context, r resource, text string) error {
	events, err := c.Kube.CoreV1().Events(metav1.NamespaceAll).List(ctx,
		metav1.ListOptions{FieldSelector: "involvedObject.kind=StorageState,involvedObject.name=" + r.String()})
	if err != nil {
		return err
	}
	var told []string
	for _, event := range events.Items {
		if event.Type == "Warning" && strings.Contains(event.Message, text) {
			return nil
		}
		told = append(told, event.Type+" "+event.Reason+": "+event.Message)
	}
	return fmt.Errorf("no warning about the state of %s tells of %s, only %q", r, text, told)
}

// asCreated is a state as the first write of its status left it.
func (c *cluster) asCreated(state *v1alpha1.StorageState) *v1alpha1.StorageState {
	for _, write := range c.stateWrites(state.Name, 0) {
		if write.state != nil && write.state.UID == state.UID && write.state.Status.Epoch > 0 {
			return write.state
		}
	}
	return state
}

// testRecreated deletes a definition: the state goes with the objects. What comes under the same name is another thing.
func testRecreated(t *testing.T, c *cluster, r resource) {
	old := c.state(r.String())
	c.undefine(t, r)
	framework.EventuallySeen(t, soon, func() error {
		if state := c.state(r.String()); state != nil {
			return fmt.Errorf("there still is %s", words(state))
		}
		return nil
	})
	began := c.mark(t)
	c.define(t, r)
	c.create(t, r, "new")
	framework.EventuallySeen(t, soon, func() error { return c.writes(r, "v1") })
	if first := c.asCreated(c.state(r.String())); first.UID == old.UID || certain(first) {
		t.Errorf("the state of a definition that was made anew begins with %s", words(first))
	}
	framework.EventuallySeen(t, soon, func() error { return c.migrated(r, "v1") })
	if err := c.migrationCount(r, began, 1); err != nil {
		t.Error(err)
	}
}
