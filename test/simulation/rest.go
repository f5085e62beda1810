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

package simulation

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// bound on what goes on in a quiet hour, for each resource.
const (
	writesAnHour    = 3
	decisionsAnHour = 40
	// atRest is how long a manager has led, at least, when it counts as having decided about everything.
	atRest = 5 * time.Minute
)

// comeToRest ends all disturbances, waits, and finds out whether everything is migrated and nothing goes on anymore.
func (w *world) comeToRest() {
	w.log("-- everything comes to rest")
	w.calmDown()
	w.pass(8 * time.Minute) // An upgrade may go on for as long.
	w.quiet = true
	w.settleServers()
	for range 20 {
		w.pass(atRest)
		if awake := w.feeds.awakeSince; w.failure != nil ||
			!awake.IsZero() && w.now.Sub(awake) >= atRest && len(w.unmigrated()) == 0 {
			break
		}
		if w.now.Sub(beginning)%(30*time.Minute) < atRest {
			for _, resource := range everything {
				w.retry(resource)
			}
		}
	}
	if w.failure != nil {
		return
	}
	for _, resource := range w.unmigrated() {
		w.violated("at rest: %s is not migrated: %s", resource.Resource, w.stateInWords(resource))
	}
	w.countQuietHours(1)
	w.restartManager()
}

// calmDown ends what steps began and does not end by itself.
func (w *world) calmDown() {
	w.startManager()
	w.migrant.pace, w.migrant.fails = time.Second, ""
	for _, resource := range everything {
		if state := w.api.states[resource.String()]; state != nil &&
			state.Annotations[migrationv1alpha1.PausedAnnotation] != "" {
			w.pause(resource, false)
		}
	}
}

// settleServers has one release on all servers, and all of them seen.
func (w *world) settleServers() {
	c := w.cluster
	for _, s := range c.servers {
		c.thaw(s)
	}
	if slices.ContainsFunc(c.servers, c.isBackUnseen) {
		w.pass(renewal)
	}
	c.hidden = map[string]bool{}
	c.tellAddresses()
	if slices.ContainsFunc(c.servers, func(s *server) bool { return c.mustBeMet(s) }) {
		w.pass(atRest) // It can be met now.
	}
	c.define(0)
	release, found := 2, false
	for i := range identities {
		if s := c.of(identityOf(i)); s != nil && s.accepts {
			switch {
			case !found:
				release, found = s.release, true
			case s.release != release:
				c.restart(s.identity, release, s.publishes)
			}
		}
	}
	if !found {
		c.start(identityOf(0), release, true)
	}
	w.pass(3 * time.Minute)
	c.expireLeases()
	for _, s := range c.servers {
		c.showAddress(s.address, true)
	}
	for _, address := range slices.Clone(c.addresses) {
		if c.at(address) == nil {
			c.showAddress(address, false)
		}
	}
}

// unmigrated are the resources that should be migrated by now, and are not.
func (w *world) unmigrated() []schema.GroupResource {
	var all []schema.GroupResource
	for _, resource := range everything {
		encoding := ""
		for _, s := range w.cluster.accepting() {
			if encoding, _ = w.encoding(s, resource); encoding != "" {
				break
			}
		}
		if encoding == "" {
			continue
		}
		state := w.api.states[resource.String()]
		migrated := state != nil && state.Status.CurrentStorageVersionHash == encoding &&
			slices.Equal(state.Status.PersistedStorageVersionHashes, []string{encoding}) &&
			meta.IsStatusConditionTrue(state.Status.Conditions, migrationv1alpha1.StorageStateMigrated)
		for _, one := range w.store.of(resource) {
			migrated = migrated && one.encoding == encoding
		}
		if !migrated {
			all = append(all, resource)
		}
	}
	return all
}

// countQuietHours finds out what goes on when nothing happens.
func (w *world) countQuietHours(hours int) {
	for range hours {
		clear(w.api.writes)
		w.manager.decisions = [resources]int{}
		w.pass(time.Hour)
		if w.failure != nil {
			return
		}
		for i, resource := range everything {
			writes := writesAnHour
			if resource == flunders || w.cluster.anonymous() {
				writes = 12 // The evidence is only worth the time since it was seen.
			}
			if n := w.api.writes[resource.String()]; n > writes {
				w.violated("at rest: %d writes of the state of %s in an hour", n, resource.Resource)
			}
			if n := w.manager.decisions[i]; n > decisionsAnHour {
				w.violated("at rest: %d decisions about %s in an hour", n, resource.Resource)
			}
		}
	}
}

// restartManager has a manager take over, with a server that does not answer at first. Nothing has changed, so no epoch
// may begin.
func (w *world) restartManager() {
	if w.failure != nil || w.cluster.anonymous() {
		return
	}
	w.log("-- a manager starts, and a server does not answer")
	first := w.cluster.servers[0]
	w.cluster.failsUntil[first.address] = w.now.Add(20 * time.Second)
	before := maps.Clone(w.api.states)
	w.endManager(0)
	w.startManager()
	w.pass(5 * time.Minute)
	for _, resource := range everything {
		if resource == flunders { // The clocks of the managers may differ, and its evidence is only worth the time.
			continue
		}
		name := nameOf(resource)
		if state := before[name]; state != nil && w.api.states[name].Status.Epoch > state.Status.Epoch {
			w.violated("at rest: another manager starts, and an epoch of %s begins: %s", name,
				statusInWords(&w.api.states[name].Status))
		}
	}
}

// anonymous reports whether nothing tells the processes of a server apart.
func (c *cluster) anonymous() bool {
	return c.leasing == untold && slices.ContainsFunc(c.servers, c.keepsLease)
}

func (w *world) stateInWords(resource schema.GroupResource) string {
	state := w.api.states[resource.String()]
	if state == nil {
		return "there is no state"
	}
	text := statusInWords(&state.Status)
	for _, condition := range state.Status.Conditions {
		text += "\n  " + condition.Type + ": " + condition.Message
	}
	for _, one := range w.store.of(resource) {
		text += "\n  an object in " + words(one.encoding)
	}
	return text
}
