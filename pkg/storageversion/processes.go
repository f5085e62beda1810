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
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/version"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// leasesIdentify is the first Kubernetes version in which a server that starts deletes the Lease of the process before
// it. Earlier servers take it over, with its uid and its holder.
var leasesIdentify = version.MajorMinor(1, 35)

// leasesEndWithProcesses is the first Kubernetes version whose Lease no other process takes over. A server of 1.35 may
// be rolled back to 1.34, which takes Leases over. One of 1.36 may not, unless it emulates 1.34.
var leasesEndWithProcesses = version.MajorMinor(1, 36)

// LeaseIdentifiesProcess reports whether the identity Lease of a server of that version tells one process from the
// next. It does not if the version is not known.
func LeaseIdentifiesProcess(serverVersion string) bool {
	v, err := version.ParseGeneric(serverVersion)
	return err == nil && v.AtLeast(leasesIdentify)
}

// LeaseMayOutliveProcess reports whether the identity Lease of a server of that version may pass to another process. It
// may if the version is not known.
func LeaseMayOutliveProcess(serverVersion string) bool {
	v, err := version.ParseGeneric(serverVersion)
	return err != nil || !v.AtLeast(leasesEndWithProcesses)
}

// processes are the processes to which somebody keeps connections, so that the end of one is noticed at once, by the
// names of their documents.
type processes map[string]connectedProcess

type connectedProcess struct {
	started      time.Time // zero if the process did not tell it
	identified   bool      // by its Lease
	disconnected bool      // so it is not known whether the process still lives
}

// same reports whether a later answer under the same name is from the same process.
func (c connectedProcess) same(later connectedProcess) bool {
	return c.identified == later.identified && c.started.Equal(later.started) &&
		(!c.disconnected || !later.started.IsZero())
}

// disconnect records that the connection to a process ended. It reports whether that was not known before.
func (p processes) disconnect(name string) bool {
	process, met := p[name]
	if !met || process.disconnected {
		return false
	}
	process.disconnected = true
	p[name] = process
	return true
}

// answer records which processes answered. It returns, by the names of their documents, processes that may have
// written without being read: the process of that name was replaced, or another one has come, and no Lease identifies
// them. Before all have answered once (allAnswered), a process that answers for the first time does not count as one
// that has come: the record of a resource shows which processes were known before.
func (p processes) answer(documents map[string]Document, allAnswered bool) (unread []Process) {
	for _, name := range slices.Sorted(maps.Keys(documents)) {
		document := documents[name]
		if !document.Connected {
			continue
		}
		before, met := p[name]
		now := connectedProcess{started: document.Started, identified: LeaseIdentifiesProcess(document.Version)}
		// Leases tell which processes there were, and when they came.
		leasesTell := now.identified && (!met || before.identified)
		mayHaveBeenThere := !met && !allAnswered
		if !leasesTell && !mayHaveBeenThere && !(met && before.same(now)) {
			unread = append(unread, Process{Identity: name})
		}
		p[name] = now
	}
	return unread
}

// forget forgets the processes that did not answer in a complete look: they live no more. It returns, as servers that
// nobody read, the names of those that no Lease identifies.
func (p processes) forget(documents map[string]Document) (unread []Process) {
	for _, name := range slices.Sorted(maps.Keys(p)) {
		if documents[name].Connected {
			continue
		}
		if !p[name].identified {
			unread = append(unread, Process{Identity: name})
		}
		delete(p, name)
	}
	return unread
}

// disconnected returns the names of the processes of which it is not known whether they live, as servers that nobody
// read.
func (p processes) disconnected() []Process {
	var all []Process
	for _, name := range slices.Sorted(maps.Keys(p)) {
		if p[name].disconnected {
			all = append(all, Process{Identity: name})
		}
	}
	return all
}

// Anonymous reports whether an evidence is from processes of kube-apiserver that neither Leases nor start times
// identify. Only somebody who has watched them since knows whether they are still the same.
func Anonymous(e migrationv1alpha1.StorageEvidence) bool {
	anonymous := func(endpoint migrationv1alpha1.EndpointEvidence) bool {
		return !LeaseIdentifiesProcess(endpoint.ServerVersion) && endpoint.ProcessStartTime == nil
	}
	return FromKubeAPIServers(e) && slices.ContainsFunc(e.Endpoints, anonymous)
}

// sameProcesses reports whether the processes that Leases do not identify are the same, by their start times.
func sameProcesses(a, b []migrationv1alpha1.EndpointEvidence) bool {
	unidentified := func(all []migrationv1alpha1.EndpointEvidence) []migrationv1alpha1.EndpointEvidence {
		return slices.DeleteFunc(slices.Clone(all), func(endpoint migrationv1alpha1.EndpointEvidence) bool {
			return LeaseIdentifiesProcess(endpoint.ServerVersion)
		})
	}
	return slices.EqualFunc(unidentified(a), unidentified(b), func(a, b migrationv1alpha1.EndpointEvidence) bool {
		return a.Address == b.Address && a.ProcessStartTime != nil && a.ProcessStartTime.Equal(b.ProcessStartTime)
	})
}
