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
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// recordSightings adds to the record what was seen since the state was written: which encodings may be stored, and
// which one is current. It finds out whether the proofs of the epoch still count. It never shortens the list of
// persisted encodings.
func (e *evaluation) recordSightings() {
	sightings, gap := e.unrecorded()
	before := normalized(e.old.PersistedStorageVersionHashes)
	persisted := slices.Clip(before)
	add := func(hashes ...string) {
		for _, hash := range hashes {
			if !slices.Contains(persisted, hash) {
				persisted = append(persisted, hash)
			}
		}
	}
	stored := e.old.Evidence.StoredVersions()
	for _, sighting := range sightings {
		add(sighting.Writing...)
		// A version that was listed before was added when it appeared. It is added again only after a gap, because a
		// migration may have removed it since.
		for i, version := range sighting.Evidence.StoredVersions() {
			if gap || !slices.Contains(stored, version) {
				add(sighting.Stored[i])
			}
		}
		stored = sighting.Evidence.StoredVersions()
	}
	// Servers that nobody read may have written in any encoding: those that left meanwhile, and those that live.
	unreadDeparted := slices.ContainsFunc(sightings, func(s storageversion.Sighting) bool {
		return slices.ContainsFunc(s.UnreadDeparted, e.mayBeUnread)
	})
	e.unreadLiving = e.ofKubeAPIServers() && slices.ContainsFunc(e.in.Observation.UnreadLiving, e.mayWriteAnything)
	if gap || unreadDeparted || e.unreadLiving {
		add(storageversion.Unknown)
	}

	current := e.current()
	e.newEpoch = gap || unreadDeparted || e.old.Epoch == 0 || len(persisted) > len(before) ||
		current != e.old.CurrentStorageVersionHash ||
		slices.ContainsFunc(sightings, func(s storageversion.Sighting) bool {
			return len(s.Writing) > 0 && !s.WritesOnly(e.old.CurrentStorageVersionHash)
		})
	if len(persisted) > migrationv1alpha1.MaxPersistedStorageVersionHashes {
		persisted = normalized([]string{storageversion.Unknown, current})
	}
	e.next.PersistedStorageVersionHashes = persisted
	e.next.CurrentStorageVersionHash = current
	if len(sightings) > 0 { // Unchanged evidence keeps the time at which it was seen first, maybe by another manager.
		e.next.Evidence = e.last.Evidence.DeepCopy()
	}
}

// beginEpoch begins a new epoch where one is needed.
func (e *evaluation) beginEpoch() {
	if e.newEpoch {
		if writtenByOther := e.old.Epoch == 0 && e.old.CurrentStorageVersionHash != ""; writtenByOther {
			e.next.Epoch = e.in.Now.Unix() // The state may have had epochs before, and migrations of these must not count.
		}
		e.next.Epoch++
		e.next.Migration, e.next.Backoff = nil, nil
	}
	if e.newEpoch || e.old.EpochStartTime == nil {
		e.next.EpochStartTime = new(metav1.NewTime(migrationv1alpha1.RoundUp(e.in.Now)))
	}
}

// recordCurrentSince records since when the servers have written the current encoding. A time from the future was
// written by another clock, and this one may be hours behind. A state of an earlier release has no time.
func (e *evaluation) recordCurrentSince() {
	since := e.old.CurrentSinceTime
	switch {
	case e.next.CurrentStorageVersionHash == storageversion.Unknown:
		since = nil
	case e.next.CurrentStorageVersionHash != e.old.CurrentStorageVersionHash, since == nil, e.inFuture(since.Time):
		since = new(metav1.NewTime(migrationv1alpha1.RoundUp(e.in.Now)))
	}
	e.next.CurrentSinceTime = since
}

// findAgreement finds out whether the servers agree, and when to look again if they do not.
func (e *evaluation) findAgreement() {
	o := &e.in.Observation
	since := e.in.EpochSeenAt
	if e.newEpoch || since.IsZero() {
		since = e.in.Now
	}
	// Times in the API are in whole seconds, rounded up. Nobody should see a migration start before the settle period of
	// the epoch is over.
	if ahead := e.next.EpochStartTime.Sub(since); ahead > 0 && ahead < time.Second {
		since = since.Add(ahead)
	}
	e.agreedFrom = since.Add(e.in.Periods.Settle)
	// What an earlier manager found out in this epoch still counts.
	settled := meta.IsStatusConditionTrue(e.old.Conditions, migrationv1alpha1.StorageStateAgreed) ||
		!e.in.Now.Before(e.agreedFrom)
	e.agreed = o.AllWrite(e.next.CurrentStorageVersionHash) && !e.newEpoch && settled
	switch {
	case e.problemMayPass():
		e.decideAt(o.Problem.Since.Add(e.in.Periods.Patience))
	case o.Problem != nil && o.Class == "":
		// The observer reports no changes of a resource that it has never heard of.
		e.decideAt(e.in.Now.Add(e.in.Periods.Patience))
	case o.Problem != nil:
		e.decideAt(o.Problem.Since.Add(e.in.Periods.UnreadPatience))
	case o.Problem == nil && len(e.last.Writing) == 1:
		e.decideAt(e.agreedFrom)
	}
}

// unrecorded returns the sightings since the state was written, and whether something may have gone unseen in between.
func (e *evaluation) unrecorded() (sightings []storageversion.Sighting, gap bool) {
	all, recorded := e.in.Observation.Sightings, e.old.Evidence
	switch {
	case recorded == nil, e.old.Epoch == 0:
		return all, e.old.Epoch == 0 || len(all) > 0
	case len(all) == 0:
		return nil, false
	}
	if sightings, connected := storageversion.SightingsSince(*recorded, all); connected {
		return sightings, e.tooOld(recorded)
	}
	return all, !e.trustsByAge(recorded, all)
}

// trustsByAge reports whether a record still counts although no sighting continues it: it is too young for something to
// have happened since. Evidence that can be compared has no such excuse, nor has evidence of processes or servers that
// may be others by now.
func (e *evaluation) trustsByAge(recorded *migrationv1alpha1.StorageEvidence, all []storageversion.Sighting) bool {
	return recorded.StorageVersion == nil && // Another process may have published, and stored, something else.
		!storageversion.Durable(*recorded) && !storageversion.Anonymous(*recorded) && !e.tooOld(recorded) &&
		!storageversion.ChangedServer(*recorded, all[0].Evidence) && hasRecordedProcesses(recorded, all)
}

// hasRecordedProcesses reports whether the Leases have shown the recorded processes of kube-apiserver again. If they
// show others, these may have been there before. Other evidence is not about processes.
func hasRecordedProcesses(recorded *migrationv1alpha1.StorageEvidence, all []storageversion.Sighting) bool {
	return !storageversion.FromKubeAPIServers(*recorded) ||
		slices.ContainsFunc(all, func(s storageversion.Sighting) bool {
			return slices.Equal(s.Evidence.Servers, recorded.Servers)
		})
}

// tooOld reports whether the recorded evidence cannot be compared with later evidence, and is too old to be trusted.
// Its age counts from the last heartbeat or the start of the epoch, whichever is later. A time in the future comes
// from another clock, and makes the evidence too old.
//
// While the observation has a problem, no heartbeat is recorded. If the new evidence cannot be compared either, the
// answer is false then: otherwise each decision would begin another epoch.
func (e *evaluation) tooOld(recorded *migrationv1alpha1.StorageEvidence) bool {
	noHeartbeat := e.in.Observation.Problem != nil && !e.evidenceComparable()
	if storageversion.Durable(*recorded) || noHeartbeat {
		return false
	}
	seen := e.old.LastHeartbeatTime.Time
	if began := e.old.EpochStartTime; began != nil && began.After(seen) {
		seen = began.Time
	}
	return e.in.Observation.ReadAt.Sub(seen) > e.in.Periods.Poll*3/2 || e.inFuture(seen)
}

// ofKubeAPIServers reports whether each kube-apiserver may write the resource in an encoding of its own, or could
// when the state was written.
func (e *evaluation) ofKubeAPIServers() bool {
	recorded := e.old.Evidence
	return e.in.Observation.Class == storageversion.BuiltIn || recorded == nil ||
		storageversion.FromKubeAPIServers(*recorded)
}

// mayWriteAnything reports whether a living server was not read in time, and may be another process than the recorded
// one. Where a process may take over the Lease of the one before, the record says nothing about the server. It has less
// time there: if such a process leaves unread, nobody learns of it.
func (e *evaluation) mayWriteAnything(server storageversion.Process) bool {
	endpoints, patience := e.latestEndpoints(), e.in.Periods.UnreadPatience
	leaseMayPass := slices.ContainsFunc(endpoints, func(endpoint migrationv1alpha1.EndpointEvidence) bool {
		return storageversion.LeaseMayOutliveProcess(endpoint.ServerVersion)
	})
	if leaseMayPass || len(endpoints) == 0 || server.Incarnation == "" {
		patience = e.in.Periods.Patience
	}
	return !e.problemWithin(patience) && (leaseMayPass || e.mayBeUnread(server))
}

// latestEndpoints are those of the latest evidence that has any: evidence of discovery has none when a server has left.
func (e *evaluation) latestEndpoints() (endpoints []migrationv1alpha1.EndpointEvidence) {
	if e.old.Evidence != nil {
		endpoints = e.old.Evidence.Endpoints
	}
	for _, sighting := range e.in.Observation.Sightings {
		if len(sighting.Evidence.Endpoints) > 0 {
			endpoints = sighting.Evidence.Endpoints
		}
	}
	return endpoints
}

// mayBeUnread reports whether the recorded evidence leaves open that the writer of the state never read this server.
// The evidence names all servers that lived. If it is from discovery and has no endpoints, it was recorded because a
// server left, and the servers in it need not have been read.
func (e *evaluation) mayBeUnread(server storageversion.Process) bool {
	recorded := e.old.Evidence
	if recorded == nil || server.Incarnation == "" || // Nobody knows which process that was.
		(recorded.Source == migrationv1alpha1.EvidenceFromServerDiscovery && len(recorded.Endpoints) == 0) {
		return true
	}
	return !slices.ContainsFunc(recorded.Servers, func(known migrationv1alpha1.ServerEvidence) bool {
		return known.Identity == server.Identity && known.Incarnation == server.Incarnation
	})
}

// current returns the hash of the one encoding that the servers write now. It stays what it was while nobody writes,
// and while servers that were read before do not answer: what a server writes does not change.
func (e *evaluation) current() string {
	switch {
	case e.unreadLiving, len(e.last.Writing) > 1, slices.Contains(e.last.Writing, storageversion.Unknown):
		return storageversion.Unknown
	case len(e.last.Writing) == 1:
		return e.last.Writing[0]
	default:
		return cmp.Or(e.old.CurrentStorageVersionHash, storageversion.Unknown)
	}
}

// normalized returns a list of hashes without repetitions, with Unknown in place of an empty hash or list. Other
// controllers and people may have written it.
func normalized(hashes []string) []string {
	var all []string
	for _, hash := range hashes {
		hash = cmp.Or(hash, storageversion.Unknown)
		if !slices.Contains(all, hash) {
			all = append(all, hash)
		}
	}
	if len(all) == 0 {
		return []string{storageversion.Unknown}
	}
	return all
}
