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
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// documents returns the documents ordered by address.
func (l *Look) documents() []Document {
	var all []Document
	for _, address := range slices.Sorted(maps.Keys(l.Documents)) {
		all = append(all, l.Documents[address])
	}
	return all
}

// ofServers says whether the look began when just these processes lived.
func (l *Look) ofServers(incarnations map[string]string) bool {
	if len(l.Servers) != len(incarnations) {
		return false
	}
	for _, server := range l.Servers {
		if incarnations[server.Identity] != server.Incarnation {
			return false
		}
	}
	return true
}

// partial says whether something of any server could not be read.
func (l *Look) partial() bool {
	for _, document := range l.Documents {
		if document.Failure != "" || len(document.FailedGroups) > 0 {
			return true
		}
	}
	return false
}

// missedDeparture says that the last look met fewer servers than an earlier one is believed to have asked, so soon after the first that
// a server may have left just before: the earlier look may have counted the address of that one for a server which had none yet.
// A server that came since and has no address yet was not asked, and explains itself.
func (l *Ledger) missedDeparture(now time.Time) bool {
	return now.Sub(l.began) <= l.options.Linger && l.look.ofServers(l.incarnations()) && len(l.look.Documents) < l.asked()
}

// asked is how many processes that live are believed to have been asked.
func (l *Ledger) asked() int {
	asked := 0
	for identity, server := range l.living {
		for _, view := range l.views {
			if view[identity] == server.incarnation {
				asked++
				break
			}
		}
	}
	return asked
}

// NeedsLook says that another look may find out more: servers came or went since the last, a part of it failed, or it
// may have met a server that has left in the place of one that came. Servers that have no address to ask them at, or no
// Lease to be counted by, are no reason: another look would not find them either.
func (l *Ledger) NeedsLook() bool {
	if l.look == nil || !l.look.ofServers(l.incarnations()) || l.look.partial() || l.unsure {
		return true
	}
	if len(l.living) == 0 || len(l.look.Documents) < len(l.living) {
		return false
	}
	// What is known of the living is from an earlier look: this one met too few addresses, or a server that left may have
	// answered in the place of the only one.
	for resource := range l.builtin {
		if !maps.Equal(l.views[resource.Group], l.incarnations()) {
			return true
		}
	}
	return false
}

// missing tells what keeps us from knowing what the servers write that live now; nil if nothing does. What a process
// writes does not change, so it is known from the last complete look for as long as the same processes live.
func (l *Ledger) missing(now time.Time, group string) *Problem {
	if len(l.living) > 0 && maps.Equal(l.incarnations(), l.views[group]) {
		return nil
	}
	return l.incomplete(now, group)
}

// incomplete tells what keeps the last look from being a complete one of the group and of what lives now.
func (l *Ledger) incomplete(now time.Time, group string) *Problem {
	if l.look == nil || !l.look.ofServers(l.incarnations()) {
		return l.problem(group, migrationv1alpha1.StateReasonServersUnseen, "API servers started or stopped and were not asked yet; %s live", l.names())
	}
	for _, address := range l.addresses {
		document := l.look.Documents[address]
		if document.Failure != "" {
			return l.problem(group, migrationv1alpha1.StateReasonServersUnseen, "the API server at %s could not be asked: %s", address, document.Failure)
		}
		if reason, failed := document.FailedGroups[group]; failed {
			return l.problem(group, migrationv1alpha1.StateReasonDiscoveryFailed, "discovery of group %q failed at %s: %s", group, address, reason)
		}
	}
	return l.uncounted(now, group)
}

// uncounted tells whether servers may live that none of the addresses leads to.
func (l *Ledger) uncounted(now time.Time, group string) *Problem {
	answering, servers := len(l.look.Documents), len(l.living)
	switch {
	case l.look.Direct && answering < servers:
		return l.problem(group, migrationv1alpha1.StateReasonServersUnseen, "%d API servers have a living identity Lease (%s) and the EndpointSlices of default/kubernetes know %d of their addresses "+
			"(%s): make the others advertise addresses of their own, or delete the Leases in kube-system of servers that are gone for good",
			servers, l.names(), answering, strings.Join(l.addresses, ", "))
	case l.look.Direct && len(l.unseen(group)) > 0 && answering < servers+l.departures.recent(now, l.options.Linger):
		return l.problem(group, migrationv1alpha1.StateReasonServersUnseen, "some of the addresses %s may belong to API servers that have left, and not to %s",
			strings.Join(l.addresses, ", "), l.names())
	case !l.look.Direct && servers > 1, !l.look.Direct && len(l.unseen(group)) > 0 && servers+l.departures.recent(now, l.options.Linger) > 1:
		return l.problem(group, migrationv1alpha1.StateReasonServersUnseen, "%d API servers have a living identity Lease (%s) and the EndpointSlices of default/kubernetes name no address: "+
			"they cannot be told apart through %s", servers, l.names(), strings.Join(l.addresses, ", "))
	case servers == 0 && l.hadServers:
		return l.problem(group, migrationv1alpha1.StateReasonServersUnseen, "no API server has a living identity Lease, and some had")
	case answering == 0:
		return l.problem(group, migrationv1alpha1.StateReasonServersUnseen, "no API server could be asked")
	default:
		return nil
	}
}

// problem began when the first of the processes came that were not asked, whoever came and went since.
func (l *Ledger) problem(group, reason, format string, args ...any) *Problem {
	since := l.livingSince
	if l.failingSince.After(since) {
		since = l.failingSince
	}
	for identity, server := range l.living {
		if l.views[group][identity] != server.incarnation && server.since.Before(since) {
			since = server.since
		}
	}
	return &Problem{Reason: reason, Message: fmt.Sprintf(format, args...), Since: since}
}

func (l *Ledger) names() string {
	return strings.Join(slices.Sorted(maps.Keys(l.living)), ", ")
}

func compareServers(a, b Server) int {
	return cmp.Or(cmp.Compare(a.Identity, b.Identity), cmp.Compare(a.Incarnation, b.Incarnation))
}

// departures are servers that left, each with the time. A server that left may still answer at its address for a while, in
// the place of one that came and has no address yet.
type departures map[string]time.Time

// recent is how many servers left so lately that their addresses may still be answered.
func (d departures) recent(now time.Time, linger time.Duration) int {
	maps.DeleteFunc(d, func(_ string, at time.Time) bool { return now.Sub(at) > linger })
	return len(d)
}
