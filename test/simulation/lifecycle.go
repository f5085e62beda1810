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
	"time"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// start begins a process, unless one with that identity runs. It answers before its Lease is there. It writes as well
// then, unless it publishes StorageVersions: it does that when its Lease is there, and writes when it has.
func (c *cluster) start(identity string, release int, publishes bool) {
	if c.of(identity) != nil {
		return
	}
	switch c.publishing {
	case noneOfThem:
		publishes = false
	case allOfThem:
		publishes = true
	}
	s := c.process(identity, release, publishes)
	if c.w.dice.oneIn(8) {
		s.address = fmt.Sprintf("10.0.1.%d", c.started)
	}
	c.w.log("%s starts at %s with release %d, publishing %v", s.incarnation, s.address, release, publishes)
	s.accepts = !publishes
	delay := c.w.dice.rather(leaseDelay)
	c.w.after(delay, func() {
		if !s.lives {
			return
		}
		if !c.keepsLease(s) {
			c.dropLease(s.identity)
		}
		c.setLease(s)
		c.publish(s)
		if !s.accepts {
			s.accepts, s.source.began = true, c.w.now
		}
	})
	c.w.after(delay+c.w.dice.upTo(addressDelay), func() {
		if s.lives && s.accepts {
			c.showAddress(s.address, true)
		}
	})
}

// stop ends a process in good order: the Lease goes first, what was begun is finished.
func (c *cluster) stop(identity string) {
	s := c.of(identity)
	if s == nil || !s.accepts || !c.mayLeave(identity) || c.isBackUnseen(s) || c.mustBeMet(s) {
		return
	}
	c.w.log("%s stops", s.incarnation)
	s.leaves = true
	if !c.keepsLease(s) && c.leases[identity] != nil && c.leases[identity].incarnation == s.incarnation {
		c.dropLease(identity)
	}
	c.w.after(silence+requestTimeout+renewal, func() { c.fallSilent(s) })
	accepts := c.w.dice.upTo(acceptance)
	drain := c.w.dice.rather(requestTimeout)
	c.w.after(accepts, func() {
		if s.lives {
			c.w.store.writeSlowly(s, drain)
			s.accepts = false
		}
	})
	c.w.after(accepts+c.w.dice.upTo(addressDelay-acceptance), func() {
		s.answers = false
		c.disconnect(s)
	})
	c.w.after(c.w.dice.upTo(addressDelay), func() { c.forgetAddress(s) })
	c.w.after(accepts+drain, func() { c.end(s) })
}

// kill ends a process at once. Its Lease stays, and its address does for a while.
func (c *cluster) kill(identity string) {
	s := c.of(identity)
	if s == nil || c.mustBeMet(s) {
		return
	}
	c.w.log("%s is killed", s.incarnation)
	c.end(s)
	if !s.leased || c.isBackUnseen(s) {
		// Nothing ever told of it, or that it had come back.
		c.w.store.forgive(func(from *source) bool { return from == s.source })
	}
	c.w.after(c.w.dice.upTo(addressDelay), func() { c.forgetAddress(s) })
	c.w.after(silence+c.w.dice.upTo(renewal), func() { c.fallSilent(s) })
}

// freeze cuts a server off from etcd: it can neither write nor renew its Lease.
func (c *cluster) freeze(identity string, d time.Duration) {
	s := c.of(identity)
	if s == nil || !s.accepts || !s.leased || s.leaves {
		return
	}
	c.w.log("%s freezes", s.incarnation)
	s.frozen, s.accepts = true, false
	c.w.after(c.w.dice.upTo(addressDelay), func() {
		if s.frozen {
			c.forgetAddress(s)
		}
	})
	c.w.after(silence+c.w.dice.upTo(renewal), func() { c.fallSilent(s) })
	c.w.after(d, func() { c.thaw(s) })
}

// thaw ends what freeze began. A server that counts as gone is like one that comes: nobody knows of it until it renews
// its Lease.
func (c *cluster) thaw(s *server) {
	if !s.frozen || !s.lives {
		return
	}
	c.w.log("%s thaws", s.incarnation)
	s.frozen, s.accepts = false, true
	l := c.leases[s.identity]
	if l == nil || l.incarnation != s.incarnation || l.silent {
		s.source = &source{
			name: s.incarnation, identity: s.identity, began: c.w.now, grace: c.processGrace() + renewal,
		}
		c.sources[s.incarnation] = s.source
		if s.returned = true; !c.sawLeave(s) {
			c.follow(s) // Nobody waits for a server that counts as gone, and nobody would know that it comes back.
		}
	}
	c.w.after(c.w.dice.rather(handlerDelay), func() { c.catchUp(s) })
	c.w.after(c.w.dice.upTo(renewal), func() {
		if s.accepts && !s.leaves && c.of(s.identity) == s {
			c.setLease(s)
		}
	})
	c.w.after(c.w.dice.upTo(addressDelay), func() {
		if s.accepts {
			c.showAddress(s.address, true)
		}
	})
}

// isBackUnseen reports whether a server has come back, and has not renewed its Lease yet. That is the limit of what can
// be observed, so it does not leave in good order before.
func (c *cluster) isBackUnseen(s *server) bool {
	l := c.leases[s.identity]
	return s.accepts && l != nil && l.incarnation == s.incarnation && l.silent
}

// sawLeave reports whether the manager knows that a server left. Only then does it know when it comes back.
func (c *cluster) sawLeave(s *server) bool {
	m := c.w.manager
	return m != nil && m.observer.heardOf[s.incarnation] && !slices.ContainsFunc(m.observer.living,
		func(one storageversion.Process) bool { return one.Identity == s.identity })
}

// fallSilent has observers count a server as gone that renews its Lease no more, once its address is gone as well.
func (c *cluster) fallSilent(s *server) {
	l := c.leases[s.identity]
	switch {
	case l == nil, l.incarnation != s.incarnation, s.lives && !s.frozen:
	case c.lostAddress(s):
		c.w.log("Lease of %s is silent", s.incarnation)
		l.silent = true
		c.w.feeds.publish(streamLeases, livingTold(c.living()))
	default:
		c.w.after(renewal, func() { c.fallSilent(s) })
	}
}

// lostAddress stands for the rule by which package observer tells whether a server lost its address.
func (c *cluster) lostAddress(silent *server) bool {
	shown := c.reachable()
	var renewing []*server
	for _, s := range c.servers {
		if l := c.leases[s.identity]; l != nil && l.incarnation == s.incarnation && !s.frozen {
			renewing = append(renewing, s)
		}
	}
	if c.addressing == advertised && silent.release > 0 {
		return !slices.Contains(shown, silent.address) && slices.ContainsFunc(renewing, func(s *server) bool {
			return slices.Contains(shown, c.advertisedBy(s))
		})
	}
	return len(renewing) > 0 && len(renewing) == len(shown)
}

func (c *cluster) end(s *server) {
	s.lives, s.answers, s.accepts = false, false, false
	c.disconnect(s)
	c.servers = slices.DeleteFunc(slices.Clone(c.servers), func(other *server) bool { return other == s })
}

// disconnect ends the connections to a process.
func (c *cluster) disconnect(s *server) {
	if m := c.w.manager; m != nil {
		c.w.after(c.w.dice.upTo(burst), func() { m.observer.disconnected(s) })
	}
}

// forgetAddress takes the address away, unless another process has it by now.
func (c *cluster) forgetAddress(s *server) {
	for _, other := range c.servers {
		if other != s && other.address == s.address {
			return
		}
	}
	c.showAddress(s.address, false)
}

// restart replaces a process by one with the same identity.
func (c *cluster) restart(identity string, release int, publishes bool) {
	s := c.of(identity)
	if s == nil {
		c.start(identity, release, publishes)
		return
	}
	c.stop(identity)
	c.startAfter(s, identity, release, publishes)
}

// startAfter starts a process when another has ended.
func (c *cluster) startAfter(before *server, identity string, release int, publishes bool) {
	if !before.lives {
		c.start(identity, release, publishes)
		return
	}
	if before.accepts && !before.leaves && c.of(identity) == before && c.leases[identity] != nil {
		return // It does not stop.
	}
	c.w.after(time.Second, func() { c.startAfter(before, identity, release, publishes) })
}

// mayLeave is the limit of what can be observed: a server that joined while nobody watched does not leave for good
// before somebody did, unless it was there not long before.
func (c *cluster) mayLeave(identity string) bool {
	l, m := c.leases[identity], c.w.manager
	switch {
	case l == nil:
		return false
	case !l.unwatched && c.w.feeds.watched(streamLeases):
		return true
	default:
		return m != nil && m.observer.listed && !m.observer.lastHeld[identity].IsZero()
	}
}

// mustBeMet is another limit: a server does not leave before the manager has met it that a Lease does not tell from one
// of a later release, which the manager has not met, or that another server stood in for.
func (c *cluster) mustBeMet(s *server) bool {
	m, l := c.w.manager, c.leases[s.identity]
	takesOver := l != nil && l.identifies && l.holder != s.incarnation && c.keepsLease(s)
	return takesOver && (m == nil || !m.observer.met[l.holder] && !m.observer.met[s.incarnation]) ||
		c.isStoodInFor(s.incarnation)
}

// isStoodInFor reports whether a server that left before a manager began answered in the place of a process that has no
// address yet. Leases that name no addresses do not show it. Nobody has to know what the process writes until the
// manager has met it.
func (c *cluster) isStoodInFor(incarnation string) bool {
	m := c.w.manager
	return m != nil && m.observer.stoodInFor[incarnation] && !m.observer.met[incarnation]
}

// loseLease lets somebody delete the Lease of a server that runs. The server puts it back.
func (c *cluster) loseLease(identity string) {
	s := c.of(identity)
	if s == nil || !s.accepts || c.leases[identity] == nil || c.leases[identity].incarnation != s.incarnation ||
		!c.mayLeave(identity) {
		return
	}
	c.dropLease(identity)
	c.w.after(c.w.dice.rather(10*time.Second), func() {
		if s.accepts {
			c.setLease(s)
		}
	})
}

// expireLeases takes away the Leases of processes that are gone, as the API servers do after an hour.
func (c *cluster) expireLeases() {
	for _, one := range c.holders() {
		s := c.of(one.Identity)
		if (s == nil || s.incarnation != c.leases[one.Identity].incarnation && !s.accepts) && c.mayLeave(one.Identity) {
			c.dropLease(one.Identity)
		}
	}
}

// noteUnwatched marks the Leases that a manager that ends may not have recorded yet, and forgets what servers that left
// before that wrote, and still write: who joins and leaves while nobody watches cannot be known of.
func (c *cluster) noteUnwatched() {
	for _, l := range c.leases {
		if c.w.now.Sub(l.since) <= c.processGrace()+latency {
			l.unwatched = true
		}
	}
	returned := map[*source]bool{}
	for _, s := range c.servers {
		if s.returned {
			returned[s.source] = true
			c.follow(s)
		}
	}
	holds := func(one *server) bool {
		return c.leases[one.identity] != nil && c.leases[one.identity].incarnation == one.incarnation
	}
	for _, s := range c.servers {
		if from := s.source; s.leaves && !from.due && from.identity != "" && !holds(s) {
			c.w.store.silence(from)
		}
	}
	c.w.store.forgive(func(s *source) bool {
		if s.due || s.identity == "" {
			return false
		}
		return returned[s] || !slices.ContainsFunc(c.servers, func(one *server) bool {
			return one.source == s && holds(one)
		})
	})
}

// hushLeaving has no server answer behind the balancer that left before a manager began: nobody can know that it is
// there.
func (c *cluster) hushLeaving() {
	for _, s := range c.servers {
		if s.leaves && !c.addressed() {
			s.answers = false
		}
	}
}

// noteWatched says that all Leases have been seen.
func (c *cluster) noteWatched() {
	for _, l := range c.leases {
		l.unwatched = false
	}
}
