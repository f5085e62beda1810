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

// aggregated is a server behind the aggregator. It has one process, which is replaced in a moment.
type aggregated struct {
	stored int // a position in aggregatedVersions
	failed fault
	source *source
}

func (a *aggregated) encoding() string {
	return aggregatedEncodings[a.stored]
}

func (a *aggregated) groupVersions() []schema.GroupVersion {
	var all []schema.GroupVersion
	for _, version := range aggregatedVersions {
		all = append(all, schema.GroupVersion{Group: flunders.Group, Version: version})
	}
	return all
}

// document is what the aggregator answers.
func (a *aggregated) document(w *world, gv schema.GroupVersion) *storageversion.AggregatedDocument {
	document := &storageversion.AggregatedDocument{Address: "wardle/api"}
	if w.now.Before(a.failed.until) && (a.failed.group == "" || a.failed.group == gv.Version) {
		document.Failure = "503"
		return document
	}
	document.Resources = map[schema.GroupResource]storageversion.Resource{
		flunders: {Kind: aggregatedKind, Versions: []string{gv.Version}, Hash: a.encoding(), Migratable: true},
	}
	return document
}

// failAggregated keeps it from answering for a while, in which nobody can find out what it writes.
func (c *cluster) failAggregated(d time.Duration, version string) {
	c.aggregated.failed = fault{until: c.w.now.Add(d), group: version}
	c.aggregated.source.grace += d + aggregatedRetry
}

// flipAggregated changes the encoding. Nothing tells of that: it must not happen twice without having been seen, and
// not before states tell of the first time.
func (c *cluster) flipAggregated() {
	state := c.w.api.states[flunders.String()]
	if state == nil || state.Status.CurrentStorageVersionHash != c.aggregated.encoding() {
		return
	}
	c.w.store.writeAggregatedSlowly()
	c.aggregated.stored = 1 - c.aggregated.stored
	c.aggregated.source = &source{
		name: fmt.Sprintf("%s of the aggregated server", aggregatedVersions[c.aggregated.stored]), began: c.w.now,
		grace: c.w.periods.Poll + latency,
	}
	c.w.log("the aggregated server writes %s", aggregatedVersions[c.aggregated.stored])
}
