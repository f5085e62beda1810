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

package storageversion

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
)

// confirmAfter is how long a process has to hold its Lease after the first look that counted it. A server answers
// before it renews its Lease, so a look may read the successor of a process that just crashed.
const confirmAfter = 5 * time.Second

// looks knows what the last look read, and which processes the last complete look read.
//
// What a process writes never changes, so a complete look stays true for as long as the same processes live.
// Documents do not say which process they are from. Where each server advertises an address of its own, the address
// tells. Elsewhere numbers decide: a look is complete only if at least as many addresses answered as servers live, or,
// where servers share addresses, if as many processes were met there.
type looks struct {
	servers        *servers
	processes      processes
	last           *Look
	lookedAt       time.Time         // when last was recorded
	addresses      []string          // of last, in order
	lastAdvertised map[string]string // by identity, of the servers that live or departed lately
	byAddress      bool              // each server advertises an address of its own, so its address tells its document
	read           []Process         // the processes that the last complete look read
	readAt         time.Time         // when it was recorded
	readings       map[Process]reading
	mayBeTakenOver bool      // a connection ended, and no look was complete since
	problemSince   time.Time // zero while it is known what the living processes write
}

// reading is what complete looks have found out about a process that they counted. A process that none of them counted
// has no reading. When something makes the looks doubtful, the reading of a process is deleted or taken back.
type reading struct {
	first     time.Time // when the first of these looks was recorded
	confirmed bool      // etcd has shown since that the process held its Lease
	publishes bool      // looks found the StorageVersion API at all servers
	// contradicted is when a later look did not find it, where that look may have met a server that is leaving.
	contradicted time.Time
	// takenBack means that looks may have counted another process in its place. A record may name it as read all the
	// same. Nothing else is set then.
	takenBack bool
}

// set records a look. It returns the processes that nobody read and that may have written.
func (l *looks) set(now time.Time, look Look) (unread []Process) {
	l.last, l.lookedAt, l.addresses = &look, now, slices.Sorted(maps.Keys(look.Documents))
	l.learnAddresses(now)
	unread = l.processes.answer(look.Documents, !l.readAt.IsZero())
	if l.mayHaveCountedDeparted(now) {
		for _, process := range l.read {
			l.readings[process] = reading{takenBack: true}
		}
		l.doubtAll()
	}
	if l.problemOfLook(now) == nil {
		unread = append(unread, l.processes.forget(look.Documents)...)
		l.noteRead(now)
	}
	return unread
}

// noteRead records that the last look read the living processes.
func (l *looks) noteRead(now time.Time) {
	before, allServe := l.readings, !slices.ContainsFunc(l.needed(now), func(address string) bool {
		return !l.last.Documents[address].ServesStorageVersions
	})
	l.read, l.readAt, l.readings, l.mayBeTakenOver = l.servers.living, now, map[Process]reading{}, false
	for _, process := range l.read {
		r := before[process]
		r.first, r.takenBack = cmp.Or(r.first, now), false
		switch contradicted := cmp.Or(r.contradicted, now); {
		case allServe:
			r.publishes, r.contradicted = true, time.Time{}
		case r.publishes && !l.byAddress && now.Sub(contradicted) <= l.servers.linger:
			r.contradicted = contradicted
		default:
			r.publishes = false
		}
		l.readings[process] = r
	}
}

// noteProblem notes since when it is not known what the living processes write. It runs after each change of facts.
func (l *looks) noteProblem(now time.Time) {
	if l.problemOfProcesses(now) == nil {
		l.problemSince = time.Time{}
	} else {
		l.problemSince = cmp.Or(l.problemSince, now)
	}
}

// doubtAll forgets what earlier looks have found out, but for the processes that they counted by mistake.
func (l *looks) doubtAll() {
	l.read = nil
	maps.DeleteFunc(l.readings, func(_ Process, r reading) bool { return !r.takenBack })
}

// disconnect records that the connection to a process ended, which makes all earlier looks doubtful. It reports whether
// that was not known before.
func (l *looks) disconnect(name string) bool {
	if !l.processes.disconnect(name) {
		return false
	}
	l.doubtAll()
	l.mayBeTakenOver = true
	return true
}

// learnAddresses records which addresses servers advertise in the last look. It finds out whether each server that may
// answer advertises an address that no other advertises.
func (l *looks) learnAddresses(now time.Time) {
	lingering := l.servers.lingering(now)
	maps.DeleteFunc(l.lastAdvertised, func(identity, _ string) bool { return !lingering.Has(identity) })
	maps.Copy(l.lastAdvertised, l.last.Advertised)

	addresses, shown := l.last.advertised(l.addresses)
	for identity := range lingering {
		addresses.Insert(l.lastAdvertised[identity])
	}
	l.byAddress = shown && !addresses.Has("") && len(addresses) == len(l.last.Living)+len(lingering) && l.ofLiving()
}

// departedMayAnswer reports whether a document of the last look may be from a server that departed, although its
// address counts as that of another server.
func (l *looks) departedMayAnswer(now time.Time) bool {
	return len(l.servers.lingering(now)) > 0 && !l.byAddress
}

// mayHaveCountedDeparted reports whether earlier looks may have counted a server that is gone. This is possible only
// shortly after the start: a server that left before this manager began may have answered in an earlier look, and been
// counted for a living one that has no address yet. It shows when a later look meets fewer addresses than were counted.
func (l *looks) mayHaveCountedDeparted(now time.Time) bool {
	counted := sets.New(l.read...).Intersection(sets.New(l.servers.living...))
	return !l.byAddress && l.servers.mayHaveMissedDeparture(now) && l.ofLiving() && len(l.last.Documents) < len(counted)
}

// forget forgets the processes that left. If the watch of Leases was broken, the others have to be read again.
func (l *looks) forget(left []Process, unbroken bool) {
	if !unbroken {
		l.read = nil
	}
	for _, process := range left {
		delete(l.readings, process)
	}
}

// takeBack discards looks at shared addresses that are not confirmed when a server comes. The server answers before it
// has a Lease, so such a look may have counted it as another server.
func (l *looks) takeBack() {
	if l.last == nil || !l.last.Shared {
		return
	}
	for process, r := range l.readings {
		if !r.confirmed {
			l.readings[process] = reading{takenBack: true}
		}
	}
	l.read = slices.DeleteFunc(slices.Clone(l.read), func(process Process) bool { return !l.readings[process].confirmed })
}

// ofLiving reports whether the last look began when the same processes lived as now.
func (l *looks) ofLiving() bool {
	return l.last != nil && slices.Equal(l.last.Living, l.servers.living)
}

// needAnother reports whether another look may find out more. It may if
//
//   - servers came or left since the last look, or part of it failed;
//   - it did not find the StorageVersion API at all servers, and one before it did;
//   - servers share addresses, and the last look did not meet all of them, or the observer started a short time ago:
//     nothing tells when a server that left before the start stops answering;
//   - the last look may have counted the address of a server that left, or a connection was lost since.
//
// It would find nothing new about servers without an address, without a Lease, or whose address is not listed.
func (l *looks) needAnother() bool {
	contradicted := func(p Process) bool { return l.readings[p].publishes && !l.readings[p].contradicted.IsZero() }
	switch living := len(l.servers.living); {
	case !l.ofLiving() || len(l.last.Failed()) > 0:
		return true
	case l.last.Shared && (l.last.WhyUnmet != "" || l.servers.mayHaveMissedDeparture(l.lookedAt)):
		return true
	case living == 0 || len(l.last.Documents) < living || slices.ContainsFunc(l.servers.living, l.isAbsent):
		return false
	default:
		return !slices.Equal(l.read, l.servers.living) || slices.ContainsFunc(l.servers.living, contradicted)
	}
}

// isAbsent reports whether a server advertises an address that is not among those of the last look, although its
// address would tell its document. An address that comes is a reason for a look by itself.
func (l *looks) isAbsent(process Process) bool {
	_, asked := l.last.Documents[l.lastAdvertised[process.Identity]]
	return l.byAddress && !asked
}

// unreadLiving returns the processes that live and that the last complete look did not read.
func (l *looks) unreadLiving() []Process {
	unread := slices.DeleteFunc(slices.Clone(l.servers.living), func(process Process) bool {
		return slices.Contains(l.read, process)
	})
	for i, process := range unread {
		if l.readings[process].takenBack {
			unread[i].Incarnation = ""
		}
	}
	return unread
}

// unconfirmed returns those of the given processes of which it is not certain that a look read them: the first look
// that counted such a process may have read the successor. Or a connection ended, and an older server that nobody read
// may have taken the Lease of the process over. A StorageState may already record that process as read, so it is
// returned without its incarnation, which matches no record.
func (l *looks) unconfirmed(processes []Process) (unconfirmed []Process) {
	for _, process := range processes {
		r, counted := l.readings[process]
		switch {
		case counted && !r.confirmed, l.mayBeTakenOver:
			unconfirmed = append(unconfirmed, Process{Identity: process.Identity})
		case !counted || !slices.Contains(l.read, process):
			unconfirmed = append(unconfirmed, process)
		}
	}
	return unconfirmed
}

// confirmableFrom returns when the living processes have held their Leases for long enough to be confirmed. It is zero
// if all that were read are confirmed.
func (l *looks) confirmableFrom() time.Time {
	var from time.Time
	for _, process := range l.servers.living {
		r := l.readings[process]
		if !r.first.IsZero() && !r.confirmed && r.first.Add(confirmAfter).After(from) {
			from = r.first.Add(confirmAfter)
		}
	}
	return from
}

// confirm records that etcd was asked then, and that the living processes held their Leases.
func (l *looks) confirm(asked time.Time) {
	for _, process := range l.servers.living {
		r := l.readings[process]
		if !r.first.IsZero() && !asked.Before(r.first.Add(confirmAfter)) {
			r.confirmed = true
			l.readings[process] = r
		}
	}
}
