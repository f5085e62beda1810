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

// TestLookThatIsTakenBack finds out that a process was not read after a record may name it. The process that left then
// must not match the record.
func TestLookThatIsTakenBack(t *testing.T) {
	s := newStory()
	s.SetServers(s.now, processesOf([]string{"a/1", "b/1"}), true)
	s.SetLook(s.now, Look{LivingServers: LivingServers{Living: processesOf([]string{"a/1", "b/1"})},
		Documents: at(writes(appsV1), writes(appsV1))})
	expect(t, s, deployments, "", []string{appsV1})
	// The second address was that of a process which left before this manager started.
	s.now = s.now.Add(20 * time.Second)
	s.SetLook(s.now, Look{LivingServers: LivingServers{Living: processesOf([]string{"a/1", "b/1"})},
		Documents: at(writes(appsV1))})
	expect(t, s, deployments, unseen, []string{appsV1})
	if o := s.Observe(s.now, deployments); slices.ContainsFunc(o.UnreadLiving, func(p Process) bool {
		return p.Incarnation != ""
	}) {
		t.Errorf("unread are %v, which the record names", o.UnreadLiving)
	}
	s.SetServers(s.now, processesOf([]string{"a/1", "b/2"}), true)
	o := s.Observe(s.now, deployments)
	last, _ := o.Last()
	if want := processesOf([]string{"b/"}); !slices.Equal(last.UnreadDeparted, want) {
		t.Errorf("left without having been read: %v, want %v", last.UnreadDeparted, want)
	}
}

// TestLookAfterOneThatIsTakenBack reads the processes. So a record that names them is right from then on.
func TestLookAfterOneThatIsTakenBack(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.shares("", at(writes(appsV1), writes(appsV1)), "a/1", "b/1")
	s.SetServers(s.now.Add(time.Second), processesOf([]string{"a/1", "b/1", "c/1"}), true)
	s.shares("", at(writes(appsV1), writes(appsV1), writes(appsV1)), "a/1", "b/1", "c/1")
	expect(t, s, deployments, "", []string{appsV1}, []string{appsV1})
	s.servers(false, "a/1", "b/1", "d/1")
	want := processesOf([]string{"a/1", "b/1", "d/1"})
	if o := s.Observe(s.now, deployments); !slices.Equal(o.UnreadLiving, want) {
		t.Errorf("unread are %v, want %v", o.UnreadLiving, want)
	}
}

// TestLookIsNotCompletedByTime has a look that is not complete, because a server that left may still answer. When that
// cannot be any more, the look does not count: nothing was recorded of it.
func TestLookIsNotCompletedByTime(t *testing.T) {
	s := newStory() // Servers linger for a minute.
	s.servers(true, "a/1", "c/1")
	s.now = s.now.Add(time.Hour)
	s.looks(at(writes(appsV1), writes(appsV1)), "a/1", "c/1")
	s.servers(true, "a/1")
	s.looks(at(writes(appsV1)), "a/1")
	s.now = s.now.Add(30 * time.Second)
	s.servers(true, "a/1", "d/1")
	s.looks(at(writes(appsV1), writes(appsV1beta1)), "a/1", "d/1")
	for range 12 {
		if o := s.Observe(s.now, deployments); o.AllWrite(appsV1) || o.Problem == nil {
			t.Fatalf("d writes another encoding, and was not read: %+v", o)
		}
		s.tick()
	}
}

// TestDocumentOfAServerThatLeft asks for the document of a server whose Lease is gone, at an address that is still
// there. What it does not answer is no evidence.
func TestDocumentOfAServerThatLeft(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.looks(at(writes(appsV1), writes(appsV1)), "a/1", "b/1")
	s.servers(true, "a/1")
	advertised := map[string]string{"a": "10.0.0.1", "b": "10.0.0.2"}
	s.SetLook(s.tick(), Look{LivingServers: LivingServers{Living: processesOf([]string{"a/1"}), Advertised: advertised},
		Documents: at(writes(appsV1), Document{Failure: "connection refused"})})
	o := s.Observe(s.now, deployments)
	last, _ := o.Last()
	if o.Problem != nil || Anonymous(last.Evidence) || !Durable(last.Evidence) {
		t.Errorf("problem %v, evidence %+v", o.Problem, last.Evidence)
	}
}
