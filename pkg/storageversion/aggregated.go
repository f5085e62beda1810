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

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// maxAddressLength is how long an address in an evidence may be.
const maxAddressLength = 300

// aggregatedVersion is what is known of a group version that aggregated servers serve, or served.
type aggregatedVersion struct {
	address   string
	looked    time.Time
	resources map[schema.GroupResource]Resource
	// failure is why the last document could not be read; resources are those of the one before.
	failure      string
	failingSince time.Time
	// gone says that no APIService hands the group version to a server any more.
	gone bool
}

// SetAggregated tells what the document of an aggregated group version said; nil says that no APIService hands that
// group version to a server of its own.
func (l *Ledger) SetAggregated(now time.Time, groupVersion schema.GroupVersion, document *AggregatedDocument) Changes {
	previous, known := l.aggregated[groupVersion]
	changes := Changes{}
	changes.add(slices.Collect(maps.Keys(previous.resources))...)
	switch {
	case document == nil && !known:
		return nil
	case document == nil:
		previous.gone = true
		l.aggregated[groupVersion] = previous
	case document.Failure != "":
		if previous.failure == "" {
			previous.failingSince = now
		}
		previous.failure, previous.gone = document.Failure, false
		l.aggregated[groupVersion] = previous
		return changes
	default:
		// A resource that is gone from the document keeps its place, for its objects may be stored all the same.
		resources := maps.Clone(document.Resources)
		for resource, before := range previous.resources {
			if _, served := resources[resource]; !served {
				before.Versions, before.Hash = nil, ""
				if resources == nil {
					resources = map[schema.GroupResource]Resource{}
				}
				resources[resource] = before
			}
		}
		l.aggregated[groupVersion] = aggregatedVersion{address: document.Address, looked: now, resources: resources}
		changes.add(slices.Collect(maps.Keys(resources))...)
	}
	for resource := range changes {
		l.noteAggregated(now, resource)
	}
	return changes
}

// noteAggregated adds a sighting if every group version that has the resource could be read.
func (l *Ledger) noteAggregated(now time.Time, resource schema.GroupResource) {
	if l.class(resource) != Aggregated || l.noteStorageVersion(now, resource, true) {
		return
	}
	evidence := migrationv1alpha1.StorageEvidence{Source: migrationv1alpha1.EvidenceFromAggregatedDiscovery}
	var writing []string
	for _, groupVersion := range l.aggregatedVersions() {
		version := l.aggregated[groupVersion]
		known, has := version.resources[resource]
		if !has {
			continue
		}
		if version.failure != "" {
			return
		}
		hash := known.Hash
		if version.gone {
			hash = ""
		}
		if hash != "" {
			writing = append(writing, hash)
		}
		// One service may serve several versions, and their documents are read one after the other.
		address := version.address + "/apis/" + groupVersion.String()
		address = address[max(0, len(address)-maxAddressLength):]
		evidence.Endpoints = append(evidence.Endpoints, migrationv1alpha1.EndpointEvidence{Address: address, StorageVersionHash: hash})
	}
	l.append(now, resource, Sighting{Evidence: evidence, Writing: sortedSet(writing)})
}

func (l *Ledger) observeAggregated(o *Observation) {
	o.Versions = map[string]string{}
	o.Presence = NotServed
	for _, groupVersion := range l.aggregatedVersions() {
		version := l.aggregated[groupVersion]
		known, has := version.resources[o.Resource]
		if !has {
			continue
		}
		o.Versions[Hash(groupVersion, known.Kind)] = groupVersion.String()
		if o.Looked.IsZero() || version.looked.Before(o.Looked) {
			o.Looked = version.looked
		}
		switch {
		case version.gone:
		case version.failure != "":
			o.Problem = version.problem(groupVersion)
		case len(known.Versions) > 0:
			o.Presence = Served
			o.Served = append(o.Served, groupVersion.Version)
		}
	}
	if o.Presence == NotServed && o.Problem != nil {
		o.Presence = PresenceUnknown
	}
	if _, published := l.storageVersions[o.Resource]; published && l.storageVersionsServed {
		o.Looked = o.Time
		l.addPublished(o)
	}
	sortVersions(o.Served)
}

func (v *aggregatedVersion) problem(groupVersion schema.GroupVersion) *Problem {
	return &Problem{
		Reason:  migrationv1alpha1.StateReasonDiscoveryFailed,
		Message: "the discovery document of " + groupVersion.String() + " could not be read through the aggregator: " + v.failure,
		Since:   v.failingSince,
	}
}

// aggregatedVersions returns them in order.
func (l *Ledger) aggregatedVersions() []schema.GroupVersion {
	return slices.SortedFunc(maps.Keys(l.aggregated), func(a, b schema.GroupVersion) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Version, b.Version))
	})
}
