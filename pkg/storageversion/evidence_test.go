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
	"fmt"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

func TestContinues(t *testing.T) {
	definition := func(uid string, generation int64) migrationv1alpha1.StorageEvidence {
		resource := Definition{
			UID: types.UID("u" + uid), Generation: generation, StorageVersion: "v1", StoredVersions: []string{"v1"},
		}
		return resource.sighting().Evidence
	}
	servers := func(names ...string) migrationv1alpha1.StorageEvidence {
		s := newStory()
		s.servers(true, names...)
		return s.Ledger.servers.evidence()
	}
	processes := func(version string, starts ...time.Duration) migrationv1alpha1.StorageEvidence {
		evidence := servers("a/1", "b/1")
		for i, after := range starts {
			document := Document{Version: version}
			if after >= 0 {
				document.Started = start.Add(after)
			}
			evidence.Endpoints = append(evidence.Endpoints, document.evidence(fmt.Sprintf("10.0.0.%d", i), appsV1))
		}
		return evidence
	}
	published := func(revision string, names ...string) migrationv1alpha1.StorageEvidence {
		evidence := servers(names...)
		evidence.Source = migrationv1alpha1.EvidenceFromStorageVersion
		evidence.StorageVersion = &migrationv1alpha1.StorageVersionEvidence{UID: "u", ResourceVersion: revision}
		return evidence
	}
	aggregated := migrationv1alpha1.StorageEvidence{Source: migrationv1alpha1.EvidenceFromAggregatedDiscovery}
	for name, tc := range map[string]struct {
		recorded, first migrationv1alpha1.StorageEvidence
		want            bool
	}{
		"a definition that did not change":        {definition("", 3), definition("", 3), true},
		"one change of a definition":              {definition("", 3), definition("", 4), true},
		"two changes may hide a version":          {definition("", 3), definition("", 5), false},
		"a definition that was created anew":      {definition("1", 1), definition("2", 1), false},
		"a generation that went back":             {definition("", 3), definition("", 2), false},
		"the same processes":                      {servers("a/1", "b/1"), servers("b/1", "a/1"), true},
		"another process":                         {servers("a/1", "b/1"), servers("a/1", "b/2"), false},
		"a process less":                          {servers("a/1", "b/1"), servers("a/1"), false},
		"processes that Leases identify":          {processes("v1.35.0", 0, 0), processes("v1.35.0", 1, -1), true},
		"the same start times":                    {processes("v1.34.4", 0, 1e3), processes("v1.34.4", 0, 1e3), true},
		"a process that started later":            {processes("v1.34.4", 0, 1e3), processes("v1.34.4", 0, 2e3), false},
		"a start time that nobody knows":          {processes("v1.34.4", 0, -1), processes("v1.34.4", 0, -1), false},
		"a start time, and a version, to ask for": {processes("", 0, 1e3), processes("", 0, 1e3), true},
		"an address less":                         {processes("v1.34.4", 0, 1e3), processes("v1.34.4", 0), false},
		"an upgrade under the same Leases":        {processes("v1.34.4", 0, 1e3), processes("v1.35.0", 0, 1e3), false},
		"the same publication":                    {published("1", "a/1"), published("1", "a/1"), true},
		"another publication":                     {published("1", "a/1"), published("2", "a/1"), false},
		"it may have been off in between":         {published("1", "a/1"), published("1", "a/2"), false},
		"processes without Leases prove nothing":  {servers(), servers(), false},
		"another source":                          {servers("a/1"), definition("", 1), false},
		"aggregated servers have no incarnations": {aggregated, aggregated, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Continues(tc.recorded, tc.first); got != tc.want {
				t.Errorf("Continues: got %v, want %v", got, tc.want)
			}
		})
	}
}

// TestSightingsSinceRecordOfAnotherProcess has a standby lead that has observed for a while.
func TestSightingsSinceRecordOfAnotherProcess(t *testing.T) {
	servers := func(names ...string) migrationv1alpha1.StorageEvidence {
		s := newStory()
		s.servers(true, names...)
		return s.Ledger.servers.evidence()
	}
	definition := func(generation int64, stored ...string) migrationv1alpha1.StorageEvidence {
		resource := Definition{UID: "u", Generation: generation, StorageVersion: "v1", StoredVersions: stored}
		return resource.sighting().Evidence
	}
	published := func(revision string, evidence migrationv1alpha1.StorageEvidence) migrationv1alpha1.StorageEvidence {
		evidence.Source = migrationv1alpha1.EvidenceFromStorageVersion
		evidence.StorageVersion = &migrationv1alpha1.StorageVersionEvidence{UID: "u", ResourceVersion: revision}
		evidence.Servers = slices.Clone(evidence.Servers)
		for i := range evidence.Servers {
			evidence.Servers[i].StorageVersionHash = appsV1
		}
		return evidence
	}
	aggregated := func(hash string) migrationv1alpha1.StorageEvidence {
		return migrationv1alpha1.StorageEvidence{
			Source:    migrationv1alpha1.EvidenceFromAggregatedDiscovery,
			Endpoints: []migrationv1alpha1.EndpointEvidence{{Address: "s:443", StorageVersionHash: hash}},
		}
	}
	for name, tc := range map[string]struct {
		recorded migrationv1alpha1.StorageEvidence
		seen     []migrationv1alpha1.StorageEvidence
		later    int
	}{
		"the first sighting": {servers("a/1"), []migrationv1alpha1.StorageEvidence{servers("a/1"), servers("a/1", "c/1")}, 1},
		"a server that has left again may have come after the record": {
			servers("a/1"), []migrationv1alpha1.StorageEvidence{servers("a/1", "c/1"), servers("a/1")}, 2},
		"a process that came later was recorded later": {
			servers("a/2"), []migrationv1alpha1.StorageEvidence{servers("a/1"), servers("a/2")}, 0},
		"a published record": {published("1", servers("a/1")),
			[]migrationv1alpha1.StorageEvidence{servers("a/1", "c/1"), published("1", servers("a/1"))}, 2},
		"a generation that came later": {
			definition(6, "v1"), []migrationv1alpha1.StorageEvidence{definition(5, "v1"), definition(6, "v1")}, 0},
		"a stored version that a migration has removed": {
			definition(5, "v1"), []migrationv1alpha1.StorageEvidence{definition(5, "v1", "v2"), definition(5, "v1")}, 0},
		"the connecting sighting is not the first": {definition(5, "v1", "v3"),
			[]migrationv1alpha1.StorageEvidence{definition(4, "v1"), definition(5, "v1")}, 1},
		"an aggregated server that has changed back": {
			aggregated("v1"), []migrationv1alpha1.StorageEvidence{aggregated("v2"), aggregated("v1")}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var all []Sighting
			for i, evidence := range tc.seen {
				evidence.FirstObservedTime = &metav1.Time{Time: start.Add(time.Duration(i) * time.Minute)}
				all = append(all, Sighting{Evidence: evidence})
			}
			tc.recorded.FirstObservedTime = &metav1.Time{Time: start.Add(time.Hour)} // by another clock
			if later, known := SightingsSince(tc.recorded, all); len(later) != tc.later || !known {
				t.Errorf("%d later sightings, known %t, want %d", len(later), known, tc.later)
			}
		})
	}
}

// TestServerWithoutALease has one server with a Lease and one without. Nobody knows which processes the second one had
// while nobody watched.
func TestServerWithoutALease(t *testing.T) {
	document := writes(appsV1)
	document.ServesStorageVersions = true
	for source, publishes := range map[migrationv1alpha1.EvidenceSource]bool{
		migrationv1alpha1.EvidenceFromServerDiscovery: false,
		migrationv1alpha1.EvidenceFromStorageVersion:  true,
	} {
		for documents, durable := range map[int]bool{1: true, 2: false} {
			s := newStory()
			s.servers(true, "a/1")
			if publishes {
				s.SetStorageVersion(s.tick(), "apps.deployments", &StorageVersion{
					UID: "u", ResourceVersion: "1", EncodingVersions: map[string]string{"a": "apps/v1", "gone": "apps/v1"},
				}, true)
				s.SetStorageVersionsWatched(s.tick(), true)
			}
			s.looks(at([]Document{document, document}[:documents]...), "a/1")
			o := s.Observe(s.now.Add(time.Hour), deployments)
			if read := o.ReadAt.Equal(o.Time); read != (publishes && durable) {
				t.Errorf("%d servers: read now is %v, by %s", documents, read, source)
			}
			last, _ := lastOf(o.Sightings)
			if got := Durable(last.Evidence); got != durable || last.Evidence.Source != source {
				t.Errorf("%d servers, of which one has a Lease: durable is %v, by %s", documents, got, last.Evidence.Source)
			}
		}
	}
}

// TestChangedServer wants a record of a source that this release does not know to stand for other servers.
func TestChangedServer(t *testing.T) {
	from := func(source migrationv1alpha1.EvidenceSource, services ...string) migrationv1alpha1.StorageEvidence {
		evidence := migrationv1alpha1.StorageEvidence{Source: source}
		for _, service := range services {
			evidence.Endpoints = append(evidence.Endpoints, endpoint(service, schema.GroupVersion{Version: "v1"}, appsV1))
		}
		return evidence
	}
	const (
		aggregated = migrationv1alpha1.EvidenceFromAggregatedDiscovery
		definition = migrationv1alpha1.EvidenceFromCustomResourceDefinition
		published  = migrationv1alpha1.EvidenceFromStorageVersion
		discovered = migrationv1alpha1.EvidenceFromServerDiscovery
	)
	for name, test := range map[string]struct {
		recorded, now migrationv1alpha1.StorageEvidence
		want          bool
	}{
		"the same service":            {from(aggregated, "a", "b"), from(aggregated, "b"), false},
		"another service":             {from(aggregated, "a"), from(aggregated, "b"), true},
		"a definition":                {from(definition), from(definition), false},
		"a server took it over":       {from(definition), from(aggregated, "a"), true},
		"a server handed it over":     {from(aggregated, "a"), from(discovered), true},
		"servers began to publish":    {from(discovered), from(published), false},
		"a source of a later release": {from("Keys"), from(definition), true},
	} {
		if got := ChangedServer(test.recorded, test.now); got != test.want {
			t.Errorf("%s: %t, want %t", name, got, test.want)
		}
	}
}
