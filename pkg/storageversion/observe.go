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
)

// Observe returns what is known of a resource. A resource that nobody ever served has no Class.
func (l *Ledger) Observe(now time.Time, resource schema.GroupResource) Observation {
	o := Observation{
		Resource:  resource,
		Time:      now,
		Class:     l.class(resource),
		Sightings: slices.Clone(l.sightings[resource]),

		ServersSince: l.servers.changed,
	}
	switch o.Class {
	case Custom:
		l.observeCustom(&o)
	case BuiltIn:
		l.observeBuiltIn(&o)
	case Aggregated:
		l.aggregated.observe(&o)
	default:
		l.observeUnserved(&o)
	}
	l.unreadable.observe(&o)
	return o
}

// class returns who serves a resource. A definition that was deleted counts only if nobody else serves the resource.
func (l *Ledger) class(resource schema.GroupResource) Class {
	definition, defined := l.definitions[resource]
	_, builtIn := l.builtIns.resources[resource]
	switch {
	case definition != nil:
		return Custom
	case builtIn:
		return BuiltIn
	case len(l.aggregated.versions(resource)) > 0:
		return Aggregated
	case defined:
		return Custom
	default:
		return ""
	}
}

func (l *Ledger) observeCustom(o *Observation) {
	o.ReadAt = o.Time
	definition := l.definitions[o.Resource]
	if definition == nil {
		o.Presence = Deleted
		return
	}
	o.Presence = NotServed
	if definition.Established && len(definition.ServedVersions) > 0 {
		o.Presence = Served
	}
	o.ServedVersions, o.DefinedVersions = slices.Clone(definition.ServedVersions), slices.Clone(definition.DefinedVersions)
	o.StoredVersionsManager, o.ContentSince = definition.StoredVersionsManager, definition.contentSince
	versions := slices.Concat(definition.ServedVersions, definition.StoredVersions, []string{definition.StorageVersion})
	o.Versions = versionsByEncoding(definition.Group, definition.Kind, versions)
	o.DefinitionCount = l.existingDefinitions
	o.Problem = l.aggregated.problemOfTaking(o.Resource, definition.ServedVersions,
		"Delete the APIService or the CustomResourceDefinition")
}

func (l *Ledger) observeBuiltIn(o *Observation) {
	known := l.builtIns.resources[o.Resource]
	o.Presence = l.builtIns.presence(o.Time, o.Resource)
	o.ServedVersions = slices.Clone(known.versions)
	o.Versions = maps.Clone(known.readable)
	o.SharedWith = l.sharing.with(o.Resource)
	for _, other := range o.SharedWith {
		maps.Copy(o.Versions, l.builtIns.resources[other].readable)
	}
	o.CertainFrom = l.looks.confirmableFrom()
	o.Problem = l.aggregated.problemOfTaking(o.Resource, sets.List(known.shown), "Delete the APIService")
	if last, _ := l.sightings.last(o.Resource); l.published(o.Resource) && Durable(last.Evidence) {
		o.ReadAt = o.Time
		return
	}
	o.ReadAt = l.looks.readAt
	o.Problem = cmp.Or(o.Problem, l.looks.problemOfProcesses(o.Time))
	o.UnreadLiving = append(l.looks.unreadLiving(), l.looks.processes.disconnected()...)
}

// observeUnserved is about a resource that nobody who could be asked serves.
func (l *Ledger) observeUnserved(o *Observation) {
	o.UnreadLiving = append(l.looks.unreadLiving(), l.looks.processes.disconnected()...)
	o.Problem = cmp.Or(l.looks.problemOfProcesses(o.Time), l.aggregated.problem(o.Resource.Group))
	if o.Problem == nil {
		o.Presence = NotServed
	}
}

// Expires reports whether API servers delete the objects of a resource after a time to live. A rewrite would renew it.
func Expires(resource schema.GroupResource) bool {
	return resource.Resource == "events" && (resource.Group == "" || resource.Group == "events.k8s.io")
}

// resourceSet is a set of resources.
type resourceSet = sets.Set[schema.GroupResource]

func compareResources(a, b schema.GroupResource) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
}

func sortedSet(hashes []Encoding) []Encoding {
	slices.Sort(hashes)
	return slices.Compact(hashes)
}

// atMost returns the first n elements. The API limits the length of lists.
func atMost[T any](all []T, n int) []T { return all[:min(len(all), n)] }
