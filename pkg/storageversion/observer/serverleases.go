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

package observer

import (
	"cmp"
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// serverLeases is what lists and watches have shown of the identity Leases of kube-apiservers.
//
// Time in which a server does not renew its Lease counts only while other events arrive here: an observer that is cut
// off from the API receives no renewal. The times in Leases do not count, because they are by the clocks of other
// hosts.
type serverLeases struct {
	leasesAt
	// lastHeld is when each server was last shown to hold a Lease. A server is forgotten historyKept later, counted up to
	// the event before the present one: the watch may have been broken in between.
	lastHeld map[string]time.Time
	// leaseLostAt is when a process lost its Lease last. A list sets it too: a Lease may have been lost before, unseen.
	leaseLostAt time.Time
	// leaseless are the servers that have lost their Lease in the last goneAfter, by their identities.
	leaseless map[string]leaselessServer
	// heardFor is for how long the observer has received events in total, up to lastEvent.
	heardFor  time.Duration
	lastEvent time.Time
}

// leaselessServer is when a server lost its Lease, and the address that it advertised.
type leaselessServer struct {
	at      time.Time
	address string
}

func newServerLeases() serverLeases {
	return serverLeases{lastHeld: map[string]time.Time{}, leaseless: map[string]leaselessServer{}}
}

func (l *serverLeases) apply(d delta[*coordinationv1.Lease], now time.Time) {
	l.noteHeld(l.lastEvent)
	l.heardFor += min(max(now.Sub(l.lastEvent), 0), maxEventGap)
	l.lastEvent = now
	before := maps.Clone(l.byName)
	if d.listed {
		l.leasesAt = leasesAt{byName: map[string]lease{}}
	}
	newest := time.Time{}
	for _, object := range d.set {
		if one := leaseFrom(object); one.renewed.After(newest) {
			newest = one.renewed
		}
	}
	for _, object := range d.set {
		one := leaseFrom(object)
		one.heardAtRenewal = l.heardFor
		known, exists := before[object.Name]
		if exists && known.sameProcess(one) && known.renewed.Equal(one.renewed) {
			one.heardAtRenewal = known.heardAtRenewal
		} else if d.listed && !one.renewed.IsZero() {
			// The age is by the clock of another host. The next renewal, within ten seconds, corrects it. If the Lease names an
			// address, the age is limited, so that the server counts as gone only if its address is gone too.
			age := newest.Sub(one.renewed)
			if one.address != "" {
				age = min(age, goneAfter+time.Second)
			}
			one.heardAtRenewal -= age
		}
		l.byName[object.Name] = one
	}
	for _, name := range d.gone {
		delete(l.byName, name)
	}
	maps.DeleteFunc(l.leaseless, func(_ string, one leaselessServer) bool { return now.Sub(one.at) > goneAfter })
	for name, known := range before {
		one, held := l.byName[name]
		if !known.sameProcess(one) {
			l.leaseLostAt = now
		}
		if !held {
			l.leaseless[name] = leaselessServer{now, known.address}
		}
	}
	for name := range l.byName {
		delete(l.leaseless, name) // Its name is that of the host, where only one process can listen.
	}
	if d.listed {
		l.leaseLostAt = now
	}
	l.revision = max(l.revision, d.revision)
}

// noteHeld remembers who held Leases at the event before this one.
func (l *serverLeases) noteHeld(before time.Time) {
	for name := range l.byName {
		l.lastHeld[name] = before
	}
	maps.DeleteFunc(l.lastHeld, func(_ string, last time.Time) bool { return before.Sub(last) > historyKept })
}

// mayHaveLived returns the living processes, and with them those that may have come and left, unseen, before a list:
//
//   - a process that the list shows for the first time, and that is gone already;
//   - unless the list is unbroken, one process of each server that held a Lease a short time ago and holds none now.
//
// It returns nil if there are no such processes.
func (l *serverLeases) mayHaveLived(was leasesAt, ready []string, unbroken bool) [][]storageversion.Process {
	living, gone := l.processes(ready)
	lived := slices.Clone(living)
	for _, server := range gone {
		before, now := was.byName[server.Identity], l.byName[server.Identity]
		if !before.sameProcess(now) || !before.renewed.Equal(now.renewed) {
			lived = append(lived, server)
		}
	}
	for name := range l.lastHeld {
		if _, held := l.byName[name]; !held && !unbroken {
			lived = append(lived, storageversion.Process{Identity: name})
		}
	}
	if len(lived) == len(living) {
		return nil
	}
	slices.SortFunc(lived, byIdentity)
	return [][]storageversion.Process{lived}
}

// processes returns the processes of kube-apiserver that live and those that are gone although their Leases are still
// there. ready are the addresses of servers that are ready. Leases that expired do not count.
func (l *serverLeases) processes(ready []string) (living, gone []storageversion.Process) {
	renewing := l.renewing()
	for name, one := range l.byName {
		server, silence := storageversion.Process{Identity: name, Incarnation: one.holder}, l.sinceRenewal(one)
		switch {
		case one.duration > 0 && silence > one.duration:
		case silence > goneAfter && l.addressIsGone(one, renewing, ready):
			gone = append(gone, server)
		default:
			living = append(living, server)
		}
	}
	slices.SortFunc(living, byIdentity)
	return living, gone
}

func byIdentity(a, b storageversion.Process) int { return cmp.Compare(a.Identity, b.Identity) }

// renewing returns the Leases that servers still renew.
func (l *serverLeases) renewing() []lease {
	return slices.DeleteFunc(slices.Collect(maps.Values(l.byName)), func(one lease) bool {
		return l.sinceRenewal(one) > goneAfter
	})
}

// addressIsGone reports whether the addresses that are ready show that a server that does not renew its Lease is gone.
// A server that only fails to renew its Lease, and still writes, keeps its address. Where servers share an address, or
// a server that came later has taken it, it does not tell who is gone.
func (l *serverLeases) addressIsGone(silent lease, renewing []lease, ready []string) bool {
	if silent.address == "" {
		// No address identifies this server, so count: it is gone if there are exactly as many ready addresses as renewed
		// Leases.
		return len(renewing) > 0 && len(ready) == len(renewing)
	}
	shown := slices.ContainsFunc(renewing, func(one lease) bool { return slices.Contains(ready, one.address) })
	return shown && !slices.Contains(ready, silent.address)
}

// sinceRenewal is for how long a Lease was not renewed while other events arrived.
func (l *serverLeases) sinceRenewal(one lease) time.Duration { return l.heardFor - one.heardAtRenewal }

// advertised returns the addresses that servers advertise, by identity.
func (l *leasesAt) advertised() map[string]string {
	addresses := map[string]string{}
	for name, one := range l.byName {
		if one.address != "" {
			addresses[name] = one.address
		}
	}
	return addresses
}
