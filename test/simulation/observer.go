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
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	// The periods of package observer.
	linger       = 90 * time.Second
	burst        = 250 * time.Millisecond
	firstRetry   = 500 * time.Millisecond
	longestRetry = 15 * time.Second
	// longestMeetingRetry is the longest between attempts to meet and read all servers behind the balancer.
	longestMeetingRetry = 5 * time.Minute
	// connectionsPerServer is how many connections are made for each of them at most.
	connectionsPerServer = 10
	// aggregatedRetry is the longest between readings of documents of aggregated servers that failed.
	aggregatedRetry = time.Minute
	// answerDelay is how long a server may take to answer.
	answerDelay = 2 * time.Second
	// silence is for how long a server that has no address any more must not have renewed its Lease to count as gone,
	// renewal how often servers renew them.
	silence = 90 * time.Second
	renewal = 10 * time.Second
	// historyKept is for how long a server that left may have been back without anybody noticing.
	historyKept = 10 * time.Minute
)

// observer stands for package observer: it does what that does, without requests.
type observer struct {
	m      *manager
	ledger *storageversion.Ledger

	listed, synced bool
	living         []storageversion.Process
	addresses      []string

	// moved says that servers or addresses changed since the last look began.
	looking, moved bool
	confirming     bool
	looks          int // planned looks; only the latest takes place
	retry          time.Duration
	documents      map[string]storageversion.Document // of the last look
	shared         bool                               // the same
	unmet          string                             // the same

	// held are the processes to which connections are kept, by the names of their documents.
	held map[string]*server
	// known are the sources of encodings that were heard of.
	known map[*source]bool
	// heardOf are the processes that were heard of.
	heardOf map[string]bool
	// met are the processes that answered. stoodInFor are those that had not when one answered that had left before
	// anybody heard of it.
	met, stoodInFor map[string]bool
	// lastHeld is when each server held a Lease last, if that was not long before the latest news.
	lastHeld map[string]time.Time
	// lostAt is when a process was found to have lost its Lease, or Leases were listed first.
	lostAt time.Time

	watchesStorageVersions bool
}

func newObserver(m *manager) *observer {
	return &observer{
		m: m, ledger: storageversion.NewLedger(linger), retry: firstRetry,
		known: map[*source]bool{}, heardOf: map[string]bool{}, met: map[string]bool{}, stoodInFor: map[string]bool{},
		held:     map[string]*server{},
		lastHeld: map[string]time.Time{},
	}
}

// list reads everything that is watched, and has the first look.
func (o *observer) list() {
	c := o.m.w.cluster
	o.listed, o.lostAt = true, o.m.now()
	c.hushLeaving()
	o.setLiving(c.holders(), true)
	o.setLiving(c.living(), true)
	c.noteWatched()
	o.addresses = c.reachable()
	o.setDefinition(c.definition.fact())
	o.look()
	o.pollAggregated()
}

// heard has the resources decided about that something changed of.
func (o *observer) heard(changes storageversion.Changes) {
	for _, resource := range everything {
		if _, changed := changes[resource]; changed {
			o.m.enqueue(resource)
		}
	}
}

func (o *observer) setLiving(living []storageversion.Process, unbroken bool) {
	if mutate := o.m.w.mutant.living; mutate != nil {
		living, unbroken = mutate(living, unbroken)
	}
	if unbroken && o.synced && slices.Equal(o.living, living) {
		return
	}
	for _, before := range o.living {
		if l := o.m.w.cluster.leases[before.Identity]; l == nil || l.holder != before.Incarnation {
			o.lostAt = o.m.now()
		}
	}
	o.noteHeld()
	o.living = living
	for _, one := range living {
		o.heardOf[one.Incarnation] = true
		o.known[o.m.w.cluster.sources[one.Incarnation]] = true
	}
	o.heard(o.ledger.SetServers(o.m.now(), living, unbroken))
	o.lookSoon()
}

// noteHeld remembers who holds Leases, and forgets who has not held one for long.
func (o *observer) noteHeld() {
	now := o.m.now()
	for _, one := range o.living {
		o.lastHeld[one.Identity] = now
	}
	maps.DeleteFunc(o.lastHeld, func(_ string, last time.Time) bool { return now.Sub(last) > historyKept })
}

func (o *observer) setAddresses(addresses []string) {
	if slices.Equal(o.addresses, addresses) {
		return
	}
	o.addresses = addresses
	o.lookSoon()
}

func (o *observer) setDefinition(definition *storageversion.Definition) {
	if definition != nil {
		for name, from := range o.m.w.cluster.sources {
			if from.definition == definition.UID && from.generation <= definition.Generation {
				o.known[o.m.w.cluster.sources[name]] = true
			}
		}
	}
	if mutate := o.m.w.mutant.definition; mutate != nil {
		definition = mutate(definition)
	}
	o.heard(o.ledger.SetDefinition(o.m.now(), crontabs, definition))
}

func (o *observer) setStorageVersion(resource schema.GroupResource, object *storageversion.StorageVersion,
	unbroken bool) {
	if o.watchesStorageVersions {
		o.heard(o.ledger.SetStorageVersion(o.m.now(), nameOfStorageVersion(resource), object, unbroken))
	}
}

func nameOfStorageVersion(resource schema.GroupResource) string {
	return resource.Group + "." + resource.Resource
}

// lookSoon is for when servers or addresses changed.
func (o *observer) lookSoon() {
	o.moved, o.retry = true, firstRetry
	o.lookAfter(burst, o.look)
}

// lookAfter plans a look. It replaces one that was planned before.
func (o *observer) lookAfter(d time.Duration, look func()) {
	o.looks++
	mine := o.looks
	o.m.w.after(d, func() {
		if o.m.w.manager == o.m && o.looks == mine {
			look()
		}
	})
}

// look asks all servers, each of which answers in its own time.
func (o *observer) look() {
	if o.looking {
		return
	}
	w := o.m.w
	o.looking, o.moved = true, false
	servers := storageversion.LivingServers{Living: o.living, Advertised: w.cluster.advertised()}
	look := storageversion.Look{LivingServers: servers, Documents: map[string]storageversion.Document{}}
	longest, from := time.Duration(0), map[string]*server{}
	addresses := o.addresses
	if len(addresses) == 0 {
		addresses = []string{balancer}
	}
	if look.Shared, _ = look.SharesAddresses(addresses); look.Shared {
		if !w.cluster.addressed() {
			o.meet(look)
			return
		}
		look.WhyUnmet = "the API servers share addresses"
	}
	for _, address := range addresses {
		delay := w.dice.upTo(answerDelay)
		longest = max(longest, delay)
		w.after(delay, func() { look.Documents[address], from[address] = w.cluster.ask(address) })
	}
	w.after(longest, func() {
		if w.manager == o.m {
			o.conclude(look, from)
		}
	})
}

// conclude tells the ledger what servers answered.
func (o *observer) conclude(look storageversion.Look, from map[string]*server) {
	w := o.m.w
	o.looking = false
	o.keepConnections(look, from)
	o.documents, o.shared, o.unmet = look.Documents, look.Shared, look.WhyUnmet
	o.decideAboutStorageVersions(&look)
	if mutate := w.mutant.look; mutate != nil {
		look = mutate(look)
	}
	if w.tell != nil {
		w.log("looked: servers %v, documents %s", look.Living, documentsInWords(look.Documents))
	}
	o.heard(o.ledger.SetLook(o.m.now(), look))
	for _, s := range from {
		if s == nil {
			continue
		}
		o.met[s.incarnation] = true
		if !s.answers {
			o.disconnected(s)
		}
		if s.leaves && !o.heardOf[s.incarnation] && w.cluster.addressing == own {
			for _, one := range o.living {
				o.stoodInFor[one.Incarnation] = true
			}
		}
	}
	if !o.synced {
		o.m.begin()
	}
	o.confirm()
	o.planLook()
}

func (o *observer) planLook() {
	switch {
	case o.moved:
		o.lookAfter(burst, o.look)
	case o.ledger.NeedsLook():
		o.lookAfter(o.retry, o.lookForUnseen)
		longest := longestRetry
		if o.unmet != "" || o.shared && o.failing() > 0 {
			longest = longestMeetingRetry
		}
		o.retry = min(2*o.retry, longest)
	default:
		o.retry = firstRetry
		o.lookAfter(o.m.w.periods.Poll, o.look)
	}
}

// lookForUnseen looks again if nothing failed, or if something that failed does so no longer.
func (o *observer) lookForUnseen() {
	if o.shared || o.failing() == 0 || o.recovered() {
		o.look()
		return
	}
	o.planLook()
}

// failing is how many documents could not be read.
func (o *observer) failing() int {
	n := 0
	for _, document := range o.documents {
		if document.Failure != "" {
			n++
		}
	}
	return n
}

func (o *observer) recovered() bool {
	for address, before := range o.documents {
		if before.Failure != "" && o.m.w.cluster.document(address).Failure == "" {
			return true
		}
	}
	return false
}

// decideAboutStorageVersions has them watched if all servers serve them. If certainly none does, they are read no more,
// and count as unreadable after a while. They are listed before the ledger hears that they are served.
func (o *observer) decideAboutStorageVersions(look *storageversion.Look) {
	noneServes := true
	for _, document := range look.Documents {
		noneServes = noneServes && document.Failure == "" && !document.ServesStorageVersions
	}
	switch {
	case look.ServesStorageVersions() && !o.watchesStorageVersions:
		o.watchesStorageVersions = true
		o.listStorageVersions()
	case noneServes && o.watchesStorageVersions:
		o.watchesStorageVersions = false
		o.m.w.after(o.m.w.periods.Poll, func() {
			if o.m.w.manager == o.m && !o.watchesStorageVersions {
				o.heard(o.ledger.SetStorageVersionsWatched(o.m.now(), false))
			}
		})
	}
}

func (o *observer) listStorageVersions() {
	for _, b := range builtIns {
		object := o.m.w.cluster.published[b.resource]
		o.heard(o.ledger.SetStorageVersion(o.m.now(), nameOfStorageVersion(b.resource), object, false))
	}
	o.heard(o.ledger.SetStorageVersionsWatched(o.m.now(), true))
}

// pollAggregated reads the documents of the aggregated server, and soon again if that failed.
func (o *observer) pollAggregated() {
	next := o.m.w.periods.Poll
	if !o.readAggregated() {
		next = min(next, aggregatedRetry)
	}
	o.m.w.afterWhenServed(next, func() {
		if o.m.w.manager == o.m {
			o.pollAggregated()
		}
	})
}

// readAggregated reads them once. It reports whether none failed.
func (o *observer) readAggregated() bool {
	w, read := o.m.w, true
	for _, gv := range w.cluster.aggregated.groupVersions() {
		document := w.cluster.aggregated.document(w, gv)
		if document.Failure == "" {
			for _, from := range w.cluster.aggregated.sources() {
				o.known[from] = true
			}
		}
		read = read && document.Failure == ""
		if mutate := w.mutant.aggregated; mutate != nil {
			document = mutate(document)
		}
		o.heard(o.ledger.SetAggregated(o.m.now(), gv, document))
	}
	return read
}

// relist is what follows a watch that could not go on where it was cut off.
func (o *observer) relist(on stream) {
	c := o.m.w.cluster
	switch on {
	case streamLeases:
		// Who came meanwhile may be gone already, and who was gone may have been back.
		lived := c.processesOf(func(l *lease) bool { return !l.silent || !o.heardOf[l.holder] })
		for identity := range o.lastHeld {
			if c.leases[identity] == nil && !o.m.w.mutant.forgetsWhoWasBack {
				lived = append(lived, storageversion.Process{Identity: identity})
			}
		}
		slices.SortFunc(lived, func(a, b storageversion.Process) int { return strings.Compare(a.Identity, b.Identity) })
		if len(lived) > len(c.living()) {
			o.setLiving(lived, true)
		}
		o.setLiving(c.living(), false)
	case streamAddresses:
		o.setAddresses(c.reachable())
	case streamDefinitions:
		o.setDefinition(c.definition.fact())
	case streamStorageVersions:
		if o.watchesStorageVersions {
			o.listStorageVersions()
		}
	}
}
