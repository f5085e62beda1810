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
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// record takes over what was seen since the state was written: which encodings may have been stored, which one is
// current, and whether the proofs of the epoch still hold. It never shortens the list of persisted encodings.
func (d *deciding) record() {
	o := &d.in.Observation
	since, missed := d.unrecorded()
	persisted := normalized(d.old.PersistedStorageVersionHashes)
	add := func(hashes ...string) {
		for _, hash := range hashes {
			if !slices.Contains(persisted, hash) {
				persisted = append(persisted, hash)
			}
		}
	}
	if missed {
		add(storageversion.Unknown)
	}
	stored := storedVersions(d.old.Evidence)
	for _, sighting := range since {
		add(sighting.Writing...)
		// What was in status.storedVersions before was accounted for then, and may have been migrated since.
		for i, version := range storedVersions(&sighting.Evidence) {
			if missed || !slices.Contains(stored, version) {
				add(sighting.Stored[i])
			}
		}
		stored = storedVersions(&sighting.Evidence)
	}
	// A process that nobody asked, and whoever wrote the state did not either.
	unasked := slices.ContainsFunc(since, func(s storageversion.Sighting) bool { return slices.ContainsFunc(s.Unseen, d.notRecorded) })
	if unasked {
		add(storageversion.Unknown)
	}
	d.unseenNews = !d.held() && d.ofServers() && slices.ContainsFunc(o.Unseen, d.notRecorded)
	if d.unseenNews {
		add(storageversion.Unknown)
	}

	current := d.current()
	d.newEpoch = missed || unasked || d.old.Epoch == 0 || current != d.old.CurrentStorageVersionHash ||
		len(persisted) > len(normalized(d.old.PersistedStorageVersionHashes)) ||
		slices.ContainsFunc(since, func(s storageversion.Sighting) bool {
			return len(s.Writing) > 0 && !slices.Equal(s.Writing, []string{d.old.CurrentStorageVersionHash})
		})
	if len(persisted) > migrationv1alpha1.MaxPersistedStorageVersionHashes {
		persisted = []string{storageversion.Unknown, current}
	}
	d.next.PersistedStorageVersionHashes = persisted
	d.next.CurrentStorageVersionHash = current
	d.recordEvidence(since)
	d.agreed = o.Problem == nil && o.Presence == storageversion.Served && !d.newEpoch &&
		slices.Equal(d.last.Writing, []string{current}) && !d.in.Now.Before(d.settledAt())
	if o.Problem == nil && !d.agreed && len(d.last.Writing) == 1 {
		d.lookAgain(d.settledAt())
	}
	if o.Problem != nil && o.Class == "" {
		// Nobody tells of changes of what was never heard of.
		d.lookAgain(d.in.Now.Add(d.in.Periods.Hold))
	}
	if d.held() {
		d.lookAgain(o.Problem.Since.Add(d.in.Periods.Hold))
	}
}

func (d *deciding) recordEvidence(since []storageversion.Sighting) {
	if d.newEpoch {
		d.next.Epoch++
		d.next.Migration, d.next.Backoff = nil, nil
	}
	if d.newEpoch || d.old.EpochStartTime == nil {
		began := metav1.NewTime(ceil(d.in.Now))
		d.next.EpochStartTime = &began
	}
	// Evidence that stood unchanged keeps the time at which it was seen first, maybe by another process.
	if len(d.in.Observation.Run) > 0 && (d.old.Evidence == nil || len(since) > 0 || !storageversion.SameEvidence(*d.old.Evidence, d.last.Evidence)) {
		d.next.Evidence = d.last.Evidence.DeepCopy()
	}
}

// unrecorded returns what was seen since the state was written, and whether something may have gone unseen in between.
func (d *deciding) unrecorded() ([]storageversion.Sighting, bool) {
	run, recorded := d.in.Observation.Run, d.old.Evidence
	switch {
	case recorded == nil:
		return run, d.old.Epoch == 0 || len(run) > 0
	case len(run) == 0:
		return nil, false
	}
	if news, known := storageversion.SightingsSince(*recorded, run); known {
		return news, d.stale(recorded)
	}
	return run, storageversion.Durable(*recorded) || d.stale(recorded)
}

// stale says that the recorded evidence is only worth the time since it was seen, and that this is too long ago. What was
// before the epoch began does not matter any more.
func (d *deciding) stale(recorded *migrationv1alpha1.StorageEvidence) bool {
	if storageversion.Durable(*recorded) {
		return false
	}
	seen := d.old.LastHeartbeatTime.Time
	if began := d.old.EpochStartTime; began != nil && began.After(seen) {
		seen = began.Time
	}
	return d.in.Observation.Looked.Sub(seen) > d.in.Periods.Poll*3/2
}

// ofServers says that the resource is, or was, one that every server may write in an encoding of its own.
func (d *deciding) ofServers() bool {
	recorded := d.old.Evidence
	return d.in.Observation.Class == storageversion.BuiltIn || recorded == nil ||
		recorded.Source == migrationv1alpha1.EvidenceFromServerDiscovery || recorded.Source == migrationv1alpha1.EvidenceFromStorageVersion
}

// notRecorded says that whoever wrote the state had not asked the server. Evidence of servers without the addresses that
// they were asked at is that of one which left.
func (d *deciding) notRecorded(server storageversion.Server) bool {
	recorded := d.old.Evidence
	if recorded == nil || (recorded.Source == migrationv1alpha1.EvidenceFromServerDiscovery && len(recorded.Endpoints) == 0) {
		return true
	}
	return !slices.ContainsFunc(recorded.Servers, func(known migrationv1alpha1.ServerEvidence) bool {
		return known.Identity == server.Identity && known.Incarnation == server.Incarnation
	})
}

// current is the hash of the one encoding that is written now. It stays what it was while nobody writes, and while
// servers that were asked before cannot be asked now: what they write does not change.
func (d *deciding) current() string {
	switch {
	case d.unseenNews, len(d.last.Writing) > 1, slices.Contains(d.last.Writing, storageversion.Unknown):
		return storageversion.Unknown
	case len(d.last.Writing) == 1:
		return d.last.Writing[0]
	case d.old.CurrentStorageVersionHash == "":
		return storageversion.Unknown
	default:
		return d.old.CurrentStorageVersionHash
	}
}

// settledAt is when writes that began under other evidence have landed.
func (d *deciding) settledAt() time.Time {
	if d.next.EpochStartTime == nil {
		return d.in.Now.Add(d.in.Periods.Settle)
	}
	return d.next.EpochStartTime.Add(d.in.Periods.Settle)
}

// normalized reads a list as it is meant: without repetitions, with Unknown in the place of what is not a hash, and of
// nothing.
func normalized(hashes []string) []string {
	var all []string
	for _, hash := range hashes {
		if !strings.HasSuffix(hash, "=") {
			hash = storageversion.Unknown
		}
		if !slices.Contains(all, hash) {
			all = append(all, hash)
		}
	}
	if len(all) == 0 {
		return []string{storageversion.Unknown}
	}
	return all
}

func storedVersions(evidence *migrationv1alpha1.StorageEvidence) []string {
	if evidence == nil || evidence.CustomResourceDefinition == nil {
		return nil
	}
	return evidence.CustomResourceDefinition.StoredVersions
}

// ceil rounds up to what the API can store, so that no time that is read back lies before the one that was meant.
func ceil(t time.Time) time.Time {
	if truncated := t.Truncate(time.Second); truncated.Before(t) {
		return truncated.Add(time.Second)
	}
	return t
}
