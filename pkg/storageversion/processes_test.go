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

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

func TestWhatLeasesTell(t *testing.T) {
	for version, want := range map[string]struct{ identified, mayOutlive bool }{
		"v1.34.4":              {false, true},
		"v1.34.9-gke.100+0a1b": {false, true},
		"v1.35.0":              {true, true},
		"v1.35.0-beta.0":       {true, true},
		"v1.36.0":              {true, false},
		"v1.37.1+k3s1":         {true, false},
		"":                     {false, true},
		"unknown":              {false, true},
	} {
		if got := LeaseIdentifiesProcess(version); got != want.identified {
			t.Errorf("%q identifies: %t, want %t", version, got, want.identified)
		}
		if got := LeaseMayOutliveProcess(version); got != want.mayOutlive {
			t.Errorf("%q may outlive the process: %t, want %t", version, got, want.mayOutlive)
		}
	}
}

// old is the document of a process of Kubernetes 1.34, which keeps the Lease of the process before it.
func old(hash string, started time.Duration) Document {
	document := writes(hash)
	document.Version, document.Connected = "v1.34.4", true
	if started > 0 {
		document.Started = start.Add(started)
	}
	return document
}

func held(document Document) Document {
	document.Connected = true
	return document
}

// unseenBy are the names of the processes that nobody read, by sighting.
func (s *story) unseenBy() [][]string {
	var all [][]string
	for _, sighting := range s.Observe(s.now, deployments).Sightings {
		var names []string
		for _, server := range sighting.UnreadDeparted {
			names = append(names, server.Identity)
		}
		all = append(all, names)
	}
	return all
}

// expectUnseen wants the names of processes that left unread, by sighting.
func expectUnseen(t *testing.T, s *story, want ...[]string) {
	t.Helper()
	if got := s.unseenBy(); !slices.EqualFunc(got, want, slices.Equal[[]string]) {
		t.Errorf("unseen: %v, want %v", got, want)
	}
}

// TestRestartUnderTheSameLease has a server of Kubernetes 1.34 that restarts in place.
func TestRestartUnderTheSameLease(t *testing.T) {
	for name, test := range map[string]struct {
		again  Document
		unseen [][]string
	}{
		"the connection ended for another reason": {old(appsV1, 1), [][]string{nil}},
		"another process":                         {old(appsV1, 2), [][]string{nil, {"10.0.0.1"}, nil}},
		"a process that does not tell its start":  {old(appsV1, 0), [][]string{nil, {"10.0.0.1"}, nil}},
		"a newer release":                         {held(writes(appsV1)), [][]string{nil, {"10.0.0.1"}, nil}},
		"a newer release, not held":               {writes(appsV1), [][]string{nil, {"10.0.0.1"}, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory()
			s.servers(true, "a/1")
			s.looks(at(old(appsV1, 1)), "a/1")
			expect(t, s, deployments, "", []string{appsV1})
			if s.NeedsLook() {
				t.Error("everything is known")
			}
			if changes := s.ConnectionLost(s.tick(), "10.0.0.1"); !changes.Has(deployments) {
				t.Error("nobody is told")
			}
			lostAt := s.now
			s.looks(at(Document{Failure: "connection refused"}), "a/1")
			o := s.Observe(s.now, deployments)
			if !o.ServersSince.Equal(lostAt) {
				t.Errorf("a server changed last at %v, and a connection ended at %v", o.ServersSince, lostAt)
			}
			if o.Problem == nil || !o.Problem.Since.Equal(lostAt) || !s.NeedsLook() {
				t.Errorf("problem: %+v, since %v wanted", o.Problem, lostAt)
			}
			if !slices.Contains(o.UnreadLiving, Process{Identity: "10.0.0.1"}) {
				t.Errorf("unseen: %v", o.UnreadLiving)
			}
			s.looks(at(test.again), "a/1")
			if problem := s.problem(deployments); problem != "" {
				t.Errorf("problem %q", problem)
			}
			replaced := len(test.unseen) > 1
			if since := s.Observe(s.now, deployments).ServersSince; since.After(lostAt) != replaced {
				t.Errorf("a server changed last at %v, replaced: %t", since, replaced)
			}
			expectUnseen(t, s, test.unseen...)
		})
	}
}

// TestServerThatIsLostWithItsAddress has a server end whose address is removed before its Lease counts as that of a
// server that is gone. A look at the other one would find out nothing.
func TestServerThatIsLostWithItsAddress(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.looks(at(old(appsV1, 1), old(appsV1, 2)), "a/1", "b/1")
	s.ConnectionLost(s.tick(), "10.0.0.2")
	if !s.NeedsLook() {
		t.Error("another process may answer there")
	}
	s.looks(at(old(appsV1, 1)), "a/1", "b/1")
	expect(t, s, deployments, unseen, []string{appsV1})
	if s.NeedsLook() {
		t.Error("another look would not find the other server either")
	}
}

// TestServerThatDoesNotAnswerAtFirst has a server of Kubernetes 1.34 that a manager cannot read when it starts. What
// was recorded shows whether the process is still the same. It does not show a process that was there in between.
func TestServerThatDoesNotAnswerAtFirst(t *testing.T) {
	for name, test := range map[string]struct {
		then   map[string]Document
		unseen [][]string
	}{
		"it answers later":            {at(old(appsV1, 1), old(appsV1, 1)), [][]string{nil}},
		"the other one has restarted": {at(old(appsV1, 2), old(appsV1, 1)), [][]string{{"10.0.0.1"}, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory()
			s.servers(true, "a/1", "b/1")
			s.looks(at(old(appsV1, 1), Document{Failure: "timeout"}), "a/1", "b/1")
			s.looks(test.then, "a/1", "b/1")
			expectUnseen(t, s, test.unseen...)
		})
	}
}

// TestRestartThatNothingTellsOf is noticed by the next look at the latest.
func TestRestartThatNothingTellsOf(t *testing.T) {
	for name, test := range map[string]struct {
		before, after Document
		unseen        [][]string
	}{
		"the same process":                      {old(appsV1, 1), old(appsV1, 1), [][]string{nil}},
		"another process":                       {old(appsV1, 1), old(appsV1, 2), [][]string{nil, {"10.0.0.1"}, nil}},
		"processes of unknown start, watched":   {old(appsV1, 0), old(appsV1, 0), [][]string{nil}},
		"a newer process that Leases tell of":   {writes(appsV1), writes(appsV1), [][]string{nil}},
		"the same, held":                        {held(writes(appsV1)), held(writes(appsV1)), [][]string{nil}},
		"an older process with the Lease of it": {writes(appsV1), old(appsV1, 2), [][]string{nil, {"10.0.0.1"}, nil}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory()
			s.servers(true, "a/1")
			s.looks(at(test.before), "a/1")
			before := s.Observe(s.now, deployments).ServersSince
			s.looks(at(test.after), "a/1")
			changed := s.Observe(s.now, deployments).ServersSince.After(before)
			if replaced := len(test.unseen) > 1; changed != replaced {
				t.Errorf("a server changed: %t, replaced: %t", changed, replaced)
			}
			expectUnseen(t, s, test.unseen...)
		})
	}
}

// TestRestartsThatOneLookShows has many processes replaced, and others gone. They are noted always in the same order.
func TestRestartsThatOneLookShows(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	before, after := map[string]Document{}, map[string]Document{}
	var replaced, gone []string
	for _, name := range strings.Split("abcdefghijkl", "") {
		before[name], after[name] = old(appsV1, 1), old(appsV1, 2)
		before[name+"0"] = old(appsV1, 1)
		replaced, gone = append(replaced, name), append(gone, name+"0")
	}
	s.looks(before, "a/1")
	s.looks(after, "a/1")
	expectUnseen(t, s, nil, slices.Concat(replaced, gone), nil)
}

// TestOldServerTakesOverTheLeaseOfANewerOne that crashed, as after an upgrade that failed.
func TestOldServerTakesOverTheLeaseOfANewerOne(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	s.looks(at(held(writes(appsV1))), "a/1")
	s.ConnectionLost(s.tick(), "10.0.0.1")
	if s.problem(deployments) != unseen {
		t.Error("nobody doubts that the newer one still answers")
	}
	s.looks(at(held(writes(appsV1))), "a/1")
	expectUnseen(t, s, nil)
	s.ConnectionLost(s.tick(), "10.0.0.1")
	s.looks(at(old(appsV1beta1, 1)), "a/1")
	expectUnseen(t, s, nil, []string{"10.0.0.1"}, nil)
}

// TestOldServerThatNobodyReadHadTheLeaseOfANewerOne, and a newer one has come again.
func TestOldServerThatNobodyReadHadTheLeaseOfANewerOne(t *testing.T) {
	s, newer := newStory(), held(writes(appsV1))
	newer.Version = "v1.35.4"
	s.servers(true, "a/1")
	s.looks(at(newer), "a/1")
	s.tick()
	s.Confirm(s.now.Add(confirmAfter))
	s.ConnectionLost(s.tick(), "10.0.0.1")
	s.tick()
	s.looks(at(newer, Document{Failure: "no route"}), "a/1") // It reads the one that has come, and not all servers.
	s.servers(true, "a/2")
	last, _ := lastOf(s.Observe(s.now, deployments).Sightings)
	if want := []Process{{Identity: "a"}}; !slices.Equal(last.UnreadDeparted, want) {
		t.Errorf("left without having been read: %v, want %v, which no record names", last.UnreadDeparted, want)
	}
}

// TestLossWhileAServerIsMissing does not let that one be missing for as long again.
func TestLossWhileAServerIsMissing(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	s.looks(at(old(appsV1, 1)), "a/1")
	s.servers(true, "a/1", "b/1")
	came := s.now
	s.looks(at(old(appsV1, 1)), "a/1", "b/1")
	s.ConnectionLost(s.tick(), "10.0.0.1")
	if problem := s.Observe(s.now, deployments).Problem; problem == nil || !problem.Since.Equal(came) {
		t.Errorf("problem %+v, want one since %v", problem, came)
	}
}

// TestFailureAfterALoss has the documents of another server fail in the look after a loss. The servers had been read
// for days, so what they write has been unknown since the loss only.
func TestFailureAfterALoss(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.looks(at(old(appsV1, 1), old(appsV1, 2)), "a/1", "b/1")
	s.now = s.now.Add(72 * time.Hour)
	lost := s.tick()
	s.ConnectionLost(lost, "10.0.0.1")
	s.looks(at(old(appsV1, 1), Document{Failure: "the server is busy"}), "a/1", "b/1")
	if problem := s.Observe(s.now, deployments).Problem; problem == nil || !problem.Since.Equal(lost) {
		t.Errorf("problem %+v, want one since %v", problem, lost)
	}
	s.looks(at(old(appsV1, 1), old(appsV1, 2)), "a/1", "b/1")
	expect(t, s, deployments, "", []string{appsV1})
}

// TestProcessThatIsGoneForGood lets a server of Kubernetes 1.34 leave.
func TestProcessThatIsGoneForGood(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.looks(at(old(appsV1, 1), old(appsV1, 1)), "a/1", "b/1")
	s.ConnectionLost(s.tick(), "10.0.0.2")
	s.servers(true, "a/1")
	s.now = s.now.Add(2 * time.Minute)
	s.looks(at(old(appsV1, 1)), "a/1")
	expectUnseen(t, s, nil, []string{"b"}, []string{"10.0.0.2"}, nil)
	if o := s.Observe(s.now, deployments); o.Problem != nil || len(o.UnreadLiving) > 0 {
		t.Errorf("problem %v, unseen %v", o.Problem, o.UnreadLiving)
	}
}

// TestRecordOfAnonymousProcesses is connected only with what the process saw that recorded it.
func TestRecordOfAnonymousProcesses(t *testing.T) {
	look := func(started time.Duration) *story {
		s := newStory()
		s.servers(true, "a/1")
		s.looks(at(old(appsV1, started)), "a/1")
		return s
	}
	for name, test := range map[string]struct {
		recorded, now time.Duration
		known         bool
	}{
		"the same start":    {1, 1, true},
		"another start":     {1e3, 2e3, false},
		"no start":          {0, 0, false},
		"a start by now":    {0, 1, false},
		"a start no longer": {1, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			recorder, reader := look(test.recorded), newStory()
			reader.tick()
			reader.servers(true, "a/1")
			reader.looks(at(old(appsV1, test.now)), "a/1")
			recorded := recorder.Observe(recorder.now, deployments).Sightings[0].Evidence
			sightings := reader.Observe(reader.now, deployments).Sightings
			if _, known := SightingsSince(recorded, sightings); known != test.known {
				t.Errorf("known: %t, want %t", known, test.known)
			}
			if _, known := SightingsSince(recorded, recorder.Observe(recorder.now, deployments).Sightings); !known {
				t.Error("the recorder does not know its own record")
			}
		})
	}
}

// TestPublicationsOfOldServers are no proof when a process may have been replaced.
func TestPublicationsOfOldServers(t *testing.T) {
	s := newStory()
	publishes := func(document Document) Document {
		document.ServesStorageVersions = true
		return document
	}
	s.servers(true, "a/1")
	s.SetStorageVersion(s.tick(), "apps.deployments", &StorageVersion{
		UID: "u", ResourceVersion: "1", EncodingVersions: map[string]string{"a": "apps/v1"},
	}, true)
	s.SetStorageVersionsWatched(s.tick(), true)
	s.looks(at(publishes(old(appsV1, 1))), "a/1")
	o := s.Observe(s.now, deployments)
	last, _ := o.Last()
	if last.Evidence.Source != migrationv1alpha1.EvidenceFromStorageVersion || len(last.Evidence.Endpoints) != 1 ||
		last.Evidence.Servers[0].Incarnation != "1" {
		t.Fatalf("evidence %+v", last.Evidence)
	}
	s.ConnectionLost(s.tick(), "10.0.0.1")
	if o = s.Observe(s.now, deployments); o.Problem == nil {
		t.Error("a server that may have been replaced still counts as publishing")
	}
	s.looks(at(publishes(old(appsV1, 2))), "a/1")
	expectUnseen(t, s, nil, []string{"10.0.0.1"}, nil)
}
