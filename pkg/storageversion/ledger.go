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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// maxRun bounds how many sightings of one resource are kept. Records are written within seconds, so a record that is
// older than that many sightings is one that could not be written for long; nothing is lost but a proof.
const maxRun = 64

// confirmation is how long a process has to live after the first look at it, for that look to have met it. A server
// answers before it renews its Lease: a look at its predecessor may have met its successor.
const confirmation = 5 * time.Second

// Ledger turns facts about servers into Observations, and keeps what went by between two of them. It has no clock and
// asks nobody. It must not be used by two goroutines at once.
type Ledger struct {
	options Options

	began       time.Time          // when the living were heard of first
	living      map[string]process // by identity
	livingSince time.Time          // when living changed last
	heardLiving bool
	hadServers  bool // once
	departures  departures

	look         *Look
	addresses    []string  // of look, sorted
	failingSince time.Time // when looks began to fail; zero while they do not
	// views are, by built-in group, the servers of the last complete look. What these servers write does not change.
	views  map[string]map[string]string
	viewed map[string]time.Time // when that look was
	// glimpsed are the encodings that any document showed since a server left of which the address may still be answered;
	// unsure says that they made a difference to the last complete look.
	glimpsed map[schema.GroupResource]sets.Set[string]
	unsure   bool
	// unasked are the processes that left before a complete look, however much of it they missed.
	unasked []Sighting
	// looked are the sightings of the last complete look.
	looked map[schema.GroupResource]Sighting
	// firstViewed is when a process was in a complete look at a group first.
	firstViewed map[view]time.Time
	builtin     map[schema.GroupResource]builtinResource

	storageVersionsServed bool
	storageVersions       map[schema.GroupResource]StorageVersion
	// serving are the incarnations that were found to serve StorageVersions, allServe that the last look found it of all.
	serving  sets.Set[string]
	allServe bool
	// published is the state of each StorageVersion that was noted last.
	published map[schema.GroupResource]migrationv1alpha1.StorageVersionEvidence
	// cohabitants are the resources that were seen to be the same objects in the same storage.
	cohabitants map[schema.GroupResource]sets.Set[schema.GroupResource]

	custom     map[schema.GroupResource]customResource
	aggregated map[schema.GroupVersion]aggregatedVersion

	runs map[schema.GroupResource][]Sighting
}

// process is a living server process.
type process struct {
	incarnation string
	since       time.Time
}

// view is that of the documents of a group which a process serves.
type view struct {
	group, incarnation string
}

// NewLedger returns a Ledger that knows of nothing.
func NewLedger(options Options) *Ledger {
	return &Ledger{
		options:         options,
		living:          map[string]process{},
		departures:      departures{},
		views:           map[string]map[string]string{},
		viewed:          map[string]time.Time{},
		glimpsed:        map[schema.GroupResource]sets.Set[string]{},
		looked:          map[schema.GroupResource]Sighting{},
		firstViewed:     map[view]time.Time{},
		builtin:         map[schema.GroupResource]builtinResource{},
		storageVersions: map[schema.GroupResource]StorageVersion{},
		serving:         sets.Set[string]{},
		published:       map[schema.GroupResource]migrationv1alpha1.StorageVersionEvidence{},
		cohabitants:     map[schema.GroupResource]sets.Set[schema.GroupResource]{},
		custom:          map[schema.GroupResource]customResource{},
		aggregated:      map[schema.GroupVersion]aggregatedVersion{},
		runs:            map[schema.GroupResource][]Sighting{},
	}
}

// Resources are all that were ever heard of and can be migrated, in order.
func (l *Ledger) Resources() []schema.GroupResource {
	all := map[schema.GroupResource]struct{}{}
	for resource, known := range l.builtin {
		if known.migratable {
			all[resource] = struct{}{}
		}
	}
	for resource := range l.custom {
		all[resource] = struct{}{}
	}
	for _, version := range l.aggregated {
		for resource, known := range version.resources {
			if known.Migratable {
				all[resource] = struct{}{}
			}
		}
	}
	return slices.SortedFunc(maps.Keys(all), compareResources)
}

// Observe returns what is known of a resource. One that was never heard of is neither served nor not served.
func (l *Ledger) Observe(now time.Time, resource schema.GroupResource) Observation {
	o := Observation{
		Resource: resource,
		Time:     now,
		Run:      slices.Clone(l.runs[resource]),
		SharedBy: resource,
		Expires:  expires(resource),
	}
	switch class := l.class(resource); class {
	case Custom:
		o.Class = class
		l.observeCustom(&o)
	case BuiltIn:
		o.Class = class
		l.observeBuiltIn(&o, now)
	case Aggregated:
		o.Class = class
		l.observeAggregated(&o)
	default:
		l.observeUnheard(&o, now)
	}
	return o
}

// observeUnheard is about a resource that nobody who could be asked serves.
func (l *Ledger) observeUnheard(o *Observation, now time.Time) {
	o.Problem = l.missing(now, o.Resource.Group)
	o.Unseen = l.unseen(o.Resource.Group)
	for _, groupVersion := range l.aggregatedVersions() {
		if version := l.aggregated[groupVersion]; groupVersion.Group == o.Resource.Group && version.failure != "" && o.Problem == nil {
			o.Problem = version.problem(groupVersion)
		}
	}
	if o.Problem == nil {
		o.Presence = NotServed
	}
}

// class tells by whom a resource is served. A definition that was deleted counts only where nobody else serves it.
func (l *Ledger) class(resource schema.GroupResource) Class {
	custom, defined := l.custom[resource]
	if defined && !custom.deleted {
		return Custom
	}
	if _, known := l.builtin[resource]; known {
		return BuiltIn
	}
	for _, version := range l.aggregated {
		if _, known := version.resources[resource]; known {
			return Aggregated
		}
	}
	if defined {
		return Custom
	}
	return ""
}

// append adds a sighting to the run of a resource unless the last one is the same. The same evidence may come back later
// in the run, so each sighting gets a time that no other of its run has, also when rounded to what the API stores.
func (l *Ledger) append(now time.Time, resource schema.GroupResource, sighting Sighting) {
	run := l.runs[resource]
	seen := ceil(now)
	if len(run) > 0 {
		last := run[len(run)-1]
		if SameEvidence(last.Evidence, sighting.Evidence) && slices.Equal(last.Writing, sighting.Writing) {
			return
		}
		if next := last.Evidence.FirstObservedTime.Add(time.Second); seen.Before(next) {
			seen = next
		}
	}
	sighting.Evidence.FirstObservedTime = &metav1.Time{Time: seen}
	if len(run) == maxRun {
		run = slices.Delete(run, 0, 1)
	}
	l.runs[resource] = append(run, sighting)
}

// ceil rounds up to what the API can store, so that no time that is read back lies before the one that was meant.
func ceil(t time.Time) time.Time {
	if truncated := t.Truncate(time.Second); truncated.Before(t) {
		return truncated.Add(time.Second)
	}
	return t
}

// breakRun forgets what was seen of a resource before a time in which nobody watched.
func (l *Ledger) breakRun(resource schema.GroupResource) {
	delete(l.runs, resource)
	delete(l.published, resource)
}

// expires says that the objects of a resource vanish by themselves, whose life a rewrite would prolong.
func expires(resource schema.GroupResource) bool {
	return resource.Resource == "events" && (resource.Group == "" || resource.Group == "events.k8s.io")
}

func compareResources(a, b schema.GroupResource) int {
	return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Resource, b.Resource))
}

func (c Changes) add(resources ...schema.GroupResource) {
	for _, resource := range resources {
		c[resource] = struct{}{}
	}
}
