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

package storageversiongc

import (
	"cmp"
	"math"
	"slices"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	// grace is how long a Lease must be missing, and the API server be answering, before its server counts as gone.
	//
	// A living kube-apiserver whose Lease was deleted by somebody else puts it back when it renews next. It renews every
	// 10 s plus at most 4 %, counted from the end of the last renewal, and needs seven requests to recover: five updates
	// that fail, a get, a create. 10.4 s for the wait, 3 s for a failure of the API server too short for us to notice
	// (probeInterval + readTimeout, and the backoff of the server's own lease controller after that, which is as long
	// again at most) and the rest for the requests.
	grace = 15 * time.Second

	// probeInterval is how often a Lease is read again during the grace period. Frequent readings cost one request a
	// second for a server that goes, and are what makes sure that the API server answered all the time.
	probeInterval = time.Second

	// maxGap is the longest time between two proofs that the API server answers. A longer one may hide a failure during
	// which a living server could not put its Lease back, so every grace period begins again.
	maxGap = 2500 * time.Millisecond

	// recheckInterval is how often is looked at what no event will tell of: Leases outside of what the informer selects,
	// and a StorageVersion API that is not served just now.
	recheckInterval = time.Minute

	// never is the time to look again when only events matter.
	never = time.Duration(math.MaxInt64)
)

// presence of a Lease. What was not read is unknown, the zero value.
type presence int

const (
	unknown presence = iota
	absent
	present
	// presentUnwatched is a Lease that exists, but not for the informer: its deletion will make no event.
	presentUnwatched
)

// observation is everything a decision depends on.
type observation struct {
	// storageVersions are all there are, read before leases.
	storageVersions []*apiserverinternalv1alpha1.StorageVersion
	// unserved is set if they could not be read because the API is not served.
	unserved bool
	// leases is by server ID.
	leases map[string]presence
	// began is a time before the first reading of a Lease, now one after the last.
	began, now time.Time
	// remembered is what the previous decision left.
	remembered memory
}

// memory is what a decision leaves for the next one. Losing it costs time, never safety.
type memory struct {
	// at is when the API server was last known to answer.
	at time.Time
	// absentSince is, by server ID, the end of the first of an unbroken row of readings that missed the Lease.
	absentSince map[string]time.Time
	// emptySince is the same for objects without entries.
	emptySince map[types.UID]emptySighting
}

type emptySighting struct {
	resourceVersion string
	since           time.Time
}

type action string

const (
	putUpFence    action = "PutUpFence"
	takeDownFence action = "TakeDownFence"
	removeEntries action = "RemoveEntries"
	deleteObject  action = "DeleteObject"
)

// reason tells why something is done, or why not yet. It is the value of the metrics' label, too.
type reason string

const (
	staleEntries reason = "stale_entries"
	noEntries    reason = "no_entries"
	noneStale    reason = "none_stale"

	leaseUnknown reason = "lease_unknown"
	inGrace      reason = "grace"
	conflict     reason = "conflict"
)

// effect is one write, preconditioned on object as it was observed.
type effect struct {
	action    action
	reason    reason
	object    *apiserverinternalv1alpha1.StorageVersion
	serverIDs []string
}

// decision is the writes to do, what keeps others back, and when to look again.
type decision struct {
	effects []effect
	heldBy  sets.Set[reason]
	memory  memory
	next    time.Duration
}

// decide never changes what it observes.
func decide(obs observation) decision {
	d := decision{heldBy: sets.New[reason](), next: never}
	if obs.unserved {
		d.next = recheckInterval
		return d
	}
	for _, serverID := range serverIDs(obs.storageVersions) {
		switch obs.leases[serverID] {
		case unknown:
			// Nothing is decided and nothing remembered: whatever kept us from reading this Lease may keep a living
			// server from writing its own.
			return decision{heldBy: sets.New(leaseUnknown), next: never}
		case presentUnwatched:
			d.next = recheckInterval
		}
	}

	d.memory = remember(obs)
	for _, object := range obs.storageVersions {
		d.judge(obs, object)
	}
	slices.SortFunc(d.effects, func(a, b effect) int { return cmp.Compare(a.object.Name, b.object.Name) })
	return d
}

// judge adds what is to be done with one object.
func (d *decision) judge(obs observation, object *apiserverinternalv1alpha1.StorageVersion) {
	entries := object.Status.StorageVersions
	if len(entries) == 0 {
		d.judgeEmpty(obs, object)
		return
	}

	var missing, stale []string
	for _, serverID := range serverIDs([]*apiserverinternalv1alpha1.StorageVersion{object}) {
		if obs.leases[serverID] != absent {
			continue
		}
		missing = append(missing, serverID)
		if ripe(obs, d.memory.absentSince[serverID]) {
			stale = append(stale, serverID)
		}
	}
	kept := withoutServers(entries, stale)
	switch {
	case len(kept) == 0 && object.DeletionTimestamp != nil:
		// Deleted already; finalizers are somebody else's business.
	case len(stale) > 0 && !fenced(object):
		d.do(effect{action: putUpFence, reason: staleEntries, object: object, serverIDs: stale}, 0)
	case len(kept) == 0:
		d.do(effect{action: deleteObject, reason: staleEntries, object: object, serverIDs: stale}, never)
	case len(stale) > 0:
		d.do(effect{action: removeEntries, reason: staleEntries, object: object, serverIDs: stale}, never)
	case len(missing) == 0 && fenced(object):
		d.do(effect{action: takeDownFence, reason: noneStale, object: object}, never)
	}
	if len(missing) > len(stale) {
		d.hold(inGrace)
	}
}

// judgeEmpty waits because a server that finds no object creates one, and fills it in a second request. It needs no fence:
// the publication adds an entry, hence changes the object, hence fails the precondition of the deletion.
func (d *decision) judgeEmpty(obs observation, object *apiserverinternalv1alpha1.StorageVersion) {
	switch {
	case object.DeletionTimestamp != nil:
	case ripe(obs, d.memory.emptySince[object.UID].since):
		d.do(effect{action: deleteObject, reason: noEntries, object: object}, never)
	default:
		d.hold(inGrace)
	}
}

func (d *decision) do(e effect, next time.Duration) {
	d.effects = append(d.effects, e)
	d.next = min(d.next, next)
}

func (d *decision) hold(r reason) {
	d.heldBy.Insert(r)
	d.next = min(d.next, probeInterval)
}

// remember keeps the sightings that this observation confirms, adds new ones and forgets the others.
func remember(obs observation) memory {
	known := obs.remembered
	if obs.began.Sub(known.at) > maxGap {
		known = memory{}
	}
	m := memory{at: obs.now, absentSince: map[string]time.Time{}, emptySince: map[types.UID]emptySighting{}}
	for _, serverID := range serverIDs(obs.storageVersions) {
		if obs.leases[serverID] != absent {
			continue
		}
		since, seen := known.absentSince[serverID]
		if !seen {
			since = obs.now
		}
		m.absentSince[serverID] = since
	}
	for _, object := range obs.storageVersions {
		if len(object.Status.StorageVersions) > 0 {
			continue
		}
		sighting, seen := known.emptySince[object.UID]
		if !seen || sighting.resourceVersion != object.ResourceVersion {
			sighting = emptySighting{resourceVersion: object.ResourceVersion, since: obs.now}
		}
		m.emptySince[object.UID] = sighting
	}
	return m
}

// ripe measures from the end of the first reading to the beginning of this one.
func ripe(obs observation, since time.Time) bool {
	return obs.began.Sub(since) >= grace
}

// serverIDs returns every server that the objects mention, once and in order.
func serverIDs(objects []*apiserverinternalv1alpha1.StorageVersion) []string {
	ids := sets.New[string]()
	for _, object := range objects {
		for _, entry := range object.Status.StorageVersions {
			ids.Insert(entry.APIServerID)
		}
	}
	return sets.List(ids)
}

// withoutServers returns the entries of all other servers, in their order, leaving the slice it is given as it is.
func withoutServers(entries []apiserverinternalv1alpha1.ServerStorageVersion, servers []string) []apiserverinternalv1alpha1.ServerStorageVersion {
	var kept []apiserverinternalv1alpha1.ServerStorageVersion
	for _, entry := range entries {
		if !slices.Contains(servers, entry.APIServerID) {
			kept = append(kept, entry)
		}
	}
	return kept
}
