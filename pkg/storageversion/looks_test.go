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
	"testing"
	"time"
)

func TestTwoServersBehindOneAddress(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.looksThroughBalancer(writes(appsV1), "a/1", "b/1")
	expect(t, s, deployments, unseen)
	s.looks(at(writes(appsV1)), "a/1", "b/1")
	expect(t, s, deployments, unseen)
	o := s.Observe(s.now, deployments)
	if len(o.UnreadLiving) != 2 || o.Presence != Served {
		t.Errorf("both servers are unseen, and what one of them serves is served: %+v", o)
	}
	if s.NeedsLook() {
		t.Error("another look would not find the other server either")
	}
}

// TestAddressThatIsAbsent has a server advertise an address that is not among those of the servers, and another address
// make up the number.
func TestAddressThatIsAbsent(t *testing.T) {
	s := newStory()
	living := []string{"a/1", "b/1", "c/1"}
	s.servers(true, living...)
	advertised := map[string]string{"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.9.9.9"}
	s.SetLook(s.tick(), Look{LivingServers: LivingServers{Living: processesOf(living), Advertised: advertised},
		Documents: at(writes(appsV1), writes(appsV1), writes(appsV1))})
	expect(t, s, deployments, unseen)
	if s.NeedsLook() {
		t.Error("another look would not find the address either")
	}
}

// shares is a look that met processes behind one address. Their documents are in the order of their start.
func (s *story) shares(unmet string, documents map[string]Document, living ...string) {
	s.SetLook(s.now, Look{LivingServers: LivingServers{Living: processesOf(living)},
		Shared: true, WhyUnmet: unmet, Documents: documents})
}

func TestProcessesBehindOneAddress(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.shares("share one address", at(writes(appsV1)), "a/1", "b/1")
	expect(t, s, deployments, unseen)
	if !s.NeedsLook() {
		t.Error("another look may meet the other server")
	}
	s.now = s.now.Add(2 * time.Minute)
	s.shares("", at(writes(appsV1), writes(appsV1beta1)), "a/1", "b/1")
	expect(t, s, deployments, "", sortedSet([]string{appsV1, appsV1beta1}))
	if s.NeedsLook() {
		t.Error("everything is known")
	}
}

// TestServerThatIsMetBeforeItsLeaseIsThere is counted for one that nobody met, and that leaves unmet.
func TestServerThatIsMetBeforeItsLeaseIsThere(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.shares("", at(writes(appsV1), writes(appsV1)), "a/1", "b/1")
	s.now = s.now.Add(time.Second)
	s.SetServers(s.now, processesOf([]string{"a/1", "b/1", "c/1"}), true)
	s.shares("share one address", at(writes(appsV1), writes(appsV1)), "a/1", "b/1", "c/1")
	expect(t, s, deployments, unseen, []string{appsV1})
	s.servers(true, "a/1", "c/1")
	o := s.Observe(s.now, deployments)
	last, _ := o.Last()
	// A record may name b/1, so it is not called that.
	if got := processesOf([]string{"b/"}); !slices.Equal(last.UnreadDeparted, got) {
		t.Errorf("left without having been read: %v, want %v", last.UnreadDeparted, got)
	}
}

func TestWhoSharesAddresses(t *testing.T) {
	advertised := func(addresses ...string) map[string]string {
		all := map[string]string{}
		for i, address := range addresses {
			all[string(rune('a'+i))] = address
		}
		return all
	}
	for name, test := range map[string]struct {
		advertised      map[string]string
		answering       []string
		shares, certain bool
	}{
		"as many addresses as servers":        {nil, []string{"1", "2"}, false, false},
		"the address of one is missing":       {advertised("1", "2"), []string{"1"}, false, false},
		"the same, of older servers":          {nil, []string{"1"}, true, false},
		"a balancer":                          {advertised("1", "1"), []string{"1"}, true, true},
		"a balancer with two addresses":       {advertised("1", "1"), []string{"1", "2"}, true, true},
		"a balancer, and addresses inside":    {advertised("2", "3"), []string{"1"}, true, false},
		"a balancer that servers do not name": {advertised("", ""), []string{"1"}, true, false},
		"as many balancers as servers":        {advertised("3", "4"), []string{"1", "2"}, true, false},
		"the address of one is not known":     {advertised("1", ""), []string{"1", "2"}, false, false},
	} {
		servers := LivingServers{Living: processesOf([]string{"a/1", "b/1"}), Advertised: test.advertised}
		if shares, certain := servers.SharesAddresses(test.answering); shares != test.shares || certain != test.certain {
			t.Errorf("%s: %t, %t", name, shares, certain)
		}
	}
}

func TestServersThatAreMissing(t *testing.T) {
	for name, test := range map[string]struct {
		advertised map[string]string
		answering  []string
		want       []string
	}{
		"all answer":                      {map[string]string{"a": "1", "b": "2"}, []string{"1", "2"}, nil},
		"one does not":                    {map[string]string{"a": "1", "b": "2"}, []string{"1"}, []string{"b"}},
		"older servers say no address":    {nil, []string{"1"}, nil},
		"an older one beside a newer one": {map[string]string{"a": "1"}, []string{"1"}, nil},
		"both answer at other addresses":  {map[string]string{"b": "4"}, []string{"1", "2"}, nil},
		"they share one":                  {map[string]string{"a": "1", "b": "1"}, []string{"1"}, nil},
		"they answer at other addresses":  {map[string]string{"a": "3", "b": "4"}, []string{"1", "2"}, nil},
	} {
		servers := LivingServers{Living: processesOf([]string{"a/1", "b/1"}), Advertised: test.advertised}
		if got := servers.Missing(test.answering); !slices.Equal(got, test.want) {
			t.Errorf("%s: %v are missing, want %v", name, got, test.want)
		}
	}
}

func TestAddressesThatServersAdvertise(t *testing.T) {
	own := map[string]string{"a": "1", "b": "2"}
	for name, test := range map[string]struct {
		advertised map[string]string
		answering  []string
		want       bool
	}{
		"each its own":                       {own, []string{"1", "2"}, true},
		"one of them":                        {own, []string{"2"}, true},
		"they share one":                     {map[string]string{"a": "1", "b": "1"}, []string{"1"}, true},
		"that of a server without a Lease":   {own, []string{"1", "3"}, false},
		"that of a load balancer":            {own, []string{"balancer"}, false},
		"older servers advertise no address": {nil, []string{"1", "2"}, false},
	} {
		servers := LivingServers{Living: processesOf([]string{"a/1", "b/1"}), Advertised: test.advertised}
		if got := servers.AdvertisesAll(test.answering); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

func TestLookThatFailsChangesNothingOfServersThatWereSeen(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	s.looks(at(writes(appsV1)), "a/1")
	s.looks(at(Document{Failure: "connection refused"}), "a/1")
	expect(t, s, deployments, "", []string{appsV1})
	if o := s.Observe(s.now, deployments); o.Presence != Served || len(o.ServedVersions) == 0 {
		t.Errorf("what was served by the same process is served: %+v", o)
	}
	if !s.NeedsLook() {
		t.Error("what failed has to be tried again")
	}
}

func TestAddressOfServerThatLeftDoesNotStandForOneThatCame(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.looks(at(writes(appsV1), writes(appsV1)), "a/1", "b/1")
	s.servers(true, "a/1")
	s.servers(true, "a/1", "c/1")
	s.looks(at(writes(appsV1), writes(appsV1)), "a/1", "c/1")
	expect(t, s, deployments, unseen, []string{appsV1})
	if !s.NeedsLook() {
		t.Error("the address goes within a minute")
	}
	s.now = s.now.Add(time.Minute)
	s.looks(map[string]Document{"10.0.0.1": writes(appsV1), "10.0.0.3": writes(appsV1beta1)}, "a/1", "c/1")
	expect(t, s, deployments, "", []string{appsV1}, sortedSet([]string{appsV1, appsV1beta1}))
}

func TestManagerThatStartsJustAfterAServerLeft(t *testing.T) {
	for name, test := range map[string]struct {
		later   time.Duration
		problem string
	}{
		"fewer addresses show that one was that of the server that left": {0, unseen},
		"fewer addresses, when every server that left has gone":          {2 * time.Minute, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStory()
			s.servers(true, "b/1", "c/1")
			s.looks(at(writes(appsV1), writes(appsV1)), "b/1", "c/1")
			expect(t, s, deployments, "", []string{appsV1})
			s.now = s.now.Add(test.later)
			s.looks(map[string]Document{"10.0.0.2": writes(appsV1)}, "b/1", "c/1")
			expect(t, s, deployments, test.problem, []string{appsV1})
		})
	}
}

// TestSinceWhenThereIsAProblem has problems that exist keep their start, and others begin when they are found.
func TestSinceWhenThereIsAProblem(t *testing.T) {
	s := newStory()
	expectSince := func(want time.Time) {
		t.Helper()
		if problem := s.Observe(s.now, deployments).Problem; problem == nil || !problem.Since.Equal(want) {
			t.Errorf("problem %+v, want one since %v", problem, want)
		}
	}
	s.servers(true, "a/1", "b/1")
	s.looks(at(writes(appsV1), writes(appsV1)), "a/1", "b/1")
	s.looks(at(writes(appsV1)), "a/1", "b/1") // One of the addresses was that of a server that left.
	began := s.now
	expectSince(began)
	s.servers(false, "a/1", "c/1")
	expectSince(began)
	s.looks(at(Document{Failure: "connection refused"}, writes(appsV1)), "a/1", "c/1")
	expectSince(began)
	s.now = s.now.Add(2 * time.Minute)
	s.looks(at(writes(appsV1), writes(appsV1)), "a/1", "c/1")
	expect(t, s, deployments, "", nil, []string{appsV1})
	s.servers(true, "a/1", "c/2")
	expectSince(s.now)
}

// TestServersThatComeAndGoUnread have a problem since the first came, whichever of them live.
func TestServersThatComeAndGoUnread(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	came := s.now
	s.servers(true, "a/1", "b/1")
	s.servers(true, "a/1", "b/2")
	if problem := s.Observe(s.now, deployments).Problem; problem == nil || !problem.Since.Equal(came) {
		t.Errorf("problem %+v, want one since %v", problem, came)
	}
}

func TestOneOfTwoServersBehindABalancerLeaves(t *testing.T) {
	s := newStory()
	look := func(living ...string) { s.looksThroughBalancer(writes(appsV1), living...) }
	s.servers(true, "a/1", "b/1")
	look("a/1", "b/1")
	if s.NeedsLook() {
		t.Error("another look would not tell the servers apart either")
	}
	s.servers(true, "a/1")
	look("a/1")
	expect(t, s, deployments, unseen, nil)
	if !s.NeedsLook() {
		t.Error("once the other has gone for sure, a look tells what is written")
	}
	s.now = s.now.Add(time.Minute)
	look("a/1")
	expect(t, s, deployments, "", nil, []string{appsV1})
	if s.NeedsLook() {
		t.Error("everything is known")
	}
	s.servers(true)
	look()
	expect(t, s, deployments, unseen, nil, []string{appsV1})
	if s.NeedsLook() {
		t.Error("without a Lease no look is complete")
	}
}

// TestLookIsConfirmed has etcd asked too early, in time, or not at all before a process is said to have left.
func TestLookIsConfirmed(t *testing.T) {
	for asked, confirmed := range map[time.Duration]bool{
		confirmAfter - time.Millisecond: false, confirmAfter: true, 0: false,
	} {
		s := newStory()
		s.servers(true, "a/1")
		s.looks(at(writes(appsV1)), "a/1")
		if asked != 0 {
			s.Confirm(s.now.Add(asked))
		}
		if certain := s.ConfirmableFrom().IsZero(); certain != confirmed {
			t.Errorf("asked after %v: certain: %t", asked, certain)
		}
		s.SetServers(s.now.Add(time.Hour), processesOf([]string{"a/2"}), true)
		run := s.Observe(s.now, deployments).Sightings
		if unread := len(run[len(run)-1].UnreadDeparted) > 0; unread == confirmed {
			t.Errorf("asked after %v: %+v", asked, run)
		}
	}
}

func TestLookIsConfirmedWhenTheProcessLivesOn(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	if at := s.Observe(s.now, jobs).CertainFrom; !at.IsZero() {
		t.Errorf("confirmed at %v without a look", at)
	}
	s.looks(at(Document{Failure: "timeout"}), "a/1")
	s.looks(at(writes(appsV1)), "a/1")
	first := s.now.Add(confirmAfter)
	s.looks(at(writes(appsV1)), "a/1")
	if at := s.Observe(s.now, jobs).CertainFrom; !at.Equal(first) {
		t.Errorf("confirmed at %v, want %v, after the first look that read something", at, first)
	}

	s.SetServers(first.Add(-time.Millisecond), processesOf([]string{"a/2"}), true)
	run := s.Observe(s.now, deployments).Sightings
	if !slices.Equal(run[len(run)-1].UnreadDeparted, processesOf([]string{"a"})) {
		t.Errorf("the first look may have met the successor: %+v", run)
	}
}

// looksAt takes over a look at servers that advertise addresses of their own.
func looksAt(s *story, documents map[string]Document, living ...string) {
	look := Look{LivingServers: LivingServers{Living: processesOf(living), Advertised: map[string]string{}},
		Documents: documents}
	for _, server := range look.Living {
		look.Advertised[server.Identity] = "of-" + server.Identity
	}
	s.SetLook(s.now, look)
}

func TestAServerReplacesOneThatCrashed(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	looksAt(s, map[string]Document{"of-a": writes(appsV1), "of-b": writes(appsV1)}, "a/1", "b/1")
	// b crashed. Its Lease stays for an hour.
	s.servers(true, "a/1", "b/1", "c/1")
	looksAt(s, map[string]Document{"of-a": writes(appsV1)}, "a/1", "b/1", "c/1")
	expect(t, s, deployments, unseen, []string{appsV1})
	if o := s.Observe(s.now, deployments); !slices.Equal(o.UnreadLiving, processesOf([]string{"c/1"})) {
		t.Errorf("only the new server is unseen: %v", o.UnreadLiving)
	}
	looksAt(s, map[string]Document{"of-a": writes(appsV1), "of-c": writes(appsV1)}, "a/1", "b/1", "c/1")
	expect(t, s, deployments, unseen, []string{appsV1})
	if s.NeedsLook() {
		t.Error("another look would not meet the server that crashed either")
	}
	s.servers(true, "a/1", "c/1") // It counts as gone.
	looksAt(s, map[string]Document{"of-a": writes(appsV1), "of-c": writes(appsV1)}, "a/1", "c/1")
	expect(t, s, deployments, "", []string{appsV1}, []string{appsV1})
	if s.NeedsLook() {
		t.Error("everything is known")
	}
}

func TestAServerStopsAndAnotherComesAtOnce(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	looksAt(s, map[string]Document{"of-a": writes(appsV1), "of-b": writes(appsV1)}, "a/1", "b/1")
	s.servers(true, "a/1")
	s.servers(true, "a/1", "c/1")
	looksAt(s, map[string]Document{"of-a": writes(appsV1), "of-b": writes(appsV1)}, "a/1", "c/1")
	expect(t, s, deployments, unseen, []string{appsV1})
	looksAt(s, map[string]Document{
		"of-a": writes(appsV1), "of-b": {Failure: "connection refused"}, "of-c": writes(appsV1beta1),
	}, "a/1", "c/1")
	expect(t, s, deployments, "", []string{appsV1}, sortedSet([]string{appsV1, appsV1beta1}))
}

func TestServersThatAdvertiseOneAddressAreCounted(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	look := func(living ...string) {
		advertised := map[string]string{"a": "shared", "b": "shared"}
		look := Look{LivingServers: LivingServers{Living: processesOf(living), Advertised: advertised},
			Documents: map[string]Document{"shared": writes(appsV1)}}
		s.SetLook(s.now, look)
	}
	look("a/1")
	expect(t, s, deployments, "", []string{appsV1})
	s.servers(true, "a/1", "b/1")
	look("a/1", "b/1")
	expect(t, s, deployments, unseen, []string{appsV1})
	s.servers(true, "b/1")
	look("b/1")
	expect(t, s, deployments, unseen, []string{appsV1})
	s.now = s.now.Add(2 * time.Minute)
	look("b/1")
	expect(t, s, deployments, "", []string{appsV1}, []string{appsV1})
}
