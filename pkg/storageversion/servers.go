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
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// servers knows which processes of kube-apiserver live and which left, as their identity Leases show it.
type servers struct {
	// linger is for how long the address of a server may still answer after the server's Lease is gone.
	linger time.Duration
	living []Process // in order
	// departed is when each process left that has not come back. It may do so after any time, also if another process of
	// its identity has lived meanwhile: the identity is a hash of the host's name.
	departed map[Process]time.Time
	firstSet time.Time // when the living became known; zero until then
	// changed is when a process came or left last, was found to be replaced, or may have ended with a connection.
	changed time.Time
}

// set replaces the living. It returns the processes that left, those that came back, with when they had left, whether
// any came, and whether anything differs from before.
func (s *servers) set(
	now time.Time, living []Process, unbroken bool,
) (left []Process, back map[Process]time.Time, came, changed bool) {
	next := sets.New(living...)
	left = slices.DeleteFunc(slices.Clone(s.living), next.Has)
	if len(left) == 0 && len(next) == len(s.living) && !s.firstSet.IsZero() {
		return nil, nil, false, false
	}
	back = map[Process]time.Time{}
	came = slices.ContainsFunc(living, func(p Process) bool { return !unbroken || !slices.Contains(s.living, p) })
	s.firstSet = cmp.Or(s.firstSet, now)
	for _, process := range left {
		s.departed[process] = now
	}
	for process := range next {
		for other, at := range s.departed {
			// Without an incarnation it is any process of the identity: nobody saw it.
			if other == process || other.Identity == process.Identity && process.Incarnation == "" {
				back[other] = at
			}
		}
		delete(s.departed, process)
	}
	s.changed = now
	s.living = slices.SortedFunc(maps.Keys(next), compareProcesses)
	return left, back, came, true
}

// compareProcesses orders processes by their identities.
func compareProcesses(a, b Process) int {
	return cmp.Or(cmp.Compare(a.Identity, b.Identity), cmp.Compare(a.Incarnation, b.Incarnation))
}

// incarnation returns that of the server that lives, empty if none of that identity does.
func (s *servers) incarnation(identity string) string {
	for _, process := range s.living {
		if process.Identity == identity {
			return process.Incarnation
		}
	}
	return ""
}

// mayHaveMissedDeparture reports whether the address of a server that left before the Ledger knew who lives may still
// answer.
func (s *servers) mayHaveMissedDeparture(now time.Time) bool { return now.Sub(s.firstSet) <= s.linger }

// lingering returns the servers that departed so lately that their addresses may still answer. If another server has
// come, and has no address yet, a look may take such an answer for that of the new server.
func (s *servers) lingering(now time.Time) sets.Set[string] {
	lingering := sets.Set[string]{}
	for process, at := range s.departed {
		if now.Sub(at) <= s.linger {
			lingering.Insert(process.Identity)
		}
	}
	for _, process := range s.living {
		lingering.Delete(process.Identity)
	}
	return lingering
}

// names returns the identities of the living for a message.
func (s *servers) names() string {
	var names []string
	for _, process := range s.living {
		names = append(names, process.Identity)
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

// evidence identifies the processes that live.
func (s *servers) evidence() migrationv1alpha1.StorageEvidence {
	evidence := migrationv1alpha1.StorageEvidence{Source: migrationv1alpha1.EvidenceFromServerDiscovery}
	for _, process := range atMost(s.living, migrationv1alpha1.MaxEvidenceServers) {
		evidence.Servers = append(evidence.Servers,
			migrationv1alpha1.ServerEvidence{Identity: process.Identity, Incarnation: process.Incarnation})
	}
	return evidence
}
