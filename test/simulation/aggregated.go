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

package simulation

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

var (
	aggregatedVersions  = []string{"v1alpha1", "v1beta1"}
	aggregatedKind      = "Flunder"
	aggregatedEncodings [2]string
)

// aggregated is a server behind the aggregator. It has one process, which is replaced in a moment, or replicas that are
// rolled out: then those of two revisions answer in turn.
type aggregated struct {
	revision
	// next is the revision that is rolled out, nil if none is.
	next *revision
	turn int
	// asksNext says that the aggregator has its connection to one of those that are rolled out.
	asksNext bool
	// failsUntil is until when the documents of a version cannot be read, those of all versions if failing is empty.
	failsUntil time.Time
	failing    string
}

// revision is what replicas of an aggregated server have in common.
type revision struct {
	stored int // a position in aggregatedVersions
	source *source
}

func (r *revision) encoding() string { return aggregatedEncodings[r.stored] }

// answering is the revision of the replica that gets the next request.
func (a *aggregated) answering() *revision {
	if a.next == nil {
		return &a.revision
	}
	a.turn++
	return []*revision{&a.revision, a.next}[a.turn%2]
}

func (a *aggregated) groupVersions() []schema.GroupVersion {
	var all []schema.GroupVersion
	for _, version := range aggregatedVersions {
		all = append(all, schema.GroupVersion{Group: flunders.Group, Version: version})
	}
	return all
}

// document is what the aggregator answers, which keeps one connection.
func (a *aggregated) document(w *world, gv schema.GroupVersion) *storageversion.AggregatedDocument {
	document := &storageversion.AggregatedDocument{Address: "wardle/api"}
	if w.now.Before(a.failsUntil) && (a.failing == "" || a.failing == gv.Version) {
		document.Failure = "503"
		return document
	}
	from := &a.revision
	if a.next != nil {
		document.WhyReplicasDiffer = "replicas of two revisions"
		if a.asksNext {
			from = a.next
		}
	}
	document.Resources = map[schema.GroupResource]storageversion.Resource{
		flunders: {Kind: aggregatedKind, Versions: []string{gv.Version}, Hash: from.encoding(), Migratable: true},
	}
	return document
}

// sources are those that a manager knows of which looks: EndpointSlices tell it of all replicas.
func (a *aggregated) sources() []*source {
	if a.next == nil {
		return []*source{a.source}
	}
	return []*source{a.source, a.next.source}
}

// failAggregated keeps it from answering for a while, in which nobody can find out what it writes.
func (c *cluster) failAggregated(d time.Duration, version string) {
	c.aggregated.failsUntil, c.aggregated.failing = c.w.now.Add(d), version
	c.aggregated.source.grace += d + aggregatedRetry
	if next := c.aggregated.next; next != nil {
		next.source.grace += d + aggregatedRetry
	}
}

// flipAggregated changes the encoding. Nothing tells of that: it must not happen twice without having been seen, and
// not before states tell of the first time.
func (c *cluster) flipAggregated() {
	if next := c.nextRevision(0); next != nil {
		c.w.store.writeAggregatedSlowly()
		c.aggregated.revision = *next
		c.w.log("the aggregated server writes %s", aggregatedVersions[next.stored])
	}
}

// rollOutAggregated has replicas of two revisions answer for a while, and then those of the new one. It ends before
// anybody can know what the new one writes. It may also be taken back, so that nobody ever knows. Nothing tells of one
// that is taken back between two looks.
func (c *cluster) rollOutAggregated(d time.Duration, takeBack bool) {
	unknown := d
	if d > c.w.periods.Poll { // A look notices it.
		unknown = 0
	}
	next := c.nextRevision(unknown)
	if next == nil {
		return
	}
	c.aggregated.next, c.aggregated.asksNext = next, c.w.dice.oneIn(2)
	c.w.log("some replicas of the aggregated server write %s", aggregatedVersions[next.stored])
	c.w.after(d, func() {
		if takeBack && unknown == 0 {
			c.aggregated.next = nil
			c.w.log("the rollout of the aggregated server was taken back")
			return
		}
		c.w.store.writeAggregatedSlowly()
		c.aggregated.revision, c.aggregated.next = *next, nil
		c.w.log("all replicas of the aggregated server write %s", aggregatedVersions[next.stored])
	})
}

// nextRevision is the one that follows the present one, whose encoding is known that much later. It is nil if states do
// not tell of the present one yet.
func (c *cluster) nextRevision(rollout time.Duration) *revision {
	a, state := c.aggregated, c.w.api.states[flunders.String()]
	if a.next != nil || state == nil || state.Status.CurrentStorageVersionHash != a.encoding() {
		return nil
	}
	stored := 1 - a.stored
	return &revision{stored: stored, source: &source{
		name: fmt.Sprintf("%s of the aggregated server", aggregatedVersions[stored]), began: c.w.now,
		grace: rollout + c.w.periods.Poll + latency,
	}}
}
