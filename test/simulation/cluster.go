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

	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	// requestTimeout is how long a write may take to land.
	requestTimeout = 60 * time.Second
	// acceptance is how long a server that stops goes on to accept requests after it gave its Lease up.
	acceptance = 5 * time.Second
	// leaseDelay is how long a server may write before its Lease is there.
	leaseDelay = 2 * time.Second
	// addressDelay is how much later than its Lease the address of a server may appear, and how much later it may go.
	addressDelay = 25 * time.Second
)

// setting is what a history begins with.
type setting struct {
	servers    int
	release    int
	publishing publishing
	addressing addressing
	leasing    leasing
}

// leasing tells whether the identity Lease of a server identifies the process.
type leasing string

const (
	// replaced: each process that starts replaces the Lease of the process before it.
	replaced leasing = "replaced"
	// kept: processes of releases 0 and 1 take the Lease over with its holder. They tell when they started.
	kept leasing = "kept"
	// untold: the same, and they do not tell it.
	untold leasing = "untold"
)

// addressing tells how servers can be asked.
type addressing string

const (
	// own: each server has an address, which its Lease does not name.
	own addressing = "own"
	// advertised: each server has an address. Its Lease names it, from release 1 on.
	advertised addressing = "advertised"
	// shared: all servers advertise one address, behind which each connection reaches any of them and stays with it.
	shared addressing = "shared"
	// none: servers advertise no addresses. All that there is is a balancer of the same kind.
	none addressing = "none"
)

// publishing tells which servers publish StorageVersions.
type publishing int

const (
	noneOfThem publishing = iota
	allOfThem
	someOfThem // as the step says that starts them
)

// server is one process of kube-apiserver. Which encodings it writes does not change.
type server struct {
	identity, incarnation, address string

	// number counts the processes: each writes other objects than those before and after it.
	number    int
	release   int
	publishes bool
	began     time.Time
	// lives until the process ends; answers at its address; accepts writes; leased once it had its Lease; leaves since it
	// gave it up; frozen while it can neither write nor renew its Lease.
	lives, answers, accepts, leased, leaves, frozen bool
	source                                          *source
	// follows is the storage version of custom resources that its handler has heard of, noticed the generation.
	follows customVersion
	noticed int64
	// returned says that it was gone, and has not heard of the definition since.
	returned bool
	// held is until when it hears of no change of the definition.
	held time.Time
}

// lease is an identity Lease.
type lease struct {
	// incarnation is the process that renews it, holder the one that it shows.
	incarnation, holder string
	// unwatched says that it appeared while nobody watched, or that whoever saw it ended before that was recorded.
	unwatched bool
	since     time.Time
	// address is the one that the Lease names.
	address string
	// identifies says that a server which makes a new Lease made it.
	identifies bool
	// silent says that observers count the server as gone.
	silent bool
}

// cluster is what is to be observed.
type cluster struct {
	w          *world
	publishing publishing
	addressing addressing
	leasing    leasing
	started    int
	// sources are those of server processes, by incarnation, and of changes of definitions.
	sources map[string]*source

	servers   []*server // those that live, in the order of their start
	leases    map[string]*lease
	addresses []string // in the EndpointSlices, sorted
	hidden    map[string]bool
	// failsUntil is until when the documents of the server at an address cannot be read.
	failsUntil map[string]time.Time
	// connections counts those that were made to the balancer.
	connections int

	published  map[schema.GroupResource]*storageversion.StorageVersion
	definition *definition
	aggregated *aggregated
}

func newCluster(w *world) *cluster {
	return &cluster{
		w: w, sources: map[string]*source{}, leases: map[string]*lease{}, hidden: map[string]bool{},
		failsUntil: map[string]time.Time{},
		published:  map[schema.GroupResource]*storageversion.StorageVersion{},
	}
}

// setUp makes servers that have been there for long, and objects of times before.
func (c *cluster) setUp(s setting) {
	c.publishing, c.addressing, c.leasing = s.publishing, s.addressing, s.leasing
	past := &source{name: "the past", began: c.w.now.Add(-time.Hour), grace: c.processGrace()}
	c.definition = &definition{uid: "definition-1", generation: 1, stored: []customVersion{0}}
	c.definition.sources[0] = past
	c.aggregated = &aggregated{revision: revision{source: past}}
	for i := range s.servers {
		one := c.process(identityOf(i), s.release, s.publishing == allOfThem)
		one.source = past
		c.sources[one.incarnation] = past
		c.publish(one)
		one.leased = true
		c.leases[one.identity] = &lease{
			incarnation: one.incarnation, holder: one.incarnation, address: c.advertisedBy(one),
			identifies: !c.keepsLease(one),
		}
		if c.addressed() {
			c.addresses = append(c.addresses, one.address)
		}
	}
	for _, b := range builtIns {
		if b.resource == storageOf(b.resource) {
			c.w.store.add(b.resource, past, b.encoding(0), b.encoding(s.release), b.encoding(s.release))
		}
	}
	c.w.store.add(crontabs, past, customEncodings[1], customEncodings[0], customEncodings[0])
	if s.addressing == shared {
		c.addresses = []string{balancer}
	}
	c.w.store.add(flunders, past, c.aggregated.encoding(), c.aggregated.encoding(), c.aggregated.encoding())
}

func identityOf(i int) string { return "server-" + string(rune('a'+i)) }

// processGrace is for what a server writes that cannot be asked: that it was not seen is told after the hold.
func (c *cluster) processGrace() time.Duration {
	if c.leasing != replaced {
		return c.w.periods.Patience + latency
	}
	return c.w.periods.UnreadPatience + latency
}

// process makes a process that does everything that servers do, but has no Lease.
func (c *cluster) process(identity string, release int, publishes bool) *server {
	c.started++
	one := &server{
		identity: identity, incarnation: fmt.Sprintf("%s_%d", identity, c.started),
		address: "10.0.0." + identity[len(identity)-1:], number: c.started, release: release,
		publishes: publishes, lives: true, answers: true, accepts: true, began: c.w.now,
	}
	one.source = &source{name: one.incarnation, identity: identity, began: c.w.now, grace: c.processGrace()}
	c.sources[one.incarnation] = one.source
	if c.definition != nil {
		one.follows, one.noticed = c.definition.storage, c.definition.generation
	}
	c.servers = append(c.servers, one)
	return one
}

// keepsLease reports whether a server takes over the Lease of the process before it.
func (c *cluster) keepsLease(s *server) bool { return c.leasing != replaced && s.release < 2 }

// of returns the process with that identity that is not on its way out, nil if there is none.
func (c *cluster) of(identity string) *server {
	for _, s := range c.servers {
		if s.identity == identity && s.lives {
			return s
		}
	}
	return nil
}

// at returns the process that answers at an address, nil if there is none.
func (c *cluster) at(address string) *server {
	for _, s := range c.servers {
		if s.address == address && s.answers {
			return s
		}
	}
	return nil
}

// accepting are the servers that take writes.
func (c *cluster) accepting() []*server {
	var all []*server
	for _, s := range c.servers {
		if s.accepts {
			all = append(all, s)
		}
	}
	return all
}

// addressed reports whether each server has an address of its own.
func (c *cluster) addressed() bool { return c.addressing == own || c.addressing == advertised }

// advertisedBy is the address that the Lease of a server names.
func (c *cluster) advertisedBy(s *server) string {
	switch {
	case c.keepsLease(s):
		return ""
	case s.release > 0 && c.addressing == advertised:
		return s.address
	case s.release > 0 && c.addressing == shared:
		return balancer
	default:
		return ""
	}
}

// advertised are the addresses that Leases name, by identity.
func (c *cluster) advertised() map[string]string {
	all := map[string]string{}
	for identity, l := range c.leases {
		if l.address != "" {
			all[identity] = l.address
		}
	}
	return all
}

// holders are those that have a Lease, in order.
func (c *cluster) holders() []storageversion.Process {
	return c.processesOf(func(*lease) bool { return true })
}

// living is what the Leases say.
func (c *cluster) living() []storageversion.Process {
	return c.processesOf(func(l *lease) bool { return !l.silent })
}

func (c *cluster) processesOf(which func(*lease) bool) []storageversion.Process {
	var all []storageversion.Process
	for identity, l := range c.leases {
		if !which(l) {
			continue
		}
		all = append(all, storageversion.Process{Identity: identity, Incarnation: l.holder})
	}
	slices.SortFunc(all, func(a, b storageversion.Process) int { return strings.Compare(a.Identity, b.Identity) })
	return all
}

// reachable are the addresses that the EndpointSlices show.
func (c *cluster) reachable() []string {
	var shown []string
	for _, address := range c.addresses {
		if !c.hidden[address] {
			shown = append(shown, address)
		}
	}
	return shown
}

func (c *cluster) setLease(s *server) {
	c.w.log("Lease of %s", s.incarnation)
	s.leased = true
	one := &lease{
		incarnation: s.incarnation, holder: s.incarnation, unwatched: !c.w.feeds.watched(streamLeases), since: c.w.now,
		address: c.advertisedBy(s), identifies: !c.keepsLease(s),
	}
	if before := c.leases[s.identity]; before != nil && c.keepsLease(s) {
		one.holder, one.unwatched, one.since = before.holder, before.unwatched, before.since
		one.identifies = before.identifies
	}
	c.leases[s.identity] = one
	c.w.feeds.publish(streamLeases, livingTold(c.living()))
}

func (c *cluster) dropLease(identity string) {
	if c.leases[identity] == nil {
		return
	}
	c.w.log("Lease of %s goes", c.leases[identity].incarnation)
	delete(c.leases, identity)
	c.w.feeds.publish(streamLeases, livingTold(c.living()))
	c.w.afterWhenServed(c.w.dice.upTo(30*time.Second), c.collectGarbage)
}

func (c *cluster) showAddress(address string, shown bool) {
	i, found := slices.BinarySearch(c.addresses, address)
	switch {
	case shown == found, !c.addressed():
		return
	case shown:
		c.addresses = slices.Insert(slices.Clone(c.addresses), i, address)
	default:
		c.addresses = slices.Delete(slices.Clone(c.addresses), i, i+1)
	}
	c.tellAddresses()
}

func (c *cluster) tellAddresses() {
	c.w.log("addresses %v", c.reachable())
	c.w.feeds.publish(streamAddresses, addressesTold(c.reachable()))
}
