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
	"slices"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	// grace is how long a Lease must be missing, while the API server answers, before its server counts as gone.
	//
	// If somebody deletes the Lease of a living kube-apiserver, that server puts it back when it renews next. It renews
	// every 10 s plus at most 4 %, counted from the end of the last renewal, and needs seven requests to recover: five
	// updates that fail, a get, and a create. So grace is 10.4 s for the wait, 3 s for a failure of the API server that is
	// too short to notice here (probeInterval + readTimeout, and the backoff of the server's own lease controller after
	// that, which is at most as long again), and the rest for the requests.
	grace = 15 * time.Second

	// probeInterval is how often the controller reads a Lease again during the grace period. This costs one request a
	// second for a server that goes, and it proves that the API server answered all the time.
	probeInterval = time.Second

	// maxGap is the longest time between two proofs that the API server answers. A longer gap may hide a failure during
	// which a living server could not put its Lease back. After it, every grace period starts again, but not
	// before recheckInterval: otherwise an API server that is slow for long would get a list each second for nothing.
	maxGap = 2500 * time.Millisecond

	// recheckInterval is how often the controller looks again while something is suspicious. No event announces the end of
	// a Lease that the informer does not select, or a StorageVersion API that is served again.
	recheckInterval = time.Minute

	// A write that the API server has refused, for example because a permission is missing, is repeated after
	// recheckInterval, doubling up to maxRefusedRetry.
	maxRefusedRetry = 16 * time.Minute
)

// observation is everything a decision depends on.
type observation struct {
	// storageVersions are all StorageVersions. They were read before the Leases. There are none if the API is not served.
	storageVersions []*apiserverinternalv1alpha1.StorageVersion
	// absent has the server IDs whose Lease was read and does not exist. The Leases of all others exist.
	absent sets.Set[string]
	// began is before the first read of a Lease, and now is after the last one.
	began, now time.Time
	// remembered is what the decision before this one left.
	remembered memory
}

// memory is what a decision leaves for the next one. If it is lost, garbage goes later, and nothing worse happens.
type memory struct {
	// at is when the API server last answered.
	at time.Time
	// absentSince is since when the Lease of each server ID is known to be missing: the end of the first read that did
	// not find it. No later read has found it.
	absentSince map[string]time.Time
	// refusals is how many syncs with a refused write there were since the last write that succeeded, or since the last
	// sync that found nothing suspicious.
	refusals int
}

// serverEntry is what one server publishes in a StorageVersion.
type serverEntry = apiserverinternalv1alpha1.ServerStorageVersion

type action string

const (
	putMarker     action = "PutMarker"
	removeMarker  action = "RemoveMarker"
	removeEntries action = "RemoveEntries"
	deleteObject  action = "DeleteObject"
)

// reason is why something is done, or why not yet. It is also the value of a label of the metrics.
type reason string

const (
	staleEntries reason = "stale_entries"
	noEntries    reason = "no_entries"
	noneStale    reason = "none_stale"

	inGrace  reason = "grace"
	gap      reason = "gap"
	conflict reason = "conflict"
	refused  reason = "refused"
)

// effect is one write. The observed state of object is its precondition.
type effect struct {
	action    action
	reason    reason
	object    *apiserverinternalv1alpha1.StorageVersion
	serverIDs []string
}

// written returns the object as the effect writes it, or nil if the effect deletes it.
func (e effect) written() *apiserverinternalv1alpha1.StorageVersion {
	switch e.action {
	case deleteObject:
		return nil
	case putMarker:
		return withMarker(e.object)
	default:
		return republished(e.object, e.serverIDs)
	}
}

// decision is what to write, what delays other writes, and after what time to sync again.
type decision struct {
	effects []effect
	heldBy  sets.Set[reason]
	memory  memory
	next    time.Duration
}

// decide does not change the observation.
func decide(obs observation) decision {
	if obs.remembered.graceBroken(obs.began) {
		return decision{heldBy: sets.New(gap), memory: memory{refusals: obs.remembered.refusals}, next: recheckInterval}
	}
	d := decision{heldBy: sets.New[reason](), memory: remember(obs), next: recheckInterval}
	for _, object := range obs.storageVersions {
		d.judge(obs, object)
	}
	slices.SortFunc(d.effects, func(a, b effect) int { return cmp.Compare(a.object.Name, b.object.Name) })
	return d
}

// judge adds what to do with one object.
func (d *decision) judge(obs observation, object *apiserverinternalv1alpha1.StorageVersion) {
	entries := object.Status.StorageVersions
	if len(entries) == 0 {
		d.judgeEmpty(obs, object)
		return
	}

	missing := slices.DeleteFunc(serverIDs(object), func(serverID string) bool { return !obs.absent.Has(serverID) })
	stale := slices.DeleteFunc(slices.Clone(missing), func(serverID string) bool {
		return !ripe(obs, d.memory.absentSince[serverID])
	})
	if object.DeletionTimestamp != nil && len(withoutServers(entries, missing)) == 0 {
		return // Somebody has deleted the object. It stays until the owners of its finalizers let it go.
	}
	switch {
	case len(stale) > 0 && !marked(object):
		d.do(effect{action: putMarker, reason: staleEntries, object: object, serverIDs: stale})
		d.next = 0 // Decide again as soon as the queue allows, with the marker in place.
	case len(withoutServers(entries, stale)) == 0:
		d.do(effect{action: deleteObject, reason: staleEntries, object: object, serverIDs: stale})
	case len(stale) > 0:
		d.do(effect{action: removeEntries, reason: staleEntries, object: object, serverIDs: stale})
	case len(missing) == 0 && marked(object):
		d.do(effect{action: removeMarker, reason: noneStale, object: object})
	}
	if len(missing) > len(stale) {
		d.hold(inGrace)
	}
}

// judgeEmpty waits, because a server that finds no object creates one and adds its entry in a second request. It needs
// no marker, and the clocks of two hosts are good enough: the second request changes the object, so the precondition of
// the deletion fails, and a server that comes too late creates the object again.
func (d *decision) judgeEmpty(obs observation, object *apiserverinternalv1alpha1.StorageVersion) {
	switch {
	case object.DeletionTimestamp != nil:
	case obs.now.Sub(object.CreationTimestamp.Time).Abs() >= grace: // A clock that is far behind must not delay it.
		d.do(effect{action: deleteObject, reason: noEntries, object: object})
	default:
		d.hold(inGrace)
	}
}

func (d *decision) do(e effect) { d.effects = append(d.effects, e) }

func (d *decision) hold(r reason) {
	d.heldBy.Insert(r)
	d.next = min(d.next, probeInterval)
}

// graceBroken reports whether a grace period has begun, and the API server did not answer often enough since.
func (m memory) graceBroken(now time.Time) bool {
	return len(m.absentSince) > 0 && now.Sub(m.at) > maxGap
}

// remember keeps what this observation confirms, adds what it saw first, and forgets the rest.
func remember(obs observation) memory {
	known := obs.remembered
	m := memory{at: obs.now, absentSince: map[string]time.Time{}, refusals: known.refusals}
	for _, serverID := range serverIDs(obs.storageVersions...) {
		if obs.absent.Has(serverID) {
			m.absentSince[serverID] = cmp.Or(known.absentSince[serverID], obs.now)
		}
	}
	return m
}

// ripe reports whether the grace period is over. It counts from the end of the first read to the start of the latest.
func ripe(obs observation, since time.Time) bool {
	return obs.began.Sub(since) >= grace
}

// serverIDs returns the servers that the objects name, each one once and in order.
func serverIDs(objects ...*apiserverinternalv1alpha1.StorageVersion) []string {
	ids := sets.New[string]()
	for _, object := range objects {
		for _, entry := range object.Status.StorageVersions {
			ids.Insert(entry.APIServerID)
		}
	}
	return sets.List(ids)
}

// withoutServers returns the entries of all other servers, in their order. It does not change entries.
func withoutServers(entries []serverEntry, servers []string) []serverEntry {
	return slices.DeleteFunc(slices.Clone(entries), func(e serverEntry) bool {
		return slices.Contains(servers, e.APIServerID)
	})
}
