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
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

func TestStorageVersions(t *testing.T) {
	publishing := func(hash string) Document {
		d := writes(hash)
		d.ServesStorageVersions = true
		return d
	}
	object := func(resourceVersion string, entries ...string) *StorageVersion {
		encodings := map[string]string{}
		for _, entry := range entries {
			identity, encoding, _ := strings.Cut(entry, "=")
			encodings[identity] = encoding
		}
		return &StorageVersion{UID: "u", ResourceVersion: resourceVersion, EncodingVersions: encodings}
	}
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.SetStorageVersion(s.tick(), "apps.deployments", object("1", "a=apps/v1beta1", "b=apps/v1beta1"), true)
	s.SetStorageVersion(s.tick(), "batch.jobs", object("2", "a=batch/v1", "b=batch/v1"), true)
	s.SetStorageVersionsWatched(s.tick(), true)
	s.looks(at(publishing(appsV1beta1), publishing(appsV1beta1)), "a/1", "b/1")
	expect(t, s, deployments, "", []string{appsV1beta1})

	t.Run("a restart that publishes the same is a sighting of another process", func(t *testing.T) {
		s.servers(true, "a/1", "b/2")
		expect(t, s, deployments, unseen, []string{appsV1beta1})
		s.looks(at(publishing(appsV1beta1), publishing(appsV1beta1)), "a/1", "b/2")
		expect(t, s, deployments, "", []string{appsV1beta1}, []string{appsV1beta1})
	})
	t.Run("a publication is a sighting", func(t *testing.T) {
		s.SetStorageVersion(s.tick(), "apps.deployments", object("3", "a=apps/v1beta1", "b=apps/v1"), true)
		expect(t, s, deployments, "", []string{appsV1beta1}, []string{appsV1beta1},
			sortedSet([]string{appsV1, appsV1beta1}))
	})
	t.Run("a server that publishes nothing has to be looked at", func(t *testing.T) {
		s.servers(true, "a/1", "b/2", "c/1")
		expect(t, s, jobs, unseen, []string{batchV1}, []string{batchV1})
		s.SetStorageVersion(s.tick(), "batch.jobs", object("4", "a=batch/v1", "b=batch/v1", "c=batch/v1"), true)
		s.looks(at(publishing(appsV1beta1), publishing(appsV1), publishing(appsV1)), "a/1", "b/2", "c/1")
		expect(t, s, jobs, "", []string{batchV1}, []string{batchV1}, []string{batchV1})
	})
	t.Run("documents that contradict a publication are believed as well", func(t *testing.T) {
		s := newStory()
		s.servers(true, "a/1")
		s.SetStorageVersion(s.tick(), "apps.deployments", object("1", "a=apps/v1beta1"), true)
		s.SetStorageVersionsWatched(s.tick(), true)
		s.looks(at(publishing(appsV1)), "a/1")
		expect(t, s, deployments, "", sortedSet([]string{appsV1, appsV1beta1}))
		s.SetStorageVersion(s.tick(), "apps.deployments", object("2", "a=apps/v1"), true)
		expect(t, s, deployments, "", sortedSet([]string{appsV1, appsV1beta1}), []string{appsV1})
	})
	t.Run("an entry that is missing is not what its server writes", func(t *testing.T) {
		s := newStory()
		s.servers(true, "a/1", "b/1", "c/1")
		s.SetStorageVersion(s.tick(), "apps.deployments", object("1", "b=apps/v1", "c=apps/v1"), true)
		s.SetStorageVersion(s.tick(), "batch.jobs", object("2", "a=batch/v1", "b=batch/v1", "c=batch/v1"), true)
		s.SetStorageVersionsWatched(s.tick(), true)
		s.looks(at(publishing(appsV1beta1), publishing(appsV1), publishing(appsV1)), "a/1", "b/1", "c/1")
		expect(t, s, deployments, "", sortedSet([]string{appsV1, appsV1beta1}))
		s.SetServers(s.tick(), processesOf([]string{"a/1", "b/1"}), true)
		if o := s.Observe(s.now, deployments); o.AllWrite(appsV1) {
			t.Errorf("all servers write v1: %+v", o)
		}
	})
	t.Run("servers that publish leave unnoticed only when it is certain that they were read", func(t *testing.T) {
		for _, certain := range []bool{true, false} {
			s := newStory()
			s.servers(true, "a/1", "b/1", "c/1")
			s.SetStorageVersion(s.tick(), "apps.deployments", object("1", "a=apps/v1", "b=apps/v1", "c=apps/v1"), true)
			s.SetStorageVersionsWatched(s.tick(), true)
			s.looks(at(publishing(appsV1), publishing(appsV1), publishing(appsV1)), "a/1", "b/1", "c/1")
			if certain {
				s.Confirm(s.tick())
			}
			s.SetServers(s.now, processesOf([]string{"a/1"}), true)
			o := s.Observe(s.now, deployments)
			last, _ := o.Last()
			if unnoticed := len(last.UnreadDeparted) == 0; unnoticed != certain {
				t.Errorf("certain: %v, left unread: %v", certain, last.UnreadDeparted)
			}
		}
	})
	t.Run("a server without the API leaves the entry of its predecessor", func(t *testing.T) {
		s := newStory()
		s.servers(true, "a/1", "b/1")
		s.SetStorageVersion(s.tick(), "apps.deployments", object("1", "a=apps/v1", "b=apps/v1"), true)
		s.SetStorageVersionsWatched(s.tick(), true)
		s.looks(at(publishing(appsV1), publishing(appsV1)), "a/1", "b/1")
		s.servers(true, "a/2", "b/1")
		s.looks(at(writes(appsV1beta1), publishing(appsV1)), "a/2", "b/1")
		expect(t, s, deployments, "", []string{appsV1}, sortedSet([]string{appsV1, appsV1beta1}))
	})
	t.Run("a look that is taken back does not show who publishes", func(t *testing.T) {
		s := newStory()
		s.servers(true, "a/1", "b/1")
		s.SetStorageVersion(s.tick(), "apps.deployments", object("1", "a=apps/v1", "b=apps/v1"), true)
		s.SetStorageVersionsWatched(s.tick(), true)
		s.shares("", at(publishing(appsV1), publishing(appsV1)), "a/1", "b/1")
		expect(t, s, deployments, "", []string{appsV1})
		// The look met c in the place of b, on which the API is off: b has the entry of its predecessor.
		s.SetServers(s.now.Add(time.Second), processesOf([]string{"a/1", "b/1", "c/1"}), true)
		s.SetServers(s.now.Add(2*time.Second), processesOf([]string{"a/1", "b/1"}), true)
		expect(t, s, deployments, unseen, []string{appsV1}, []string{appsV1})
	})
	t.Run("looks that contradict each other are repeated", func(t *testing.T) {
		// The first look may have met a server that had left its Lease in the place of c, on which the API is off: c has the
		// entry of its predecessor. Or the second one may have met such a server, and c has published v1beta1.
		s := newStory()
		s.servers(true, "b/1", "c/2")
		s.SetStorageVersion(s.tick(), "apps.deployments", object("1", "b=apps/v1", "c=apps/v1beta1"), true)
		s.SetStorageVersionsWatched(s.tick(), true)
		s.now = s.now.Add(2 * s.Ledger.servers.linger) // What left before the start does not answer any more.
		look := func(other Document, agree, again bool) {
			t.Helper()
			s.now = s.now.Add(s.Ledger.servers.linger + time.Second)
			s.shares("", at(publishing(appsV1), other), "b/1", "c/2")
			if o := s.Observe(s.now, deployments); o.AllWrite(appsV1) != agree || s.NeedsLook() != again {
				t.Errorf("agree: %v, look again: %v; want %v, %v: %+v", !agree, s.NeedsLook(), agree, again, o.Sightings)
			}
		}
		look(publishing(appsV1), false, false)
		look(writes(appsV1), false, true)
		look(publishing(appsV1), false, false)
		look(writes(appsV1), false, true)
		s.shares("", at(publishing(appsV1)), "b/1", "c/2")
		if s.NeedsLook() {
			t.Error("looks again although one of the addresses is gone")
		}
		look(writes(appsV1), true, false)
	})
	t.Run("a server whose address tells it need not be looked at again", func(t *testing.T) {
		s := newStory()
		s.servers(true, "b/1", "c/2")
		s.SetStorageVersion(s.tick(), "apps.deployments", object("1", "b=apps/v1", "c=apps/v1beta1"), true)
		s.SetStorageVersionsWatched(s.tick(), true)
		looksAt(s, map[string]Document{"of-b": publishing(appsV1), "of-c": publishing(appsV1)}, "b/1", "c/2")
		looksAt(s, map[string]Document{"of-b": publishing(appsV1), "of-c": writes(appsV1)}, "b/1", "c/2")
		if o := s.Observe(s.now, deployments); !o.AllWrite(appsV1) || s.NeedsLook() {
			t.Errorf("look again: %v, %+v", s.NeedsLook(), o.Sightings)
		}
	})
	t.Run("the address of a server that left does not say who publishes", func(t *testing.T) {
		s := newStory()
		s.servers(true, "a/1", "b/1")
		s.SetStorageVersion(s.tick(), "apps.deployments", object("1", "a=apps/v1", "b=apps/v1"), true)
		s.SetStorageVersionsWatched(s.tick(), true)
		documents := map[string]Document{"of-a": publishing(appsV1), "of-b": publishing(appsV1)}
		looksAt(s, documents, "a/1", "b/1")
		s.servers(true, "a/1")
		documents["of-b"] = Document{Failure: "connection refused"} // Its address stays listed for a while.
		looksAt(s, documents, "a/1")
		last, _ := lastOf(s.Observe(s.now, deployments).Sightings)
		if last.Evidence.Source != migrationv1alpha1.EvidenceFromStorageVersion {
			t.Errorf("a does not count as publishing: %+v", last)
		}
	})
	t.Run("what was published while nobody watched may be anything", func(t *testing.T) {
		s := newStory()
		s.servers(true, "a/1")
		s.SetStorageVersion(s.tick(), "apps.deployments", object("1", "a=apps/v1"), false)
		s.SetStorageVersionsWatched(s.tick(), true)
		s.looks(at(publishing(appsV1)), "a/1")
		recorded, _ := lastOf(s.Observe(s.now, deployments).Sightings)
		// A process has published v1beta1 meanwhile, and has ended before it had a Lease. The next one publishes v1 again.
		s.SetStorageVersion(s.tick(), "apps.deployments", object("3", "a=apps/v1"), false)
		later, known := SightingsSince(recorded.Evidence, s.Observe(s.now, deployments).Sightings)
		if !known || len(later) != 2 || len(later[0].UnreadDeparted) != 1 {
			t.Errorf("%v: %+v", known, later)
		}
	})
	t.Run("a server that does not serve the resource is in the evidence", func(t *testing.T) {
		evidence := func(c string) migrationv1alpha1.StorageEvidence {
			s, other := newStory(), publishing(appsV1)
			delete(other.Resources, deployments)
			s.servers(true, "a/1", c)
			s.SetStorageVersion(s.tick(), "apps.deployments", object("1", "a=apps/v1"), true)
			s.SetStorageVersion(s.tick(), "batch.jobs", object("2", "a=batch/v1", "c=batch/v1"), true)
			s.SetStorageVersionsWatched(s.tick(), true)
			s.looks(at(publishing(appsV1), other), "a/1", c)
			last, _ := lastOf(s.Observe(s.now, deployments).Sightings)
			return last.Evidence
		}
		if !Continues(evidence("c/1"), evidence("c/1")) || Continues(evidence("c/1"), evidence("c/3")) {
			t.Error("c/1 counts as the same process as c/3, and c/2 between them may have served and written anything")
		}
	})
	t.Run("nobody publishes what an aggregated server writes", func(t *testing.T) {
		s, gv := newStory(), schema.GroupVersion{Group: flunders.Group, Version: "v1"}
		s.servers(true, "a/1")
		s.SetStorageVersion(s.tick(), flunders.Group+".flunders", object("1", "a=wardle.example.com/v1alpha1"), true)
		s.SetStorageVersionsWatched(s.tick(), true)
		s.looks(at(publishing(appsV1)), "a/1")
		s.SetAggregated(s.tick(), gv, &AggregatedDocument{Resources: map[schema.GroupResource]Resource{
			flunders: {Kind: "Flunder", Versions: []string{"v1"}, Hash: flunderV1, Migratable: true},
		}})
		expect(t, s, flunders, "", []string{flunderV1})
	})
}
