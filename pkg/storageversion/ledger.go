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

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Ledger turns facts about servers into sightings of resources, and sightings into Observations. Each kind of fact
// has an owner, who answers questions about it. The methods of the Ledger are the way from a fact to the sightings
// that it makes. A Ledger must not be used by two goroutines at once.
type Ledger struct {
	servers      *servers
	looks        *looks // asks servers
	sharing      sharing
	builtIns     *builtIns     // asks servers, looks, sharing
	publications *publications // asks servers, looks
	definitions  definitions
	// existingDefinitions is how many of the definitions exist.
	existingDefinitions int
	aggregated          aggregated
	sightings           sightings
	unreadable          unreadable
	// unreadDepartures has a sighting for each time that processes left which may have written resources that no document
	// has shown yet. When such a resource becomes known, its sightings begin with these.
	unreadDepartures []Sighting
}

// NewLedger returns a Ledger without facts. linger is for how long the address of a server may still answer after the
// server's Lease is gone.
func NewLedger(linger time.Duration) *Ledger {
	l := &Ledger{
		servers:     &servers{linger: linger, departed: map[Process]time.Time{}},
		sharing:     sharing{},
		definitions: definitions{},
		aggregated:  aggregated{},
		sightings:   sightings{},
		unreadable:  unreadable{},
	}
	l.looks = &looks{
		servers: l.servers, processes: processes{}, lastAdvertised: map[string]string{}, readings: map[Process]reading{},
	}
	l.builtIns = &builtIns{
		servers: l.servers, looks: l.looks, sharing: l.sharing, resources: map[schema.GroupResource]builtIn{},
	}
	l.publications = &publications{
		servers: l.servers, looks: l.looks, objects: map[schema.GroupResource]StorageVersion{},
	}
	return l
}

// observes is the one gate to observation. A resource that it leaves out is not in Resources and never in Changes, so
// no StorageState is created for it, but one that exists is kept. It leaves out what clients cannot list, or can
// neither update nor patch.
func (l *Ledger) observes(resource schema.GroupResource) bool {
	_, defined := l.definitions[resource]
	return defined || l.builtIns.resources[resource].migratable || l.aggregated.migratable(resource)
}

// Resources returns all resources that were ever seen and can be migrated, in order.
func (l *Ledger) Resources() []schema.GroupResource {
	return slices.SortedFunc(maps.Keys(l.keepObserved(l.all())), compareResources)
}

// all returns all resources that were ever seen.
func (l *Ledger) all() resourceSet {
	return sets.KeySet(l.definitions).Union(l.builtIns.all()).Union(l.aggregated.all())
}

// SetServers records which processes of kube-apiserver live. unbroken means that every Lease that came and went since
// the last call is known.
//
// The order matters. The evidence is taken before the change, because afterwards it lacks the processes that left.
// looks.forget comes after noteDeparture, which has to find out whether the process was read.
func (l *Ledger) SetServers(now time.Time, living []Process, unbroken bool) Changes {
	departure := Sighting{Evidence: l.servers.evidence()}
	left, back, came, changed := l.servers.set(now, living, unbroken)
	if !changed {
		return nil
	}
	if came {
		l.looks.takeBack()
	}
	if !unbroken {
		l.unreadDepartures = nil
		for resource := range l.builtIns.all() {
			delete(l.sightings, resource)
		}
	}
	if len(left) > 0 {
		departure.UnreadDeparted = left
		l.noteDeparture(now, departure)
	}
	l.looks.forget(left, unbroken)
	changes := l.noteReturns(now, back)
	maps.Copy(changes, l.noteBuiltIns(now))
	return changes
}

// Living returns the processes of kube-apiserver that live, in order.
func (l *Ledger) Living() []Process { return l.servers.living }

// noteDeparture notes that processes left which nobody may have read.
func (l *Ledger) noteDeparture(now time.Time, departure Sighting) {
	l.unreadDepartures = append(l.unreadDepartures, departure)
	l.unreadDepartures = l.unreadDepartures[max(0, len(l.unreadDepartures)-maxSightings):]
	unread := l.looks.unconfirmed(departure.UnreadDeparted)
	if len(unread) == 0 {
		return
	}
	for resource := range l.builtIns.all() {
		last, _ := l.sightings.last(resource)
		l.sightings.append(now, resource, Sighting{
			Evidence: departure.Evidence, Writing: last.Writing, UnreadDeparted: unread,
		})
	}
}

// noteReturns notes what processes that came back may write of custom resources. Such a process was frozen: it follows
// the changes of definitions only now, and until then it writes what they said before. Somebody may also have deleted
// its Lease for a while.
func (l *Ledger) noteReturns(now time.Time, back map[Process]time.Time) Changes {
	changes := Changes{}
	for _, process := range slices.SortedFunc(maps.Keys(back), compareProcesses) {
		for resource, definition := range l.definitions {
			if definition == nil || !l.sightings.changedSince(resource, back[process].Add(-maxFrozen)) {
				continue
			}
			sighting, _ := l.sightings.last(resource)
			sighting.UnreadDeparted = []Process{process}
			l.sightings.append(now, resource, sighting)
			changes.Insert(resource)
		}
	}
	return l.note(now, changes) // From now on the process is asked again.
}

// ConnectionLost records that a connection has ended. name is that of the document that was read on it. Another process
// may answer there by now.
func (l *Ledger) ConnectionLost(now time.Time, name string) Changes {
	if !l.looks.disconnect(name) {
		return nil
	}
	l.servers.changed = now
	return l.noteBuiltIns(now)
}

// SetLook records what the documents of all servers said. It deletes from look.Documents the resources that are known
// to be custom or aggregated, because documents list them too.
func (l *Ledger) SetLook(now time.Time, look Look) Changes {
	for _, document := range look.Documents {
		maps.DeleteFunc(document.Resources, func(resource schema.GroupResource, r Resource) bool {
			return l.notBuiltIn(resource, r.Versions)
		})
	}
	if unread := l.looks.set(now, look); len(unread) > 0 {
		l.servers.changed = now
		l.noteDeparture(now, Sighting{Evidence: l.servers.evidence(), UnreadDeparted: unread})
	}
	l.sharing.learn(look)
	for _, resource := range l.builtIns.learn(now) {
		if last, seen := l.sightings.last(resource); seen && fromAggregated(last.Evidence) {
			// The objects are in another storage. Nobody may have recorded the sightings of the other server, and a record from
			// before it came proves nothing.
			delete(l.sightings, resource)
			doubt := Sighting{Evidence: l.servers.evidence()}
			l.sightings.append(now, resource, doubt.behind(l.aggregated.versions(resource)))
		}
		for _, departure := range l.unreadDepartures {
			l.sightings.append(now, resource, departure)
		}
	}
	return l.noteBuiltIns(now)
}

// notBuiltIn reports whether a resource is custom, or aggregated at all of these versions.
func (l *Ledger) notBuiltIn(resource schema.GroupResource, versions []string) bool {
	local := slices.ContainsFunc(versions, func(version string) bool {
		return !l.aggregated.handed(schema.GroupVersion{Group: resource.Group, Version: version})
	})
	return l.definitions[resource] != nil || !local && len(l.aggregated.versions(resource)) > 0
}

// dropBuiltIns forgets the built-in resources of a group that turned out to be custom or aggregated, and returns them.
// The documents of kube-apiserver list them, and were read before their definition or their APIService was known.
func (l *Ledger) dropBuiltIns(group string) resourceSet {
	dropped := resourceSet{}
	for resource, known := range l.builtIns.resources {
		if resource.Group == group && l.notBuiltIn(resource, known.versions) {
			delete(l.builtIns.resources, resource)
			delete(l.sightings, resource)
			dropped.Insert(resource)
		}
	}
	return dropped
}

// NeedsLook reports whether another look may find out more.
func (l *Ledger) NeedsLook() bool { return l.looks.needAnother() || l.builtIns.ambiguous }

// ConfirmableFrom returns from when on Confirm can make it certain that looks have read the processes that live. It is
// zero if there is nothing to confirm: that is certain, or nothing was read.
func (l *Ledger) ConfirmableFrom() time.Time { return l.looks.confirmableFrom() }

// Confirm records that etcd was asked at that time who holds the identity Leases, and answered that the living
// processes do. A process that leaves without that may have been taken for its successor: the watch may show late that
// it left.
func (l *Ledger) Confirm(asked time.Time) { l.looks.confirm(asked) }

// SetStorageVersionsWatched records whether all StorageVersion objects are known and watched.
func (l *Ledger) SetStorageVersionsWatched(now time.Time, watched bool) Changes {
	if l.publications.watched == watched {
		return nil
	}
	l.publications.watched = watched
	return l.noteBuiltIns(now)
}

// SetStorageVersion records the state of the StorageVersion object of that name; nil means that there is none.
// unbroken means that every state of it since the last call is known.
func (l *Ledger) SetStorageVersion(now time.Time, name string, object *StorageVersion, unbroken bool) Changes {
	resource, ok := resourceOfStorageVersion(name)
	_, known := l.publications.objects[resource]
	if !ok || !l.publications.set(resource, object) {
		return nil
	}
	missed := !unbroken && (known || l.publications.watched) && l.class(resource) == BuiltIn
	if last, seen := l.sightings.last(resource); seen && missed {
		// A process may have published another encoding meanwhile, and have ended before it had a Lease.
		last.UnreadDeparted = []Process{{Identity: name}}
		l.sightings.append(now, resource, last)
	}
	if !l.publications.watched {
		return nil
	}
	return l.noteBuiltIns(now)
}

// noteBuiltIns notes all built-in resources. A single StorageVersion may be the first publication of its server, and
// then it decides about all of them.
func (l *Ledger) noteBuiltIns(now time.Time) Changes {
	l.looks.noteProblem(now)
	return l.note(now, l.builtIns.all())
}

// SetDefinition records the state of the CustomResourceDefinition of a resource; nil means that there is none.
// The Ledger keeps definition, so nobody may change it afterwards. The generation shows whether states in between are
// unknown.
func (l *Ledger) SetDefinition(now time.Time, resource schema.GroupResource, definition *Definition) Changes {
	if definition == nil && l.definitions[resource] == nil {
		return nil
	}
	last, exists := l.sightings.last(resource)
	continues := definition != nil && exists && Continues(last.Evidence, definition.sighting().Evidence)
	if !continues {
		delete(l.sightings, resource)
	}
	before := l.definitions[resource]
	if before != nil {
		l.existingDefinitions--
	}
	if definition != nil {
		l.existingDefinitions++
		definition.contentSince = now
		if before != nil && continues && before.Content == definition.Content {
			definition.contentSince = before.contentSince
		}
	}
	l.definitions[resource] = definition
	return l.note(now, l.dropBuiltIns(resource.Group).Insert(resource))
}

// SetAggregated records what the document of an aggregated group version said; nil means that no APIService hands
// the group version to an aggregated server. The document may decide about every resource of the group.
func (l *Ledger) SetAggregated(now time.Time, gv schema.GroupVersion, document *AggregatedDocument) Changes {
	l.aggregated.set(now, gv, document)
	l.dropBuiltIns(gv.Group)
	group := l.all()
	maps.DeleteFunc(group, func(resource schema.GroupResource, _ sets.Empty) bool { return resource.Group != gv.Group })
	return l.note(now, group)
}

// note adds a sighting of each given resource of which the facts are complete, and returns those that are observed.
func (l *Ledger) note(now time.Time, resources resourceSet) Changes {
	for resource := range resources {
		if l.class(resource) == BuiltIn {
			l.builtIns.recordRead(now, resource)
		}
		if sighting, complete := l.bestSighting(now, resource); complete {
			l.sightings.append(now, resource, sighting)
		}
	}
	return l.keepObserved(resources)
}

// bestSighting returns what the best evidence says of a resource. complete is false if something is unknown of it.
func (l *Ledger) bestSighting(now time.Time, resource schema.GroupResource) (sighting Sighting, complete bool) {
	switch l.class(resource) {
	case Custom:
		if definition := l.definitions[resource]; definition != nil {
			return definition.sighting().behind(l.aggregated.takes(resource, definition.ServedVersions)), true
		}
	case BuiltIn:
		read, complete := l.builtIns.lastReadOfLiving(resource)
		taken := l.aggregated.takes(resource, sets.List(l.builtIns.resources[resource].shown))
		if l.published(resource) {
			// The watch may lag and show what earlier processes published. What documents showed counts as well.
			return l.publishedSighting(resource, read).behind(taken), true
		}
		return read.behind(taken), complete && l.looks.problemOfProcesses(now) == nil
	case Aggregated:
		// After the start of the manager, not all servers of the group may have been asked yet.
		if _, seen := l.sightings.last(resource); seen || len(l.aggregated.unreadBeside(resource)) == 0 {
			return l.aggregated.sighting(resource)
		}
	}
	return Sighting{}, false
}

// published reports whether a StorageVersion shows what is written of a built-in resource. It may lack the entry of a
// living server, because others remove entries too. So the last complete look must have read the same processes, and
// what it read counts as well.
func (l *Ledger) published(resource schema.GroupResource) bool {
	_, exists := l.publications.objects[resource]
	_, read := l.builtIns.lastReadOfLiving(resource)
	return exists && l.publications.complete() && read
}

// publishedSighting returns what the StorageVersions of a resource, and of those that share its storage, say. It adds
// what documents said.
func (l *Ledger) publishedSighting(resource schema.GroupResource, read Sighting) Sighting {
	sighting := l.publications.sighting(resource, l.builtIns.resources[resource].kind)
	writing := slices.Concat(sighting.Writing, read.Writing)
	for _, other := range l.sharing.with(resource) {
		writing = append(writing, l.publications.sighting(other, l.builtIns.resources[other].kind).Writing...)
	}
	sighting.Writing, sighting.Evidence.Endpoints = sortedSet(writing), read.Evidence.Endpoints
	return sighting
}

// keepObserved leaves in resources those that are observed.
func (l *Ledger) keepObserved(resources resourceSet) Changes {
	maps.DeleteFunc(resources, func(resource schema.GroupResource, _ sets.Empty) bool { return !l.observes(resource) })
	return resources
}
