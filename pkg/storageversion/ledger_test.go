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
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

var (
	start       = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}
	jobs        = schema.GroupResource{Group: "batch", Resource: "jobs"}
	widgets     = schema.GroupResource{Group: "example.com", Resource: "widgets"}
	flunders    = schema.GroupResource{Group: "wardle.example.com", Resource: "flunders"}

	appsV1      = Hash(schema.GroupVersion{Group: "apps", Version: "v1"}, "Deployment")
	appsV1beta1 = Hash(schema.GroupVersion{Group: "apps", Version: "v1beta1"}, "Deployment")
	batchV1     = Hash(schema.GroupVersion{Group: "batch", Version: "v1"}, "Job")
	widgetV1    = Hash(schema.GroupVersion{Group: "example.com", Version: "v1"}, "Widget")
	widgetV2    = Hash(schema.GroupVersion{Group: "example.com", Version: "v2"}, "Widget")
	flunderV1   = Hash(schema.GroupVersion{Group: "wardle.example.com", Version: "v1"}, "Flunder")
)

// story tells a ledger facts, ten seconds after the other.
type story struct {
	*Ledger
	now time.Time
}

func newStory() *story {
	return &story{Ledger: NewLedger(Options{Linger: time.Minute}), now: start}
}

func (s *story) tick() time.Time {
	s.now = s.now.Add(confirmation)
	return s.now
}

// servers are written as identity/incarnation.
func (s *story) servers(unbroken bool, living ...string) {
	s.SetServers(s.tick(), serversOf(living), unbroken)
}

func serversOf(names []string) []Server {
	var all []Server
	for _, name := range names {
		identity, incarnation, _ := strings.Cut(name, "/")
		all = append(all, Server{Identity: identity, Incarnation: incarnation})
	}
	return all
}

// looks at servers that live, directly, at addresses that have documents.
func (s *story) looks(documents map[string]Document, living ...string) {
	s.SetLook(s.tick(), Look{Servers: serversOf(living), Direct: true, Documents: documents})
}

// writes is the document of a server that writes Deployments in that encoding.
func writes(hash string) Document {
	return Document{Resources: map[schema.GroupResource]Resource{
		deployments: {Kind: "Deployment", Versions: []string{"v1", "v1beta1"}, Hash: hash, Migratable: true},
		jobs:        {Kind: "Job", Versions: []string{"v1"}, Hash: batchV1, Migratable: true},
	}}
}

// writing is what the sightings of a resource's run say is written.
func (s *story) writing(resource schema.GroupResource) [][]string {
	var all [][]string
	for _, sighting := range s.Observe(s.now, resource).Run {
		all = append(all, sighting.Writing)
	}
	return all
}

func (s *story) problem(resource schema.GroupResource) string {
	if problem := s.Observe(s.now, resource).Problem; problem != nil {
		return problem.Reason
	}
	return ""
}

func expect(t *testing.T, s *story, resource schema.GroupResource, problem string, writing ...[]string) {
	t.Helper()
	if got := s.problem(resource); got != problem {
		t.Errorf("problem of %v: got %q, want %q", resource, got, problem)
	}
	if diff := cmp.Diff(writing, s.writing(resource)); diff != "" {
		t.Errorf("sightings of %v (-want +got):\n%s", resource, diff)
	}
}

const (
	unseen = migrationv1alpha1.StateReasonServersUnseen
	failed = migrationv1alpha1.StateReasonDiscoveryFailed
)

func TestOneServer(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	expect(t, s, deployments, unseen)
	s.SetLook(s.tick(), Look{Servers: serversOf([]string{"a/1"}), Documents: map[string]Document{"localhost": writes(appsV1)}})
	expect(t, s, deployments, "", []string{appsV1})
	o := s.Observe(s.now, deployments)
	if o.Class != BuiltIn || o.Presence != Served || o.Versions[appsV1] != "apps/v1" || o.Looked != s.now {
		t.Errorf("unexpected observation %+v", o)
	}
	if got, want := s.Resources(), []schema.GroupResource{deployments, jobs}; !slices.Equal(got, want) {
		t.Errorf("resources: got %v, want %v", got, want)
	}
}

func TestVersionThatIsNotServedIsGuessed(t *testing.T) {
	old := Hash(schema.GroupVersion{Group: "apps", Version: "v1beta2"}, "Deployment")
	s := newStory()
	s.servers(true, "a/1")
	s.looks(map[string]Document{"10.0.0.1": writes(old)}, "a/1")
	if got := s.Observe(s.now, deployments).Versions[old]; got != "apps/v1beta2" {
		t.Errorf("the version behind the hash: got %q, want apps/v1beta2", got)
	}
}

func TestTwoServersBehindOneAddress(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.SetLook(s.tick(), Look{Servers: serversOf([]string{"a/1", "b/1"}), Documents: map[string]Document{"balancer": writes(appsV1)}})
	expect(t, s, deployments, unseen)
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1)}, "a/1", "b/1")
	expect(t, s, deployments, unseen)
	o := s.Observe(s.now, deployments)
	if len(o.Unseen) != 2 || o.Presence != Served {
		t.Errorf("both servers are unseen, and what one of them serves is served: %+v", o)
	}
	if s.NeedsLook() {
		t.Error("another look would not find the other server either")
	}
}

func TestServersDisagreeAndAgree(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1beta1), "10.0.0.2": writes(appsV1beta1)}, "a/1", "b/1")
	s.servers(true, "a/1")
	s.servers(true, "a/1", "b/2")
	expect(t, s, deployments, unseen, []string{appsV1beta1})
	if !s.NeedsLook() {
		t.Error("a new process has to be looked at")
	}
	both := []string{appsV1, appsV1beta1}
	slices.Sort(both)
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1beta1), "10.0.0.2": writes(appsV1)}, "a/1", "b/2")
	expect(t, s, deployments, "", []string{appsV1beta1}, both)
	expect(t, s, jobs, "", []string{batchV1}, []string{batchV1})
}

func TestServerThatLeftUnseenMayHaveWrittenAnything(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1)}, "a/1")
	s.servers(true, "a/1", "b/1")
	s.servers(true, "a/1")
	expect(t, s, deployments, "", []string{appsV1}, []string{appsV1}, []string{appsV1})
	if unseen := s.Observe(s.now, deployments).Run[1].Unseen; !slices.Equal(unseen, serversOf([]string{"b/1"})) {
		t.Errorf("unseen: got %v, want b/1", unseen)
	}
}

func TestLookMayHaveMetTheSuccessor(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1)}, "a/1")
	s.SetServers(s.now.Add(time.Second), serversOf([]string{"a/2"}), true)
	expect(t, s, deployments, unseen, []string{appsV1}, []string{appsV1})
	if unseen := s.Observe(s.now, deployments).Run[1].Unseen; !slices.Equal(unseen, serversOf([]string{"a/1"})) {
		t.Errorf("unseen: got %v, want a/1", unseen)
	}
}

func TestServerThatLeftBeforeTheFirstLook(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.servers(true, "a/1")
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1), "10.0.0.2": writes(appsV1)}, "a/1")
	expect(t, s, deployments, "", nil, []string{appsV1})
	if unseen := s.Observe(s.now, deployments).Run[0].Unseen; !slices.Equal(unseen, serversOf([]string{"b/1"})) {
		t.Errorf("unseen: got %v, want b/1", unseen)
	}
}

func TestServerThatWasLookedAtMayLeave(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1), "10.0.0.2": writes(appsV1)}, "a/1", "b/1")
	s.servers(true, "a/1")
	expect(t, s, deployments, unseen, []string{appsV1})
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1)}, "a/1")
	expect(t, s, deployments, "", []string{appsV1}, []string{appsV1})
}

func TestLookThatFailsChangesNothingOfServersThatWereSeen(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1)}, "a/1")
	s.looks(map[string]Document{"10.0.0.1": {Failure: "connection refused"}}, "a/1")
	expect(t, s, deployments, "", []string{appsV1})
	if o := s.Observe(s.now, deployments); o.Presence != Served || len(o.Served) == 0 {
		t.Errorf("what was served by the same process is served: %+v", o)
	}
	group := writes(appsV1)
	delete(group.Resources, deployments)
	group.FailedGroups = map[string]string{"apps": "timeout"}
	s.looks(map[string]Document{"10.0.0.1": group}, "a/1")
	expect(t, s, deployments, "", []string{appsV1})
	if !s.NeedsLook() {
		t.Error("what failed has to be tried again")
	}
}

func TestGroupThatFailedIsUnknownAndOthersAreNot(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1)}, "a/1")
	s.servers(true, "a/2")
	group := writes(appsV1)
	delete(group.Resources, deployments)
	group.FailedGroups = map[string]string{"apps": "timeout"}
	s.looks(map[string]Document{"10.0.0.1": group}, "a/2")
	expect(t, s, deployments, failed, []string{appsV1})
	expect(t, s, jobs, "", []string{batchV1}, []string{batchV1})
	if o := s.Observe(s.now, deployments); o.Presence != PresenceUnknown || len(o.Unseen) != 1 {
		t.Errorf("unexpected observation %+v", o)
	}
}

func TestRelistForgetsWhereServersMoved(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1)}, "a/1")
	s.servers(false, "a/1")
	expect(t, s, deployments, "", []string{appsV1})
	s.servers(false, "a/2")
	expect(t, s, deployments, unseen)
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1)}, "a/2")
	expect(t, s, deployments, "", []string{appsV1})
	if evidence := s.Observe(s.now, deployments).Run[0].Evidence; evidence.Servers[0].Incarnation != "2" {
		t.Errorf("the run has to begin with what was seen after the relist, got %+v", evidence)
	}
}

func TestAddressOfServerThatLeftDoesNotStandForOneThatCame(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1), "10.0.0.2": writes(appsV1)}, "a/1", "b/1")
	s.servers(true, "a/1")
	s.servers(true, "a/1", "c/1")
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1), "10.0.0.2": writes(appsV1)}, "a/1", "c/1")
	expect(t, s, deployments, unseen, []string{appsV1})
	if !s.NeedsLook() {
		t.Error("the address goes within a minute")
	}
	s.now = s.now.Add(time.Minute)
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1), "10.0.0.3": writes(appsV1beta1)}, "a/1", "c/1")
	expect(t, s, deployments, "", []string{appsV1}, sortedSet([]string{appsV1, appsV1beta1}))
}

func TestAddressOfServerThatLeftDoesNotStandForOneThatIsHidden(t *testing.T) {
	both := sortedSet([]string{appsV1, appsV1beta1})
	s := newStory()
	s.servers(true, "a/1", "b/1", "c/1")
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1), "10.0.0.2": writes(appsV1), "10.0.0.3": writes(appsV1beta1)}, "a/1", "b/1", "c/1")
	s.servers(true, "b/1", "c/1")
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1), "10.0.0.2": writes(appsV1)}, "b/1", "c/1")
	expect(t, s, deployments, "", both, both)
	if !s.NeedsLook() {
		t.Error("once the address has gone another look tells")
	}
	s.now = s.now.Add(time.Minute)
	s.looks(map[string]Document{"10.0.0.2": writes(appsV1), "10.0.0.3": writes(appsV1beta1)}, "b/1", "c/1")
	expect(t, s, deployments, "", both, both, both)
}

func TestResourceThatNobodyServes(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1)}, "a/1")
	if o := s.Observe(s.now, widgets); o.Presence != NotServed || o.Class != "" {
		t.Errorf("unexpected observation %+v", o)
	}
	s.servers(true, "a/2")
	if o := s.Observe(s.now, widgets); o.Presence != PresenceUnknown {
		t.Errorf("a server that was not asked may serve it: %+v", o)
	}
	without := writes(appsV1)
	delete(without.Resources, deployments)
	s.looks(map[string]Document{"10.0.0.1": without}, "a/2")
	if o := s.Observe(s.now, deployments); o.Presence != NotServed || o.Problem != nil {
		t.Errorf("unexpected observation %+v", o)
	}
}

func TestStorageVersions(t *testing.T) {
	publishing := func(hash string) Document {
		d := writes(hash)
		d.ServesStorageVersions = true
		return d
	}
	object := func(resourceVersion string, encodings map[string]string) *StorageVersion {
		return &StorageVersion{UID: "u", ResourceVersion: resourceVersion, Encodings: encodings}
	}
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.SetStorageVersion(s.tick(), "apps.deployments", object("1", map[string]string{"a": "apps/v1beta1", "b": "apps/v1beta1"}), false)
	s.SetStorageVersion(s.tick(), "batch.jobs", object("2", map[string]string{"a": "batch/v1", "b": "batch/v1"}), false)
	s.SetStorageVersionsServed(s.tick(), true)
	s.looks(map[string]Document{"10.0.0.1": publishing(appsV1beta1), "10.0.0.2": publishing(appsV1beta1)}, "a/1", "b/1")
	expect(t, s, deployments, "", []string{appsV1beta1})

	t.Run("a restart that publishes the same is nothing", func(t *testing.T) {
		s.servers(true, "a/1", "b/2")
		expect(t, s, deployments, unseen, []string{appsV1beta1})
		s.looks(map[string]Document{"10.0.0.1": publishing(appsV1beta1), "10.0.0.2": publishing(appsV1beta1)}, "a/1", "b/2")
		expect(t, s, deployments, "", []string{appsV1beta1})
	})
	t.Run("a publication is a sighting", func(t *testing.T) {
		s.SetStorageVersion(s.tick(), "apps.deployments", object("3", map[string]string{"a": "apps/v1beta1", "b": "apps/v1"}), true)
		expect(t, s, deployments, "", []string{appsV1beta1}, sortedSet([]string{appsV1, appsV1beta1}))
	})
	t.Run("a server that publishes nothing has to be looked at", func(t *testing.T) {
		s.servers(true, "a/1", "b/2", "c/1")
		expect(t, s, jobs, unseen, []string{batchV1})
		s.SetStorageVersion(s.tick(), "batch.jobs", object("4", map[string]string{"a": "batch/v1", "b": "batch/v1", "c": "batch/v1"}), true)
		s.looks(map[string]Document{"10.0.0.1": publishing(appsV1beta1), "10.0.0.2": publishing(appsV1), "10.0.0.3": publishing(appsV1)}, "a/1", "b/2", "c/1")
		expect(t, s, jobs, "", []string{batchV1}, []string{batchV1})
	})
	t.Run("documents that contradict a publication are believed as well", func(t *testing.T) {
		s := newStory()
		s.servers(true, "a/1")
		s.SetStorageVersion(s.tick(), "apps.deployments", object("1", map[string]string{"a": "apps/v1beta1"}), false)
		s.SetStorageVersionsServed(s.tick(), true)
		s.looks(map[string]Document{"10.0.0.1": publishing(appsV1)}, "a/1")
		expect(t, s, deployments, "", sortedSet([]string{appsV1, appsV1beta1}))
		s.SetStorageVersion(s.tick(), "apps.deployments", object("2", map[string]string{"a": "apps/v1"}), true)
		expect(t, s, deployments, "", sortedSet([]string{appsV1, appsV1beta1}), []string{appsV1})
	})
	t.Run("what moved while nobody watched begins a new run", func(t *testing.T) {
		s.looks(map[string]Document{"10.0.0.1": publishing(appsV1), "10.0.0.2": publishing(appsV1), "10.0.0.3": publishing(appsV1)}, "a/1", "b/2", "c/1")
		s.SetStorageVersion(s.tick(), "apps.deployments", object("5", map[string]string{"a": "apps/v1", "b": "apps/v1"}), false)
		expect(t, s, deployments, "", []string{appsV1})
	})
	t.Run("a server without the API leaves the entry of its predecessor", func(t *testing.T) {
		s.servers(true, "a/2", "b/2", "c/1")
		s.looks(map[string]Document{"10.0.0.1": writes(appsV1beta1), "10.0.0.2": publishing(appsV1), "10.0.0.3": publishing(appsV1)}, "a/2", "b/2", "c/1")
		expect(t, s, deployments, "", []string{appsV1}, sortedSet([]string{appsV1, appsV1beta1}))
	})
}

func widget(generation int64, storage string, stored ...string) *CustomResource {
	return &CustomResource{UID: "u", Generation: generation, Group: "example.com", Plural: "widgets", Kind: "Widget",
		StorageVersion: storage, ServedVersions: []string{"v2", "v1"}, StoredVersions: stored, Established: true}
}

func TestCustomResource(t *testing.T) {
	s := newStory()
	s.SetCustomResource(s.tick(), widgets, widget(1, "v1", "v1"))
	s.SetCustomResource(s.tick(), widgets, widget(2, "v2", "v1", "v2"))
	s.SetCustomResource(s.tick(), widgets, widget(2, "v2", "v2"))
	s.SetCustomResource(s.tick(), widgets, widget(2, "v2", "v2"))
	expect(t, s, widgets, "", []string{widgetV1}, []string{widgetV2}, []string{widgetV2})
	if stored := s.Observe(s.now, widgets).Run[1].Stored; !slices.Equal(stored, []string{widgetV1, widgetV2}) {
		t.Errorf("stored: got %v", stored)
	}
	s.SetCustomResource(s.tick(), widgets, widget(4, "v2", "v2"))
	expect(t, s, widgets, "", []string{widgetV2})
	s.SetCustomResource(s.tick(), widgets, nil)
	if o := s.Observe(s.now, widgets); o.Presence != Deleted || len(o.Run) != 0 {
		t.Errorf("unexpected observation %+v", o)
	}
}

func TestAggregatedResource(t *testing.T) {
	v1 := schema.GroupVersion{Group: "wardle.example.com", Version: "v1"}
	document := &AggregatedDocument{Address: "wardle/api:443", Resources: map[schema.GroupResource]Resource{
		flunders: {Kind: "Flunder", Versions: []string{"v1"}, Hash: flunderV1, Migratable: true},
	}}
	s := newStory()
	s.servers(true, "a/1")
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1)}, "a/1")
	s.SetAggregated(s.tick(), v1, document)
	read := s.now
	expect(t, s, flunders, "", []string{flunderV1})
	s.SetAggregated(s.tick(), v1, &AggregatedDocument{Address: "wardle/api:443", Failure: "service unavailable"})
	expect(t, s, flunders, failed, []string{flunderV1})
	if o := s.Observe(s.now, flunders); o.Presence != PresenceUnknown || o.Looked != read {
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

func TestSharedStorage(t *testing.T) {
	core, grouped := schema.GroupResource{Resource: "events"}, schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
	hash := Hash(schema.GroupVersion{Version: "v1"}, "Event")
	s := newStory()
	s.servers(true, "a/1")
	s.looks(map[string]Document{"10.0.0.1": {Resources: map[schema.GroupResource]Resource{
		core:    {Kind: "Event", Versions: []string{"v1"}, Hash: hash, Migratable: true},
		grouped: {Kind: "Event", Versions: []string{"v1"}, Hash: hash, Migratable: true},
	}}}, "a/1")
	for resource, other := range map[schema.GroupResource]schema.GroupResource{core: grouped, grouped: core} {
		o := s.Observe(s.now, resource)
		if !slices.Equal(o.SharedWith, []schema.GroupResource{other}) || o.SharedBy != core || !o.Expires || o.Versions[hash] != "v1" {
			t.Errorf("unexpected observation %+v", o)
		}
	}
}

func TestContinues(t *testing.T) {
	definition := func(uid string, generation int64) migrationv1alpha1.StorageEvidence {
		return sightingOfDefinition(&CustomResource{UID: types.UID("u" + uid), Generation: generation, StorageVersion: "v1", StoredVersions: []string{"v1"}}).Evidence
	}
	servers := func(names ...string) migrationv1alpha1.StorageEvidence {
		s := newStory()
		s.servers(true, names...)
		return s.serverEvidence()
	}
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
		"processes without Leases prove nothing":  {servers(), servers(), false},
		"another source":                          {servers("a/1"), definition("", 1), false},
		"aggregated servers have no incarnations": {migrationv1alpha1.StorageEvidence{Source: migrationv1alpha1.EvidenceFromAggregatedDiscovery}, migrationv1alpha1.StorageEvidence{Source: migrationv1alpha1.EvidenceFromAggregatedDiscovery}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Continues(tc.recorded, tc.first); got != tc.want {
				t.Errorf("Continues: got %v, want %v", got, tc.want)
			}
		})
	}
}
