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
)

// TestStandbyThatMissedASighting has a leader record what its standby cannot read. Then the leader ends, and a third
// server comes and leaves. Afterwards the standby sees the same evidence as the record has.
func TestStandbyThatMissedASighting(t *testing.T) {
	all := map[string]Document{"of-a": writes(appsV1), "of-b": writes(appsV1)}
	leader := newStory()
	leader.servers(true, "a/1", "b/1")
	looksAt(leader, all, "a/1", "b/1")
	leader.servers(true, "a/1", "b/2")
	looksAt(leader, all, "a/1", "b/2")
	recorded, _ := lastOf(leader.Observe(leader.now, deployments).Sightings)
	for name, ofC := range map[string]Document{"c was read": writes(appsV1beta1), "c left unread": {Failure: "timeout"}} {
		standby := newStory()
		standby.now = standby.now.Add(time.Hour)
		standby.servers(true, "a/1", "b/1")
		looksAt(standby, all, "a/1", "b/1")
		standby.servers(true, "a/1", "b/2")
		looksAt(standby, map[string]Document{"of-a": writes(appsV1), "of-b": {Failure: "timeout"}}, "a/1", "b/2")
		standby.servers(true, "a/1", "b/2", "c/1")
		three := map[string]Document{"of-a": writes(appsV1), "of-b": writes(appsV1), "of-c": ofC}
		looksAt(standby, three, "a/1", "b/2", "c/1")
		standby.servers(true, "a/1", "b/2")
		looksAt(standby, all, "a/1", "b/2")
		later, known := SightingsSince(recorded.Evidence, standby.Observe(standby.now, deployments).Sightings)
		if known && !slices.ContainsFunc(later, func(s Sighting) bool { return !s.ProvesOnly(appsV1) }) {
			t.Errorf("%s: nothing tells of c in the %d sightings since the record", name, len(later))
		}
	}
}

// TestStandbyThatSawAMigration has a leader migrate a custom resource and prune its definition. Then a standby takes
// over, which saw all that a second later.
func TestStandbyThatSawAMigration(t *testing.T) {
	v1 := schema.GroupVersion{Group: widgets.Group, Version: "v1"}
	for name, test := range map[string]struct {
		before func(s *story) // while the old version is still stored
		later  int            // how many sightings are news
	}{
		"nothing else happened": {func(*story) {}, 0},
		"a server came back that may write the old version": {func(s *story) {
			s.servers(true, "a/1", "b/1")
			s.servers(true, "a/1")
			s.servers(true, "a/1", "b/1")
		}, 3},
		"another server was in front of the definition": {func(s *story) {
			s.SetAggregated(s.tick(), v1, &AggregatedDocument{Address: "s.ns.svc:443"})
			s.SetAggregated(s.tick(), v1, nil)
		}, 3},
		"so often that sightings were merged": {func(s *story) {
			for range maxSightings {
				s.SetAggregated(s.tick(), v1, &AggregatedDocument{Address: "s.ns.svc:443"})
				s.SetAggregated(s.tick(), v1, nil)
			}
		}, maxSightings - 1},
	} {
		s := newStory()
		s.SetDefinition(s.tick(), widgets, widget(2, "v2", "v1", "v2"))
		test.before(s)
		s.SetDefinition(s.tick(), widgets, widget(2, "v2", "v2"))
		row := s.Observe(s.now, widgets).Sightings
		last, _ := lastOf(row)
		last.Evidence.FirstObservedTime = &metav1.Time{Time: s.now.Add(-time.Second)}
		if later, known := SightingsSince(last.Evidence, row); len(later) != test.later || !known {
			t.Errorf("%s: %d of %d sightings are news, want %d", name, len(later), len(row), test.later)
		}
	}
}

// TestManySightings has more sightings than are kept before a state can be written again. The evidence of the record is
// seen many times.
func TestManySightings(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	looksAt(s, map[string]Document{"of-a": writes(appsV1)}, "a/1")
	recorded, _ := lastOf(s.Observe(s.now, deployments).Sightings)
	hash := appsV1beta1
	for i := range maxSightings {
		process := fmt.Sprintf("c/%d", i)
		s.servers(true, "a/1", process)
		looksAt(s, map[string]Document{"of-a": writes(appsV1), "of-c": writes(hash)}, "a/1", process)
		s.servers(true, "a/1")
		looksAt(s, map[string]Document{"of-a": writes(appsV1)}, "a/1")
		hash = appsV1
	}
	row := s.Observe(s.now, deployments).Sightings
	if len(row) != maxSightings {
		t.Errorf("%d sightings are kept", len(row))
	}
	later, known := SightingsSince(recorded.Evidence, row)
	if known && !slices.ContainsFunc(later, func(s Sighting) bool { return slices.Contains(s.Writing, appsV1beta1) }) {
		t.Errorf("what the first one wrote is forgotten, %d sightings since the record", len(later))
	}
}

// TestManyDepartures has many processes leave that nobody has read. The first of them count as Unknown in the end.
func TestManyDepartures(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	looksAt(s, map[string]Document{"of-a": writes(appsV1)}, "a/1")
	recorded, _ := lastOf(s.Observe(s.now, deployments).Sightings)
	for i := range 2 * maxSightings {
		s.servers(true, "a/1", fmt.Sprintf("c/%d", i))
		s.servers(true, "a/1")
	}
	row := s.Observe(s.now, deployments).Sightings
	later, known := SightingsSince(recorded.Evidence, row)
	if len(row) != maxSightings || !known || !slices.Contains(later[0].Writing, Unknown) {
		t.Errorf("%d sightings are kept, and the first since the record is %+v", len(row), later[:1])
	}
}

// TestAggregatedServerInFrontOfABuiltIn has an APIService hand the version of a built-in resource to another server for
// a while. What a migration was told by that server says nothing about the objects of kube-apiserver. So nobody may
// rely on a record of before, also if nobody has recorded anything in between.
func TestAggregatedServerInFrontOfABuiltIn(t *testing.T) {
	gv := schema.GroupVersion{Group: deployments.Group, Version: "v1"}
	const address = "s.ns.svc:443"
	local := Resource{Kind: "Deployment", Versions: []string{"v1"}, Hash: appsV1, Migratable: true}
	with, without := writes(appsV1), writes(appsV1)
	with.Resources = map[schema.GroupResource]Resource{deployments: local}
	without.Resources = nil
	for name, documents := range map[string][]*AggregatedDocument{
		"read": {{Address: address, Failure: "nobody has asked for it yet"},
			{Address: address, Resources: map[schema.GroupResource]Resource{deployments: local}}},
		"of other resources": {{Address: address}},
		"never read":         {{Address: address, Failure: "503"}},
	} {
		s := newStory()
		s.servers(true, "a/1")
		looksAt(s, map[string]Document{"of-a": with}, "a/1")
		s.servers(true, "a/2") // A server was replaced before.
		looksAt(s, map[string]Document{"of-a": with}, "a/2")
		recorded, _ := lastOf(s.Observe(s.now, deployments).Sightings)
		for i, document := range documents {
			changed := s.SetAggregated(s.tick(), gv, document)
			if o := s.Observe(s.now, deployments); !changed.Has(deployments) || o.Class == BuiltIn && o.Problem == nil {
				t.Errorf("%s, document %d: nobody hears that nobody reaches the objects: %v", name, i, o.Problem)
			}
		}
		looksAt(s, map[string]Document{"of-a": without}, "a/2")
		if o := s.Observe(s.now, deployments); o.Class == BuiltIn && o.Problem == nil {
			t.Errorf("%s: nobody reaches the objects, and the observation is %+v", name, o)
		}
		s.SetAggregated(s.tick(), gv, nil)
		looksAt(s, map[string]Document{"of-a": with}, "a/2")
		o := s.Observe(s.now, deployments)
		later, known := SightingsSince(recorded.Evidence, o.Sightings)
		if !known || !slices.ContainsFunc(later, func(s Sighting) bool { return slices.Contains(s.Writing, Unknown) }) {
			t.Errorf("%s: the record of before counts: %t, %+v", name, known, o.Sightings)
		}
		if last, _ := o.Last(); o.Problem != nil || !last.ProvesOnly(appsV1) {
			t.Errorf("%s: the APIService is gone, and the problem is %v, the last sighting %+v", name, o.Problem, last)
		}
	}
}

// TestBuiltInThatComesBack has an aggregated server take a built-in resource over for a while. A record of its objects
// says nothing about those of kube-apiserver.
func TestBuiltInThatComesBack(t *testing.T) {
	s, gv := newStory(), schema.GroupVersion{Group: deployments.Group, Version: "v1"}
	document := writes(appsV1)
	local := document.Resources[deployments]
	local.Versions = []string{"v1"}
	document.Resources[deployments] = local
	s.servers(true, "a/1")
	looksAt(s, map[string]Document{"of-a": document}, "a/1")
	s.SetAggregated(s.tick(), gv, &AggregatedDocument{
		Address: "s.ns.svc:443", Resources: map[schema.GroupResource]Resource{deployments: local},
	})
	recorded, _ := lastOf(s.Observe(s.now, deployments).Sightings)
	s.SetAggregated(s.tick(), gv, nil)
	looksAt(s, map[string]Document{"of-a": document}, "a/1")
	o := s.Observe(s.now, deployments)
	_, known := SightingsSince(recorded.Evidence, o.Sightings)
	if known || o.Class != BuiltIn || !fromAggregated(recorded.Evidence) {
		t.Errorf("it is %q, and the record of %s counts: %v", o.Class, recorded.Evidence.Source, known)
	}
}
