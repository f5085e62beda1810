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
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// testInstallation has parts that go on with the states of those before them, because it takes a manager many requests
// to make them. So each part stops its managers itself.
func testInstallation(t *testing.T) {
	c := startCluster(t)
	for _, one := range []part{{"First", testFirstInstallation}, {"Absence", testAbsence}, {"IdleCost", testIdleCost}} {
		if !t.Run(one.name, func(t *testing.T) { one.run(t, c) }) {
			return
		}
	}
}

// testFirstInstallation is what an administrator of one API server sees in the first minutes.
func testFirstInstallation(t *testing.T, c *cluster) {
	startJudge(t, c, configMaps, flowSchema)
	expected := migratable(t, c)
	t.Logf("%d resources can be migrated", len(expected))

	began := time.Now()
	manager := c.startManager(t, "manager")
	framework.EventuallySeen(t, soon, func() error { return c.haveStates(expected) })
	t.Logf("all states are there %v after the start of the manager", time.Since(began).Round(time.Millisecond))
	for name, writes := range c.firstRecords() {
		if certain(writes) {
			t.Errorf("%s was created without Unknown: %s", name, words(writes))
		}
	}

	// Nobody migrates yet: all migrations are created, and the states say that they wait.
	framework.EventuallySeen(t, soon, func() error { return c.allQueued(expected) })
	if early := c.migrationsAfter(0)[0].seen.Sub(began); early < settle {
		t.Errorf("the first migration was created %v after the start, before the settle period", early)
	}
	startMigrator(t, c)
	framework.EventuallySeen(t, soon, func() error { return c.allMigrated(expected) })
	t.Logf("everything is migrated %v after the start of the manager", time.Since(began).Round(time.Millisecond))

	for _, gr := range expected {
		if got := c.migrationsOf(gr, 0); len(got) != 1 {
			t.Errorf("%d migrations of %s, want one", len(got), gr)
		}
	}
	framework.StopManager(t, manager)
}

// allQueued complains unless every resource has a migration that its state names and that has not begun.
func (c *cluster) allQueued(resources []schema.GroupResource) error {
	var errs []error
	for _, gr := range resources {
		state := c.state(gr.String())
		if state == nil {
			errs = append(errs, fmt.Errorf("%s has no state", gr))
			continue
		}
		migrated := meta.FindStatusCondition(state.Status.Conditions, v1alpha1.StorageStateMigrated)
		if migrated == nil || migrated.Reason != v1alpha1.StateReasonMigrationQueued || state.Status.Migration == nil {
			errs = append(errs, fmt.Errorf("no migration waits: %s", words(state)))
		}
	}
	return errors.Join(errs...)
}

// migratable are all resources that can be listed, and updated or patched, as the API server's own documents say.
func migratable(t *testing.T, c *cluster) []schema.GroupResource {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(c.AdminConfig)
	if err != nil {
		t.Fatal(err)
	}
	// Only the legacy documents tell what is stored.
	client.UseLegacyDiscovery = true
	var lists []*metav1.APIResourceList
	// A group may be in the list of groups before it can be read.
	framework.Eventually(t, soon, func(context.Context) error {
		_, lists, err = client.ServerGroupsAndResources()
		return err
	})
	found := map[schema.GroupResource]bool{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			writable := slices.Contains(r.Verbs, "update") || slices.Contains(r.Verbs, "patch")
			if r.StorageVersionHash != "" && slices.Contains(r.Verbs, "list") && writable && !strings.Contains(r.Name, "/") {
				found[schema.GroupResource{Group: gv.Group, Resource: r.Name}] = true
			}
		}
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b schema.GroupResource) int {
		return strings.Compare(a.String(), b.String())
	})
}

// haveStates complains unless exactly these resources have a state that was recorded.
func (c *cluster) haveStates(expected []schema.GroupResource) error {
	states := c.allStates()
	var missing []string
	for _, gr := range expected {
		if state := states[gr.String()]; state == nil || state.Status.CurrentStorageVersionHash == "" {
			missing = append(missing, gr.String())
		}
		delete(states, gr.String())
	}
	if len(missing) > 0 || len(states) > 0 {
		return fmt.Errorf("%d resources have no state: %v; states of others: %v", len(missing), missing,
			slices.Collect(maps.Keys(states)))
	}
	return nil
}

// firstRecords are the first writes of all states that say something.
func (c *cluster) firstRecords() map[string]*v1alpha1.StorageState {
	first := map[string]*v1alpha1.StorageState{}
	for name := range c.allStates() {
		for _, write := range c.stateWrites(name, 0) {
			if write.state != nil && len(write.state.Status.PersistedStorageVersionHashes) > 0 {
				first[name] = write.state
				break
			}
		}
	}
	return first
}

// allMigrated complains unless every state lists its current encoding alone.
func (c *cluster) allMigrated(expected []schema.GroupResource) error {
	var errs []error
	for _, gr := range expected {
		r := resource{GroupResource: gr}
		state := c.state(gr.String())
		if state == nil {
			errs = append(errs, fmt.Errorf("there is no state of %s", gr))
		} else if !slices.Equal(persisted(state), []string{state.Status.CurrentStorageVersionHash}) {
			errs = append(errs, errors.New(words(state)))
		} else {
			errs = append(errs, c.says(r, v1alpha1.StorageStateMigrated, metav1.ConditionTrue,
				v1alpha1.StateReasonOnlyCurrentEncoding))
		}
	}
	return errors.Join(errs...)
}
