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
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestAggregatedResource(t *testing.T) {
	v1 := schema.GroupVersion{Group: "wardle.example.com", Version: "v1"}
	document := &AggregatedDocument{Address: "wardle/api:443", Resources: map[schema.GroupResource]Resource{
		flunders: {Kind: "Flunder", Versions: []string{"v1"}, Hash: flunderV1, Migratable: true},
	}}
	s := newStory()
	s.servers(true, "a/1")
	s.looks(at(writes(appsV1)), "a/1")
	s.SetAggregated(s.tick(), v1, document)
	read := s.now
	expect(t, s, flunders, "", []string{flunderV1})
	s.SetAggregated(s.tick(), v1, &AggregatedDocument{Address: "wardle/api:443", Failure: "service unavailable"})
	expect(t, s, flunders, failed, []string{flunderV1})
	if o := s.Observe(s.now, flunders); o.Presence != PresenceUnknown || o.ReadAt != read {
		t.Errorf("unexpected observation %+v", o)
	}
	s.SetAggregated(s.tick(), v1, &AggregatedDocument{Address: "wardle/api:443"})
	if o := s.Observe(s.now, flunders); o.Presence != NotServed || o.Problem != nil {
		t.Errorf("unexpected observation %+v", o)
	}
	s.SetAggregated(s.tick(), v1, document)
	s.SetAggregated(s.tick(), v1, nil)
	if o := s.Observe(s.now, flunders); o.Presence != NotServed || o.Problem != nil {
		t.Errorf("unexpected observation %+v", o)
	}
}

// TestAggregatedVersionThatIsWithdrawn is not read any more. The other version tells when the resource was read.
func TestAggregatedVersionThatIsWithdrawn(t *testing.T) {
	v1 := schema.GroupVersion{Group: "wardle.example.com", Version: "v1"}
	v2 := schema.GroupVersion{Group: "wardle.example.com", Version: "v2"}
	document := &AggregatedDocument{Address: "wardle/api:443", Resources: map[schema.GroupResource]Resource{
		flunders: {Kind: "Flunder", Versions: []string{"v1", "v2"}, Hash: flunderV1, Migratable: true},
	}}
	s := newStory()
	s.SetAggregated(s.tick(), v1, document)
	s.SetAggregated(s.tick(), v2, document)
	s.SetAggregated(s.tick(), v1, nil)
	s.SetAggregated(s.tick(), v2, document)
	if o := s.Observe(s.now, flunders); o.Presence != Served || o.ReadAt != s.now {
		t.Errorf("read at %v, want %v", o.ReadAt, s.now)
	}
	// Somebody may be replacing the APIService. What was read a moment ago is not forgotten meanwhile.
	read := s.now
	s.SetAggregated(s.tick(), v2, nil)
	if o := s.Observe(s.now, flunders); o.Presence != NotServed || o.ReadAt.IsZero() || o.ReadAt.After(read) {
		t.Errorf("read at %v, want what was read until %v", o.ReadAt, read)
	}
}

func TestAggregatedResourceWithReplicasThatNobodyAsked(t *testing.T) {
	v1 := schema.GroupVersion{Group: "wardle.example.com", Version: "v1"}
	document := AggregatedDocument{Address: "wardle/api:443", Resources: map[schema.GroupResource]Resource{
		flunders: {Kind: "Flunder", Versions: []string{"v1"}, Hash: flunderV1, Migratable: true},
	}}
	partial := document
	partial.WhyReplicasDiffer = "two replicas may differ"
	s := newStory()
	some := []string{Unknown, flunderV1}
	s.SetAggregated(s.tick(), v1, &partial)
	expect(t, s, flunders, unseen, some)
	if o := s.Observe(s.now, flunders); o.Presence != Served || !o.ReadAt.IsZero() || !o.Problem.Since.Equal(s.now) {
		t.Errorf("unexpected observation %+v", o)
	}
	s.SetAggregated(s.tick(), v1, &document)
	read := s.now
	expect(t, s, flunders, "", some, []string{flunderV1})
	s.SetAggregated(s.tick(), v1, &partial)
	expect(t, s, flunders, unseen, some, []string{flunderV1}, some)
	s.SetAggregated(s.tick(), v1, &AggregatedDocument{Address: "wardle/api:443", Failure: "service unavailable"})
	expect(t, s, flunders, failed, some, []string{flunderV1}, some)
	if o := s.Observe(s.now, flunders); !o.ReadAt.Equal(read) || !o.Problem.Since.Equal(read.Add(confirmAfter)) {
		t.Errorf("unexpected observation %+v", o)
	}
}

// TestRolloutOfAnAggregatedServerThatFails has a rollout that is taken back. A document cannot be read as long as it
// lasts, so no look is complete.
func TestRolloutOfAnAggregatedServerThatFails(t *testing.T) {
	v1 := schema.GroupVersion{Group: "wardle.example.com", Version: "v1"}
	v2 := schema.GroupVersion{Group: "wardle.example.com", Version: "v2"}
	document := AggregatedDocument{Address: "wardle/api:443", Resources: map[schema.GroupResource]Resource{
		flunders: {Kind: "Flunder", Versions: []string{"v1", "v2"}, Hash: flunderV1, Migratable: true},
	}}
	partial := document
	partial.WhyReplicasDiffer = "two replicas may differ"
	failed := AggregatedDocument{Address: document.Address, Failure: "503"}
	failedPartial := failed
	failedPartial.WhyReplicasDiffer = partial.WhyReplicasDiffer
	type look struct {
		version  schema.GroupVersion
		document *AggregatedDocument
	}
	for name, looks := range map[string][]look{
		"another version cannot be read": {{v2, &failed}, {v1, &partial}, {v1, &document}, {v2, &document}},
		"the version cannot be read":     {{v1, &failedPartial}, {v1, &document}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory()
			for _, look := range append([]look{{v1, &document}, {v2, &document}}, looks...) {
				s.SetAggregated(s.tick(), look.version, look.document)
			}
			one := []string{flunderV1}
			expect(t, s, flunders, "", one, one, []string{Unknown, flunderV1}, one)
		})
	}
}

// TestAggregatedServerInFrontOfADefinition has an APIService hand a version of a custom resource to another server.
// From then on requests go there, whether or not the document of that server can be read. So a migration that runs must
// not go on when the APIService is gone.
func TestAggregatedServerInFrontOfADefinition(t *testing.T) {
	v1 := schema.GroupVersion{Group: widgets.Group, Version: "v1"}
	const address = "other/api:443"
	served := Resource{Kind: "Widget", Versions: []string{"v1"}, Hash: widgetV1, Migratable: true}
	one, both := []string{widgetV1}, []string{Unknown, widgetV1}
	for name, documents := range map[string][]*AggregatedDocument{
		"read": {{Address: address, Failure: "nobody has asked for it yet"},
			{Address: address, Resources: map[schema.GroupResource]Resource{widgets: served}}},
		"of other resources": {{Address: address}},
		"never read":         {{Address: address, Failure: "503"}, {Address: address, Failure: "503"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory()
			s.SetDefinition(s.tick(), widgets, widget(1, "v1", "v1"))
			s.SetAggregated(s.tick(), v1, nil) // There never was another server.
			expect(t, s, widgets, "", one)
			since := s.now.Add(confirmAfter)
			for _, document := range documents {
				if changed := s.SetAggregated(s.tick(), v1, document); !changed.Has(widgets) {
					t.Errorf("nobody hears of it: %v", changed)
				}
			}
			expect(t, s, widgets, unseen, one, both)
			if o := s.Observe(s.now, widgets); !o.Problem.Since.Equal(since) {
				t.Errorf("the problem is since %v, want %v", o.Problem.Since, since)
			}
			s.SetAggregated(s.tick(), v1, nil)
			expect(t, s, widgets, "", one, both, one)
		})
	}
}

// TestAggregatedServerBesideADefinition has an aggregated server serve another version of the group. If it has a
// resource of the same name, that is in another storage, of which nobody keeps a record.
func TestAggregatedServerBesideADefinition(t *testing.T) {
	v3 := schema.GroupVersion{Group: widgets.Group, Version: "v3"}
	resources := map[schema.GroupResource]Resource{widgets: {Kind: "Widget", Versions: []string{"v3"}, Hash: "v3="}}
	others := map[schema.GroupResource]Resource{{Group: widgets.Group, Resource: "gadgets"}: resources[widgets]}
	had := map[schema.GroupResource]Resource{widgets: {Kind: "Widget", Hash: "v3="}}
	one, both := []string{widgetV1}, []string{Unknown, widgetV1}
	for _, test := range []struct {
		name     string
		document AggregatedDocument
		problem  string
		want     [][]string
	}{
		{"it has the resource", AggregatedDocument{Resources: resources}, unseen, [][]string{one, both}},
		{"it has another one", AggregatedDocument{Resources: others}, "", [][]string{one}},
		{"it had the resource", AggregatedDocument{Resources: had}, "", [][]string{one}},
		{"it is away", AggregatedDocument{Failure: "503"}, "", [][]string{one}},
	} {
		s := newStory()
		s.SetDefinition(s.tick(), widgets, widget(1, "v1", "v1"))
		test.document.Address = "other/api:443"
		s.SetAggregated(s.tick(), v3, &test.document)
		t.Log(test.name)
		expect(t, s, widgets, test.problem, test.want...)
	}
}

// TestAggregatedServerInFrontOfADefinitionFromTheStart has a process that begins to observe while the APIService is
// there. Its first sighting is another one than that of a process before the APIService came.
func TestAggregatedServerInFrontOfADefinitionFromTheStart(t *testing.T) {
	before, s := newStory(), newStory()
	before.SetDefinition(before.tick(), widgets, widget(1, "v1", "v1"))
	recorded, _ := lastOf(before.Observe(before.now, widgets).Sightings)
	s.SetAggregated(s.tick(), schema.GroupVersion{Group: widgets.Group, Version: "v1"},
		&AggregatedDocument{Address: "other/api:443", Failure: "503"})
	s.SetDefinition(s.tick(), widgets, widget(1, "v1", "v1"))
	later, known := SightingsSince(recorded.Evidence, s.Observe(s.now, widgets).Sightings)
	if !known || len(later) != 1 || later[0].ProvesOnly(widgetV1) {
		t.Errorf("got %v %+v, want the sighting of the other server", known, later)
	}
}

// TestAggregatedResourceOfAnotherServer has an APIService lead to another server, which writes the same encoding. That
// server may have a storage of its own, with objects that nobody has migrated.
func TestAggregatedResourceOfAnotherServer(t *testing.T) {
	v1 := schema.GroupVersion{Group: "wardle.example.com", Version: "v1"}
	document := func(address string) *AggregatedDocument {
		return &AggregatedDocument{Address: address, Resources: map[schema.GroupResource]Resource{
			flunders: {Kind: "Flunder", Versions: []string{"v1"}, Hash: flunderV1, Migratable: true},
		}}
	}
	const blue, green, unread = "wardle/blue:443", "wardle/green:443", "nobody has asked for it yet"
	one, none := []string{flunderV1}, []string(nil)
	for name, want := range map[string][][]string{
		"at once":                            {one, {Unknown, flunderV1}, one},
		"after a time without an APIService": {one, none, {Unknown}, one},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory()
			s.SetAggregated(s.tick(), v1, document(blue))
			if len(want) > 3 {
				s.SetAggregated(s.tick(), v1, nil)
			}
			s.SetAggregated(s.tick(), v1, &AggregatedDocument{Address: green, Failure: unread})
			s.SetAggregated(s.tick(), v1, document(green))
			expect(t, s, flunders, "", want...)
			s.SetAggregated(s.tick(), v1, nil)
			s.SetAggregated(s.tick(), v1, &AggregatedDocument{Address: green, Failure: unread})
			s.SetAggregated(s.tick(), v1, document(green))
			expect(t, s, flunders, "", append(want, none, one)...)
		})
	}
}

// TestAggregatedResourceInALook has kube-apiserver list what an APIService hands to an aggregated server, before the
// APIService is known, and while it is.
func TestAggregatedResourceInALook(t *testing.T) {
	v1 := schema.GroupVersion{Group: "wardle.example.com", Version: "v1"}
	flunder := func(hash Encoding) map[schema.GroupResource]Resource {
		return map[schema.GroupResource]Resource{
			flunders: {Kind: "Flunder", Versions: []string{"v1"}, Hash: hash, Migratable: true},
		}
	}
	document := func(hash Encoding) Document {
		d := writes(appsV1)
		maps.Copy(d.Resources, flunder(hash))
		return d
	}
	s := newStory()
	s.servers(true, "a/1")
	s.looks(at(document(flunderV1)), "a/1")
	s.SetAggregated(s.tick(), v1, &AggregatedDocument{Address: "wardle/api:443", Resources: flunder("v2=")})
	expect(t, s, flunders, "", []string{"v2="})
	s.looks(at(document(flunderV1)), "a/1") // which began before
	expect(t, s, flunders, "", []string{"v2="})
	if o := s.Observe(s.now, flunders); o.Class != Aggregated || o.Presence != Served {
		t.Errorf("unexpected observation %+v", o)
	}
	expect(t, s, deployments, "", []string{appsV1})
}

// TestAggregatedResourceWithoutItsHash has a server that stops to say what it writes.
func TestAggregatedResourceWithoutItsHash(t *testing.T) {
	v1 := schema.GroupVersion{Group: "wardle.example.com", Version: "v1"}
	s := newStory()
	document := &AggregatedDocument{Address: "wardle/api:443", Resources: map[schema.GroupResource]Resource{
		flunders: {Kind: "Flunder", Versions: []string{"v1"}, Hash: flunderV1, Migratable: true},
	}}
	s.SetAggregated(s.tick(), v1, document)
	expect(t, s, flunders, "", []string{flunderV1})
	reviews := schema.GroupResource{Group: v1.Group, Resource: "reviews"} // which has never had one
	s.SetAggregated(s.tick(), v1, &AggregatedDocument{
		Address: "wardle/api:443", Resources: map[schema.GroupResource]Resource{
			flunders: {Kind: "Flunder", Versions: []string{"v1"}, Migratable: true},
			reviews:  {Kind: "Review", Versions: []string{"v1"}, Migratable: true},
		},
	})
	expect(t, s, flunders, unseen, []string{flunderV1}, []string{Unknown})
	if o := s.Observe(s.now, flunders); o.Presence != Served {
		t.Errorf("unexpected observation %+v", o)
	}
	if slices.Contains(s.Resources(), reviews) {
		t.Errorf("resources that are not stored are observed: %v", s.Resources())
	}
}

// TestNewAPIServiceOfAKnownGroup adds a version to a group. What serves it may write something else, unless it is the
// server that is known.
func TestNewAPIServiceOfAKnownGroup(t *testing.T) {
	v1 := schema.GroupVersion{Group: "wardle.example.com", Version: "v1"}
	v2 := schema.GroupVersion{Group: "wardle.example.com", Version: "v2"}
	document := &AggregatedDocument{Address: "wardle/api:443", Resources: map[schema.GroupResource]Resource{
		flunders: {Kind: "Flunder", Versions: []string{"v1"}, Hash: flunderV1, Migratable: true},
	}}
	s := newStory()
	s.SetAggregated(s.tick(), v2, &AggregatedDocument{Address: "wardle/new:443", Failure: "nobody has asked for it yet"})
	s.SetAggregated(s.tick(), v1, document)
	expect(t, s, flunders, failed) // Otherwise each start of a manager would cost a migration.
	s.SetAggregated(s.tick(), v2, &AggregatedDocument{Address: "wardle/new:443"})
	expect(t, s, flunders, "", []string{flunderV1})

	s = newStory()
	s.SetAggregated(s.tick(), v1, document)
	s.SetAggregated(s.tick(), v2, &AggregatedDocument{Address: "wardle/api:443", Failure: "503"})
	expect(t, s, flunders, "", []string{flunderV1})
	s.SetAggregated(s.tick(), v2, &AggregatedDocument{Address: "wardle/new:443", Failure: "503"})
	s.SetAggregated(s.tick(), v1, document)
	unread := []string{Unknown, flunderV1}
	expect(t, s, flunders, failed, []string{flunderV1}, unread)
	s.SetAggregated(s.tick(), v2, &AggregatedDocument{Address: "wardle/new:443"}) // It has other resources only.
	expect(t, s, flunders, "", []string{flunderV1}, unread, []string{flunderV1})
}
