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
	"fmt"
	"slices"
	"strings"
	"time"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// identities is how many servers there can be.
const identities = 4

// script is a history before it happened.
type script struct {
	Setting setting
	Steps   []step
}

// step is something that happens, and the time that passes after it.
type step struct {
	// Do is a position in actions.
	Do        int
	Who, What int
	Wait      int // a position in waits
	// Seed is for the dice until the next step.
	Seed uint64
}

var waits = []time.Duration{
	0, 100 * time.Millisecond, time.Second, 3 * time.Second, 8 * time.Second, 16 * time.Second, 30 * time.Second,
	66 * time.Second, 70 * time.Second, 2 * time.Minute, 4 * time.Minute, 11 * time.Minute,
}

// action is something that a step can do. What it cannot do at the moment it leaves.
type action struct {
	name string
	do   func(w *world, who, what int)
}

var actions = []action{
	{"nothing", func(*world, int, int) {}},

	{"start a server", func(w *world, who, what int) {
		w.cluster.start(identityOf(who), what%releases,
			what/releases%2 == 0)
	}},
	{"stop a server", func(w *world, who, _ int) { w.cluster.stop(identityOf(who)) }},
	{"kill a server", func(w *world, who, _ int) { w.cluster.kill(identityOf(who)) }},
	{"restart a server", func(w *world, who, what int) {
		w.cluster.restart(identityOf(who), what%releases, what/releases%2 == 0)
	}},
	{"kill and start a server", func(w *world, who, what int) {
		w.cluster.kill(identityOf(who))
		w.cluster.start(identityOf(who), what%releases, what/releases%2 == 0)
	}},
	{"let a server crash again and again", crashLoop},
	{"upgrade all servers", upgrade},
	{"replace a server by one elsewhere", func(w *world, who, what int) {
		w.cluster.start(identityOf((who+1)%identities), what%releases, what/releases%2 == 0)
		w.after([]time.Duration{time.Second, 20 * time.Second, 90 * time.Second}[what%3],
			func() { w.cluster.stop(identityOf(who)) })
	}},
	{"hide an address", func(w *world, who, _ int) { w.cluster.hide(who, true) }},
	{"show an address", func(w *world, who, _ int) { w.cluster.hide(who, false) }},
	{"let documents fail", failDocuments},
	{"freeze a server", func(w *world, who, what int) {
		w.cluster.freeze(identityOf(who), []time.Duration{30 * time.Second, 2 * time.Minute, 5 * time.Minute}[what%3])
	}},
	{"delete a Lease", func(w *world, who, _ int) { w.cluster.loseLease(identityOf(who)) }},
	{"let Leases expire", func(w *world, _, _ int) { w.cluster.expireLeases() }},

	{"change the storage version", func(w *world, _,
		what int) {
		w.cluster.flip(customVersion(what % len(customVersions)))
	}},
	{"change the storage version twice", func(w *world, who, what int) {
		w.cluster.flip(customVersion(what % len(customVersions)))
		w.after([]time.Duration{0, 100 * time.Millisecond, 2 * time.Second, 20 * time.Second}[who], func() {
			w.cluster.flip(customVersion((what + 1) % len(customVersions)))
		})
	}},
	{"hold back the definition from a server", func(w *world, who, what int) {
		w.cluster.hold(identityOf(who), []time.Duration{20 * time.Second, 70 * time.Second, 3 * time.Minute}[what%3])
	}},
	{"change the schema", func(w *world, _, _ int) { w.cluster.touch() }},
	{"shorten storedVersions", func(w *world, _, _ int) { w.cluster.shorten() }},
	{"delete the definition", func(w *world, who, what int) {
		w.cluster.undefine()
		if who > 0 {
			w.after(time.Duration(who)*time.Second, func() { w.cluster.define(customVersion(what % len(customVersions))) })
		}
	}},
	{"create the definition", func(w *world, _, what int) { w.cluster.define(customVersion(what % len(customVersions))) }},
	{"flip the aggregated server", func(w *world, _, _ int) { w.cluster.flipAggregated() }},
	{"let the aggregated server fail", func(w *world, who, what int) {
		w.cluster.failAggregated(outages[what%len(outages)], []string{"", aggregatedVersions[0]}[who%2])
	}},

	{"break a watch", func(w *world, who, what int) {
		d := []time.Duration{500 * time.Millisecond, 2 * time.Second, 8 * time.Second, 20 * time.Second}[who]
		w.feeds.cut(stream(what%int(streams)), d, what/int(streams)%2 == 0)
	}},
	{"cut the manager off", func(w *world, who, what int) {
		w.api.goAway(outages[who], false)
		w.feeds.cutAll(outages[who], what%2 == 0)
	}},
	{"crash the manager", func(w *world, who, _ int) {
		w.endManager(0)
		w.after([]time.Duration{0, 5 * time.Second, time.Minute, 15 * time.Minute}[who], w.startManager)
	}},
	{"depose the manager", func(w *world, who, what int) {
		w.endManager([]time.Duration{time.Millisecond, 2 * time.Second, 10 * time.Second, 40 * time.Second}[who])
		w.startStandby([]time.Duration{0, 3 * time.Minute, 12 * time.Minute}[what%3])
	}},
	{"let the API server fail", func(w *world, who, what int) { w.api.goAway(outages[what%len(outages)], who%2 == 1) }},

	{"crash the migrator", func(w *world, _, what int) { w.migrant.crash(outages[what%len(outages)]) }},
	{"slow the migrator down", func(w *world, who, _ int) {
		w.migrant.pace = []time.Duration{0, time.Second, 10 * time.Second, time.Minute}[who]
	}},
	{"let a migration fail", func(w *world, _, what int) {
		w.migrant.fails = []string{
			migrationv1alpha1.MigrationReasonObjectsDenied, migrationv1alpha1.MigrationReasonVerbsNotSupported,
		}[what%2]
	}},
	{"let another migrator boast", func(w *world, _, _ int) { w.migrant.boast() }},

	{"delete a migration", func(w *world, who, what int) { w.deleteMigration(who, what%4 == 1) }},
	{"create a migration", func(w *world, _, what int) { w.migrateByHand(everything[what%len(everything)]) }},
	{"pause", func(w *world, _, what int) { w.pause(everything[what%len(everything)], true) }},
	{"go on", func(w *world, _, what int) { w.pause(everything[what%len(everything)], false) }},
	{"ask for another attempt", func(w *world, _, what int) { w.retry(everything[what%len(everything)]) }},
	{"let another controller write a state", func(w *world, _,
		what int) {
		w.api.writeForeignState(everything[what%len(everything)])
	}},
	{"delete a state", func(w *world, _, what int) {
		_ = w.api.deleteState(everything[what%len(everything)].String(),
			nil)
	}},

	{"roll out the aggregated server", func(w *world, who, what int) {
		durations := []time.Duration{30 * time.Second, 3 * time.Minute, 9 * time.Minute, 25 * time.Minute}
		w.cluster.rollOutAggregated(durations[who], what%2 == 0)
	}},
	{"restore etcd", func(w *world, who, what int) { w.restore(who, what%releases) }},
}

// rare is how many of the last actions are not drawn. They take the place of others, see step.orRare.
const rare = 2

// orRare makes a rare step of some of those that are drawn. Drawing it would make each seed stand for another history.
func (s step) orRare() step {
	switch name := actions[s.Do].name; {
	case name == "flip the aggregated server" && s.What%3 == 1:
		s.Do = len(actions) - rare
	case name == "nothing" && s.What%3 == 1:
		s.Do = len(actions) - rare + 1
	}
	return s
}

// outages are how long something may be away.
var outages = []time.Duration{2 * time.Second, 20 * time.Second, 70 * time.Second, 3 * time.Minute}

// crashLoop kills a server a few times, and starts it again each time.
func crashLoop(w *world, who, what int) {
	period := []time.Duration{3 * time.Second, 8 * time.Second, 14 * time.Second}[what%3]
	for i := range 4 {
		w.after(period*time.Duration(i), func() {
			w.cluster.kill(identityOf(who))
			w.cluster.start(identityOf(who), (what+i*(what/3))%releases, true)
		})
	}
}

// upgrade restarts one server after the other.
func upgrade(w *world, who, what int) {
	for i := range identities {
		w.after(time.Duration(i)*[]time.Duration{0, 10 * time.Second, 40 * time.Second, 100 * time.Second}[who], func() {
			if w.cluster.of(identityOf(i)) != nil {
				w.cluster.restart(identityOf(i), what%releases, what/releases%2 == 0)
			}
		})
	}
}

func failDocuments(w *world, who, what int) {
	until := w.now.Add(outages[what%len(outages)])
	w.log("documents of %s fail until %s", identityOf(who), until.Sub(beginning))
	if s := w.cluster.of(identityOf(who)); s != nil {
		w.cluster.failsUntil[s.address] = until
	}
}

// hide takes the address of a server out of the EndpointSlices, or puts it back.
func (c *cluster) hide(who int, hidden bool) {
	if s := c.of(identityOf(who)); s != nil && c.hidden[s.address] != hidden {
		c.hidden[s.address] = hidden
		c.tellAddresses()
	}
}

// play makes a history. It returns how it violated a promise, if it did.
func (s script) play(m mutant, tell func(string)) (*world, error) {
	w := newWorld(s.Setting, m, tell)
	w.pass(2 * time.Second)
	for _, one := range s.Steps {
		w.dice = newDice(one.Seed)
		if one.Do != 0 {
			w.log("-- %s (%d, %d)", actions[one.Do].name, one.Who, one.What)
			actions[one.Do].do(w, one.Who, one.What)
		}
		w.pass(waits[one.Wait])
		if w.failure != nil {
			return w, w.failure
		}
	}
	w.dice = newDice(0)
	w.comeToRest()
	return w, w.failure
}

// String shows the script in the form that parse reads: the setting, and a line for each step.
func (s script) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "servers %d, release %d, publishing %d, addresses %s leases %s\n", s.Setting.servers,
		s.Setting.release, s.Setting.publishing, s.Setting.addressing, s.Setting.leasing)
	for _, one := range s.Steps {
		if one.Do != 0 || one.Wait != 0 {
			fmt.Fprintf(&b, "%s (%d, %d), %s, seed %d\n", actions[one.Do].name, one.Who, one.What, waits[one.Wait], one.Seed)
		}
	}
	return b.String()
}

// parse reads what String wrote.
func parse(text string) (script, error) {
	var s script
	lines := strings.Split(strings.TrimSpace(text), "\n")
	if _, err := fmt.Sscanf(strings.TrimSpace(lines[0]), "servers %d, release %d, publishing %d, addresses %s leases %s",
		&s.Setting.servers, &s.Setting.release, &s.Setting.publishing, &s.Setting.addressing,
		&s.Setting.leasing); err != nil {
		return s, fmt.Errorf("reading the setting %q: %w", lines[0], err)
	}
	for _, line := range lines[1:] {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " (")
		one := step{Do: slices.IndexFunc(actions, func(a action) bool { return a.name == name })}
		var wait string
		if _, err := fmt.Sscanf(strings.ReplaceAll(rest, ", seed", " seed"), "%d, %d), %s seed %d", &one.Who, &one.What,
			&wait, &one.Seed); err != nil {
			return s, fmt.Errorf("reading the step %q: %w", line, err)
		}
		one.Wait = slices.IndexFunc(waits, func(d time.Duration) bool { return d.String() == wait })
		if one.Do < 0 || one.Wait < 0 {
			return s, fmt.Errorf("reading the step %q: no such action or wait", line)
		}
		s.Steps = append(s.Steps, one)
	}
	return s, nil
}
