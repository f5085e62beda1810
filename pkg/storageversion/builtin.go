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

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/version"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// builtinResource is what the documents of all servers that serve a built-in resource have in common.
type builtinResource struct {
	kind       string
	versions   []string // at which every server that serves it does, in the last look
	candidates sets.Set[string]
	migratable bool
}

// SetServers tells which processes of kube-apiserver live. unbroken says that every Lease that came and went since the
// last call was seen.
func (l *Ledger) SetServers(now time.Time, living []Server, unbroken bool) Changes {
	next := map[string]process{}
	for _, server := range living {
		next[server.Identity] = process{incarnation: server.Incarnation, since: now}
	}
	var left []Server
	same := len(next) == len(l.living)
	for identity, before := range l.living {
		after, lives := next[identity]
		switch {
		case lives && after.incarnation == before.incarnation:
			if unbroken {
				next[identity] = before
			}
			continue
		case !lives:
			l.departures[identity] = now
		}
		same = false
		left = append(left, Server{Identity: identity, Incarnation: before.incarnation})
	}
	if same && l.heardLiving {
		return nil
	}
	if !l.heardLiving {
		l.began, l.heardLiving = now, true
	}
	l.hadServers = l.hadServers || len(next) > 0
	for identity := range next {
		delete(l.departures, identity)
	}
	changes := Changes{}
	for resource := range l.builtin {
		changes.add(resource)
		if !unbroken {
			l.breakRun(resource)
		}
	}
	if !unbroken {
		l.unasked = nil
	}
	for _, server := range left {
		l.noteUnseen(now, server)
		maps.DeleteFunc(l.firstViewed, func(v view, _ time.Time) bool { return v.incarnation == server.Incarnation })
		l.serving.Delete(server.Incarnation)
	}
	if !unbroken {
		clear(l.views)
	}
	l.living, l.livingSince = next, now
	l.noteBuiltIns(now)
	return changes
}

// noteUnseen notes for all resources that a server which left was not asked about that it was there.
func (l *Ledger) noteUnseen(now time.Time, server Server) {
	if l.publishing() {
		return
	}
	// For resources that are heard of later.
	if l.unasked = append(l.unasked, Sighting{Evidence: l.serverEvidence(), Unseen: []Server{server}}); len(l.unasked) > maxRun {
		l.unasked = slices.Delete(l.unasked, 0, 1)
	}
	for resource := range l.builtin {
		first, viewed := l.firstViewed[view{resource.Group, server.Incarnation}]
		if viewed && now.Sub(first) >= confirmation && l.views[resource.Group][server.Identity] == server.Incarnation {
			continue
		}
		sighting := Sighting{Evidence: l.serverEvidence(), Unseen: []Server{server}}
		if run := l.runs[resource]; len(run) > 0 {
			sighting.Writing = run[len(run)-1].Writing
			if last := &run[len(run)-1]; SameEvidence(last.Evidence, sighting.Evidence) {
				last.Unseen = append(last.Unseen, server)
			}
		}
		l.append(now, resource, sighting)
	}
}

// SetLook tells what the servers' documents said.
func (l *Ledger) SetLook(now time.Time, look Look) Changes {
	l.look, l.addresses = &look, slices.Sorted(maps.Keys(look.Documents))
	switch {
	case !look.partial():
		l.failingSince = time.Time{}
	case l.failingSince.IsZero():
		l.failingSince = now
	}
	l.learn(now, look)
	l.learnPublishers(now)
	l.unsure = false
	if l.missedDeparture(now) {
		// What every look has said so far may be of the server that left.
		clear(l.views)
		clear(l.firstViewed)
		clear(l.serving)
	}
	groups := sets.Set[string]{}
	changes := Changes{}
	for resource := range l.builtin {
		groups.Insert(resource.Group)
		changes.add(resource)
	}
	for group := range groups {
		if l.incomplete(now, group) != nil {
			continue
		}
		l.views[group], l.viewed[group] = l.incarnations(), now
		for _, incarnation := range l.views[group] {
			if _, before := l.firstViewed[view{group, incarnation}]; !before {
				l.firstViewed[view{group, incarnation}] = now
			}
		}
	}
	for resource := range l.builtin {
		if l.glimpsed[resource] == nil {
			l.glimpsed[resource] = sets.New[string]()
		}
		l.glimpsed[resource].Insert(l.sightingOfLook(resource).Writing...)
	}
	l.noteBuiltIns(now)
	return changes
}

// learn takes over what documents say of resources. What one of them says by itself is true, however the others failed.
func (l *Ledger) learn(now time.Time, look Look) {
	l.learnCohabitants(look)
	candidates := map[string]sets.Set[string]{} // by group
	served := map[schema.GroupResource][]Resource{}
	for _, document := range look.documents() {
		for resource, r := range document.Resources {
			served[resource] = append(served[resource], r)
			if candidates[resource.Group] == nil {
				candidates[resource.Group] = sets.Set[string]{}
			}
			candidates[resource.Group].Insert(r.Versions...)
		}
	}
	for resource, all := range served {
		known := builtinResource{kind: all[0].Kind, versions: slices.Clone(all[0].Versions), candidates: candidates[resource.Group]}
		for _, r := range all {
			known.migratable = known.migratable || r.Migratable
			known.versions = slices.DeleteFunc(known.versions, func(v string) bool { return !slices.Contains(r.Versions, v) })
		}
		before, heard := l.builtin[resource]
		known.candidates = known.candidates.Union(before.candidates)
		l.builtin[resource] = known
		if heard {
			continue
		}
		for _, sighting := range l.unasked {
			l.append(now, resource, sighting)
		}
	}
	for resource, known := range l.builtin {
		if _, still := served[resource]; !still && l.incomplete(now, resource.Group) == nil {
			known.versions = nil
			l.builtin[resource] = known
		}
	}
}

// noteBuiltIns adds a sighting of every built-in resource that the facts changed.
func (l *Ledger) noteBuiltIns(now time.Time) {
	for resource := range l.builtin {
		l.noteBuiltIn(now, resource)
	}
}

func (l *Ledger) noteBuiltIn(now time.Time, resource schema.GroupResource) {
	if l.class(resource) != BuiltIn {
		return
	}
	complete := l.incomplete(now, resource.Group) == nil
	if complete {
		l.looked[resource] = l.sightingOfAll(now, resource)
	}
	publishing := l.publishing()
	if l.noteStorageVersion(now, resource, publishing) && publishing {
		return
	}
	// Fewer documents than servers take nothing away from what a complete look found out about the same processes.
	sighting, looked := l.looked[resource]
	if complete || (looked && l.missing(now, resource.Group) == nil && slices.Equal(sighting.Evidence.Servers, l.serverEvidence().Servers)) {
		l.append(now, resource, sighting)
	}
}

// sightingOfAll is what the last look says, if it is a complete one. The address of a server that left may stand in for
// that of one that lives and was asked before, so what documents said lately is kept for a while.
func (l *Ledger) sightingOfAll(now time.Time, resource schema.GroupResource) Sighting {
	sighting := l.sightingOfLook(resource)
	if l.departures.recent(now, l.options.Linger) == 0 {
		l.glimpsed[resource] = sets.New(sighting.Writing...)
		return sighting
	}
	said := len(sighting.Writing)
	sighting.Writing = sortedSet(append(sighting.Writing, sets.List(l.glimpsed[resource])...))
	l.unsure = l.unsure || len(sighting.Writing) > said
	return sighting
}

// sightingOfLook is what the documents of the last look say, whether or not it is complete.
func (l *Ledger) sightingOfLook(resource schema.GroupResource) Sighting {
	sighting := Sighting{Evidence: l.serverEvidence()}
	for _, address := range l.addresses {
		document := l.look.Documents[address]
		hash := document.Resources[resource].Hash
		for cohabitant := range l.cohabitants[resource] {
			// Objects of a resource that a server does not serve are written by it through another.
			if other := document.Resources[cohabitant].Hash; other != "" {
				sighting.Writing = append(sighting.Writing, other)
				hash = cmp.Or(hash, other)
			}
		}
		sighting.Evidence.Endpoints = append(sighting.Evidence.Endpoints, migrationv1alpha1.EndpointEvidence{Address: address, StorageVersionHash: hash})
		if hash != "" {
			sighting.Writing = append(sighting.Writing, hash)
		}
	}
	sighting.Evidence.Endpoints = sighting.Evidence.Endpoints[:min(len(sighting.Evidence.Endpoints), migrationv1alpha1.MaxEvidenceEndpoints)]
	sighting.Writing = sortedSet(sighting.Writing)
	return sighting
}

// serverEvidence is evidence of the processes that live.
func (l *Ledger) serverEvidence() migrationv1alpha1.StorageEvidence {
	evidence := migrationv1alpha1.StorageEvidence{Source: migrationv1alpha1.EvidenceFromServerDiscovery}
	for _, identity := range slices.Sorted(maps.Keys(l.living)) {
		evidence.Servers = append(evidence.Servers, migrationv1alpha1.ServerEvidence{Identity: identity, Incarnation: l.living[identity].incarnation})
	}
	evidence.Servers = evidence.Servers[:min(len(evidence.Servers), migrationv1alpha1.MaxEvidenceServers)]
	return evidence
}

func (l *Ledger) observeBuiltIn(o *Observation, now time.Time) {
	known := l.builtin[o.Resource]
	o.Served = slices.Clone(known.versions)
	o.Versions = map[string]string{}
	for v := range known.candidates {
		groupVersion := schema.GroupVersion{Group: o.Resource.Group, Version: v}
		o.Versions[Hash(groupVersion, known.kind)] = groupVersion.String()
	}
	l.addPublished(o)
	l.addShared(o)
	last, _ := o.Last()
	for _, hash := range last.Writing {
		if _, readable := o.Versions[hash]; !readable {
			if version := guess(hash, o.Resource.Group, known.kind); version != "" {
				o.Versions[hash] = version
			}
		}
	}

	missing := l.missing(now, o.Resource.Group)
	_, published := l.storageVersions[o.Resource]
	switch {
	case l.servedSomewhere(o.Resource):
		o.Presence = Served
	case missing != nil:
	case l.incomplete(now, o.Resource.Group) == nil || len(l.looked[o.Resource].Writing) == 0:
		o.Presence = NotServed
	default:
		// The last look failed. The processes are those of the one before.
		o.Presence = Served
	}
	o.Confirmed = l.confirmed(o.Resource.Group)
	o.Looked = now
	if published && l.publishing() && known.kind != "" {
		return
	}
	o.Looked = l.viewed[o.Resource.Group]
	o.Problem = missing
	o.Unseen = l.unseen(o.Resource.Group)
}

// confirmed is from when on the last complete look at a group counts for sure as one at the processes that live.
func (l *Ledger) confirmed(group string) time.Time {
	var latest time.Time
	for _, server := range l.living {
		if first, viewed := l.firstViewed[view{group, server.incarnation}]; viewed && first.After(latest) {
			latest = first
		}
	}
	if latest.IsZero() {
		return latest
	}
	return latest.Add(confirmation)
}

// unseen are the processes that live and were not in the last complete look at the group.
func (l *Ledger) unseen(group string) []Server {
	var unseen []Server
	for identity, server := range l.living {
		if l.views[group][identity] != server.incarnation {
			unseen = append(unseen, Server{Identity: identity, Incarnation: server.incarnation})
		}
	}
	slices.SortFunc(unseen, compareServers)
	return unseen
}

func (l *Ledger) servedSomewhere(resource schema.GroupResource) bool {
	if l.look == nil {
		return false
	}
	for _, document := range l.look.Documents {
		if _, served := document.Resources[resource]; served {
			return true
		}
	}
	return false
}

// incarnations are the processes that live, by identity.
func (l *Ledger) incarnations() map[string]string {
	living := map[string]string{}
	for identity, server := range l.living {
		living[identity] = server.incarnation
	}
	return living
}

func sortedSet(hashes []string) []string {
	slices.Sort(hashes)
	return slices.Compact(hashes)
}

// sortVersions puts the preferred version first.
func sortVersions(versions []string) {
	slices.SortFunc(versions, func(a, b string) int { return version.CompareKubeAwareVersionStrings(b, a) })
}
