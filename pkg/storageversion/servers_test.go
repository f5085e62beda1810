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
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
)

func TestServerThatLeftUnseenMayHaveWrittenAnything(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	s.looks(at(writes(appsV1)), "a/1")
	s.servers(true, "a/1", "b/1")
	s.servers(true, "a/1")
	expect(t, s, deployments, "", []string{appsV1}, []string{appsV1}, []string{appsV1})
	unread := s.Observe(s.now, deployments).Sightings[1].UnreadDeparted
	if !slices.Equal(unread, processesOf([]string{"b/1"})) {
		t.Errorf("unread: got %v, want b/1", unread)
	}
}

func TestLookMayHaveMetTheSuccessor(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	s.looks(at(writes(appsV1)), "a/1")
	s.SetServers(s.now.Add(time.Second), processesOf([]string{"a/2"}), true)
	expect(t, s, deployments, unseen, []string{appsV1}, []string{appsV1})
	// The look was recorded as one at a/1, which must not make a/1 one that was read.
	unread := s.Observe(s.now, deployments).Sightings[1].UnreadDeparted
	if !slices.Equal(unread, processesOf([]string{"a"})) {
		t.Errorf("unread: got %v, want a, without an incarnation", unread)
	}
}

func TestServerThatLeftBeforeTheFirstLook(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.servers(true, "a/1")
	s.looks(at(writes(appsV1), writes(appsV1)), "a/1")
	expect(t, s, deployments, "", nil, []string{appsV1})
	unread := s.Observe(s.now, deployments).Sightings[0].UnreadDeparted
	if !slices.Equal(unread, processesOf([]string{"b/1"})) {
		t.Errorf("unread: got %v, want b/1", unread)
	}
}

func TestServersThatLeaveTogetherAreAllNoted(t *testing.T) {
	left := processesOf([]string{"b/1", "c/1"})
	s := newStory()
	s.servers(true, "a/1", "b/1", "c/1")
	s.servers(true, "a/1")
	s.looks(at(writes(appsV1), writes(appsV1), writes(appsV1)), "a/1")
	unread := s.Observe(s.now, deployments).Sightings[0].UnreadDeparted
	if !slices.Equal(unread, left) {
		t.Errorf("unread before the first look: got %v, want %v", unread, left)
	}
	s.servers(true, "a/1", "b/1", "c/1")
	s.servers(true, "a/1")
	run := s.Observe(s.now, deployments).Sightings
	if unseen := run[len(run)-2].UnreadDeparted; !slices.Equal(unseen, left) {
		t.Errorf("unseen later: got %v, want %v", unseen, left)
	}
}

func TestServerThatWasLookedAtMayLeave(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.looks(at(writes(appsV1), writes(appsV1)), "a/1", "b/1")
	s.servers(true, "a/1")
	expect(t, s, deployments, unseen, []string{appsV1})
	s.looks(at(writes(appsV1)), "a/1")
	expect(t, s, deployments, "", []string{appsV1}, []string{appsV1})
}

func TestServerThatMayHaveBeenBackInAGap(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	s.looks(at(writes(appsV1)), "a/1")
	s.servers(true, "a/1", "c")
	s.servers(false, "a/1")
	expect(t, s, deployments, unseen, nil)
	unread := s.Observe(s.now, deployments).Sightings[0].UnreadDeparted
	if !slices.Equal(unread, processesOf([]string{"c"})) {
		t.Errorf("unread: got %v, want c", unread)
	}
}

func TestRelistForgetsWhereServersMoved(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	s.looks(at(writes(appsV1)), "a/1")
	s.servers(false, "a/1")
	expect(t, s, deployments, "", []string{appsV1})
	s.servers(false, "a/2")
	expect(t, s, deployments, unseen)
	s.looks(at(writes(appsV1)), "a/2")
	expect(t, s, deployments, "", []string{appsV1})
	if evidence := s.Observe(s.now, deployments).Sightings[0].Evidence; evidence.Servers[0].Incarnation != "2" {
		t.Errorf("the run has to begin with what was seen after the relist, got %+v", evidence)
	}
}

// TestAServerWithoutALease has one that an admission webhook refused a Lease, next to one that has it.
func TestAServerWithoutALease(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	looksAt(s, map[string]Document{"of-a": writes(appsV1), "another": {Failure: "connection refused"}}, "a/1")
	expect(t, s, deployments, unseen)
	looksAt(s, map[string]Document{"of-a": writes(appsV1), "another": writes(appsV1beta1)}, "a/1")
	expect(t, s, deployments, "", sortedSet([]string{appsV1, appsV1beta1}))
}

// TestServerThatComesBack leaves and comes back as the same process. If the definition has changed since about then, it
// may write what that said before, although everything is migrated.
func TestServerThatComesBack(t *testing.T) {
	for name, test := range map[string]struct {
		since  time.Duration // from the change to the moment at which the server counts as gone
		unread []Process
	}{
		"it was away when the definition changed": {-time.Minute, []Process{{Identity: "b", Incarnation: "1"}}},
		"it may have been frozen already":         {time.Minute, []Process{{Identity: "b", Incarnation: "1"}}},
		"it had followed long before":             {2 * maxFrozen, nil},
	} {
		s := newStory()
		s.servers(true, "a/1", "b/1")
		s.SetDefinition(s.tick(), widgets, widget(1, "v1", "v1"))
		s.now = s.now.Add(3 * maxFrozen)
		gone := func() { s.servers(true, "a/1") }
		if test.since < 0 {
			gone()
		}
		s.SetDefinition(s.tick(), widgets, widget(2, "v2", "v1", "v2"))
		s.SetDefinition(s.tick(), widgets, widget(2, "v2", "v2")) // migrated, and pruned
		if test.since > 0 {
			s.now = s.now.Add(test.since)
			gone()
		}
		s.servers(true, "a/1", "b/1")
		var unread []Process
		o := s.Observe(s.now, widgets)
		for _, sighting := range o.Sightings {
			unread = append(unread, sighting.UnreadDeparted...)
		}
		if !slices.Equal(unread, test.unread) {
			t.Errorf("%s: unread %v, want %v", name, unread, test.unread)
		}
		if last, _ := o.Last(); !last.ProvesOnly(widgetV2) {
			t.Errorf("%s: the last sighting does not prove v2: %+v", name, last)
		}
		s.servers(true, "a/1")
		before := len(s.Observe(s.now, widgets).Sightings)
		s.servers(true, "a/1", "b/2") // another process reads the definition at its start
		if after := len(s.Observe(s.now, widgets).Sightings); after != before {
			t.Errorf("%s: another process makes %d sightings", name, after-before)
		}
	}
}

// TestServersThatComeBackTogether wants a sighting for each, always in the same order.
func TestServersThatComeBackTogether(t *testing.T) {
	s, all := newStory(), strings.Split("a/1 b/1 c/1 d/1 e/1 f/1 g/1 h/1", " ")
	s.servers(true, all...)
	s.servers(true)
	s.SetDefinition(s.tick(), widgets, widget(1, "v1", "v1"))
	s.servers(true, all...)
	var unread []Process
	for _, sighting := range s.Observe(s.now, widgets).Sightings {
		unread = append(unread, sighting.UnreadDeparted...)
	}
	if want := processesOf(all); !slices.Equal(unread, want) {
		t.Errorf("came back: %v, want %v", unread, want)
	}
}

// TestServerThatLeavesTwice has a server leave unread, come back and leave again, while another one is not ready. Each
// time its last writes may land until a settle period later.
func TestServerThatLeavesTwice(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	s.looks(at(writes(appsV1)), "a/1")
	var left []time.Time
	for range 2 {
		s.servers(true, "a/1", "b/1", "c/1")
		s.servers(true, "a/1", "c/1")
		left = append(left, s.now)
	}
	var unread []time.Time
	for _, sighting := range s.Observe(s.now, deployments).Sightings {
		if len(sighting.UnreadDeparted) > 0 {
			unread = append(unread, sighting.Since)
		}
	}
	if !slices.Equal(unread, left) {
		t.Errorf("departures at %v, want %v", unread, left)
	}
}

// TestServerThatComesBackInAGap has nobody see whether a server that left lived meanwhile, and wrote what it did
// before.
func TestServerThatComesBackInAGap(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.SetDefinition(s.tick(), widgets, widget(1, "v1", "v1"))
	s.servers(true, "a/1")
	s.SetDefinition(s.tick(), widgets, widget(2, "v2", "v1", "v2"))
	s.servers(false, "a/1", "b") // It may have lived before the list,
	s.servers(false, "a/1")      // which does not show it.
	sightings := s.Observe(s.now, widgets).Sightings
	if !slices.ContainsFunc(sightings, func(s Sighting) bool {
		return slices.Contains(s.UnreadDeparted, Process{Identity: "b", Incarnation: "1"})
	}) {
		t.Errorf("b/1 may have written v1, got %+v", sightings)
	}
}

// TestReplacedServerThatComesBack has a server freeze, and another one with the same host name live until it has left
// too. Then the first one thaws, and may write what it wrote.
func TestReplacedServerThatComesBack(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.SetDefinition(s.tick(), widgets, widget(1, "v1", "v1"))
	s.servers(true, "a/1")
	s.servers(true, "a/1", "b/2")
	s.servers(true, "a/1")
	s.SetDefinition(s.tick(), widgets, widget(2, "v2", "v1", "v2"))
	s.servers(true, "a/1", "b/1")
	sightings := s.Observe(s.now, widgets).Sightings
	if !slices.ContainsFunc(sightings, func(s Sighting) bool {
		return slices.Contains(s.UnreadDeparted, Process{Identity: "b", Incarnation: "1"})
	}) {
		t.Errorf("b/1 may write v1, got %+v", sightings)
	}
}

// TestServerThatLingers wants an address not to linger when another process of the server lives.
func TestServerThatLingers(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.servers(true, "a/1")
	if lingering := s.Ledger.servers.lingering(s.now); !lingering.Equal(sets.New("b")) {
		t.Errorf("%v linger", lingering)
	}
	s.servers(true, "a/1", "b/2")
	if lingering := s.Ledger.servers.lingering(s.now); len(lingering) > 0 {
		t.Errorf("%v linger", lingering)
	}
}

// TestAddressOfAServerThatLeftLongAgo has an address fail that an API server without a Lease may have by now.
func TestAddressOfAServerThatLeftLongAgo(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	advertised := map[string]string{"a": "of-a", "b": "of-b"}
	looks := func(documents map[string]Document) {
		s.SetLook(s.tick(), Look{LivingServers: LivingServers{Living: s.Living(), Advertised: maps.Clone(advertised)},
			Documents: documents})
	}
	looks(map[string]Document{"of-a": writes(appsV1), "of-b": writes(appsV1)})
	delete(advertised, "b")
	s.servers(true, "a/1")
	looks(map[string]Document{"of-a": writes(appsV1), "of-b": {Failure: "connection refused"}})
	linger := s.Ledger.servers.linger
	if problem := s.Ledger.looks.problemOfLook(s.now); problem != nil {
		t.Errorf("b has just left: %+v", problem)
	}
	if s.Ledger.looks.problemOfLook(s.now.Add(2*linger)) == nil {
		t.Error("b left long ago, and a process may run there that has no Lease")
	}
}
