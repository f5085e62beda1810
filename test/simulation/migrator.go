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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// migrator stands for the migrator of the process that leads. It takes up unfinished migrations, two at a time.
type migrator struct {
	w       *world
	running map[types.UID]*sweep
	// stopped are sweeps that go on when they may write again.
	stopped map[types.UID]*sweep
	waking  bool
	// pace is how long one object takes at most; away says until when nobody works; fails is the reason for which the next
	// one ends as Failed.
	pace  time.Duration
	away  time.Time
	fails string
	// followed is since when all servers were found to follow this generation of this definition. It holds until another
	// server comes or leaves.
	followed struct {
		uid        types.UID
		generation int64
		servers    time.Time
		since      time.Time
	}
	asking bool
}

// sweep is the pass over all objects of a resource.
type sweep struct {
	name    string
	uid     types.UID
	objects []*object
	began   bool
}

func newMigrator(w *world) *migrator {
	return &migrator{w: w, running: map[types.UID]*sweep{}, stopped: map[types.UID]*sweep{}, pace: time.Second}
}

// wake has migrations taken up soon.
func (g *migrator) wake() {
	if g.waking {
		return
	}
	g.waking = true
	g.w.afterWhenServed(g.w.dice.upTo(3*time.Second)+100*time.Millisecond, func() {
		g.waking = false
		g.takeUp()
	})
}

// askFollowers asks every server what it writes of the custom resource, until all follow the definition.
func (g *migrator) askFollowers() {
	if g.asking {
		return
	}
	g.asking = true
	g.w.after(2*time.Second, func() {
		g.asking = false
		switch d := g.w.cluster.definition; {
		case d == nil || g.knowsFollowers():
		case g.everyServerFollows(d.encoding(d.storage)):
			g.followed.uid, g.followed.generation, g.followed.since = d.uid, d.generation, g.w.now
			g.followed.servers = g.serversSince()
		default:
			g.askFollowers()
		}
	})
}

// knowsFollowers reports whether all servers follow the definition, as far as the manager knows.
func (g *migrator) knowsFollowers() bool {
	d := g.w.cluster.definition
	return g.followed.uid == d.uid && g.followed.generation == d.generation && g.followed.servers.Equal(g.serversSince())
}

// serversSince is when a server came or left last, as far as the manager knows.
func (g *migrator) serversSince() time.Time {
	if m := g.w.manager; m != nil {
		return m.observer.ledger.Observe(m.now(), crontabs).ServersSince
	}
	return time.Time{}
}

// everyServerFollows asks each server that the manager knows whether it writes an encoding of the custom resource.
func (g *migrator) everyServerFollows(encoding string) bool {
	c, m := g.w.cluster, g.w.manager
	if c.definition == nil || m == nil {
		return false
	}
	o, asked := m.observer, []*server{}
	servers := storageversion.LivingServers{Living: o.living, Advertised: c.advertised()}
	shares, _ := servers.SharesAddresses(o.addresses)
	answering := o.addresses
	if len(answering) == 0 {
		answering = []string{balancer}
	}
	if !servers.AdvertisesAll(answering) && m.now().Before(o.lostAt.Add(silence)) && !g.w.mutant.forgetsLost {
		return false
	}
	switch {
	case c.addressed() && shares, o.shared && o.unmet != "":
		return false
	case !c.addressed():
		if m.now().Before(o.lostAt.Add(silence)) && !g.w.mutant.forgetsLost {
			return false
		}
		met := o.connect(len(o.living))
		if len(met) < len(o.living) {
			return false
		}
		asked = slices.Collect(maps.Values(met))
	case len(o.addresses) == 0:
		asked = append(asked, c.connect())
	case len(servers.Missing(o.addresses)) > 0 && !g.w.mutant.forgetsMissing:
		return false
	default:
		for _, address := range o.addresses {
			asked = append(asked, c.at(address))
		}
	}
	return !slices.ContainsFunc(asked, func(s *server) bool {
		return s == nil || c.definition.encoding(s.follows) != encoding
	})
}

// mayStart reports whether all servers have followed the definition for the settle period.
func (g *migrator) mayStart(resource schema.GroupResource) bool {
	d := g.w.cluster.definition
	if resource != crontabs || d == nil || g.w.mutant.forgetsFollowers {
		return true
	}
	if g.w.mutant.asksFollowersOnce {
		return g.everyServerFollows(d.encoding(d.storage))
	}
	if !g.knowsFollowers() {
		g.askFollowers()
		return false
	}
	return !g.w.now.Before(g.followed.since.Add(g.w.periods.Settle))
}

func (g *migrator) takeUp() {
	if g.w.now.Before(g.away) {
		return
	}
	waiting := false
	for _, name := range slices.Sorted(maps.Keys(g.w.api.migrations)) {
		m := g.w.api.migrations[name]
		if m.Finished() || g.running[m.UID] != nil {
			continue
		}
		if len(g.running) == 2 {
			waiting = true
			continue
		}
		s := g.stopped[m.UID]
		if s == nil {
			s = &sweep{name: name, uid: m.UID}
		}
		if !g.bind(s, m) {
			waiting = true
			continue
		}
		g.running[m.UID] = s
		delete(g.stopped, m.UID)
		g.goOn(s)
	}
	if waiting {
		g.w.after(5*time.Second, g.wake)
	}
}

// bind has a migration begin, or go on, if it may write now. It records what the migration is about.
func (g *migrator) bind(s *sweep, m *migrationv1alpha1.StorageVersionMigration) bool {
	decision := g.decideCached(m)
	if m.GroupResource() == flunders && decision.Verdict == svmigrator.Go {
		g.w.manager.observer.readAggregated()
		decision = g.decideCached(m)
	}
	if decision.Verdict != svmigrator.Go {
		g.failIfDecided(m, decision)
		return false
	}
	if m.Begun() {
		return true
	}
	if !g.mayStart(m.GroupResource()) {
		return false
	}
	return g.w.api.updateMigration(s.name, s.uid, func(status *migrationv1alpha1.StorageVersionMigrationStatus) {
		now := metav1.NewTime(migrationv1alpha1.RoundUp(g.w.clock()))
		status.Target, status.Evidence, status.StartTime = decision.Target, decision.Evidence, &now
		status.Conditions = []migrationv1alpha1.MigrationCondition{{Type: migrationv1alpha1.MigrationRunning,
			Status: corev1.ConditionTrue}}
	})
}

// goOn does the next thing of a sweep, after a while.
func (g *migrator) goOn(s *sweep) {
	g.w.afterWhenServed(g.w.dice.upTo(g.pace)+50*time.Millisecond, func() {
		if g.running[s.uid] == s {
			g.step(s)
		}
	})
}

func (g *migrator) step(s *sweep) {
	m := g.w.api.migrations[s.name]
	if m == nil || m.UID != s.uid || m.Finished() {
		delete(g.running, s.uid)
		g.wake()
		return
	}
	resource := m.GroupResource()
	if !s.began {
		s.began, s.objects = true, slices.Clone(g.w.store.of(resource))
	}
	if decision := g.decideCached(m); decision.Verdict != svmigrator.Go && !g.w.mutant.goesOn {
		g.stop(s, m, decision)
		return
	}
	if len(s.objects) == 0 {
		g.end(s, m)
		return
	}
	servers := g.w.cluster.accepting()
	for i := range servers {
		by := servers[(i+g.w.dice.below(len(servers)))%len(servers)]
		encoding, from := g.w.encoding(by, resource)
		if encoding == "" {
			continue
		}
		g.w.store.changed = true
		one := s.objects[0]
		if one.encoding != encoding || one.source != from {
			*one = object{encoding: encoding, source: from}
		}
		s.objects = s.objects[1:]
		break
	}
	g.goOn(s)
}

// boast is what a migrator does that does not know of targets: it says that it succeeded, and did nothing.
func (g *migrator) boast() {
	for _, name := range slices.Sorted(maps.Keys(g.w.api.migrations)) {
		if m := g.w.api.migrations[name]; !m.Finished() && m.Status.Target == nil {
			g.finish(m, migrationv1alpha1.MigrationSucceeded, "")
			return
		}
	}
}
