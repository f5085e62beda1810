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

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestOneServer(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	expect(t, s, deployments, unseen)
	s.looksThroughBalancer(writes(appsV1), "a/1")
	expect(t, s, deployments, "", []string{appsV1})
	o := s.Observe(s.now, deployments)
	if o.Class != BuiltIn || o.Presence != Served || o.Versions[appsV1] != "apps/v1" || o.ReadAt != s.now {
		t.Errorf("unexpected observation %+v", o)
	}
	if got, want := s.Resources(), []schema.GroupResource{deployments, jobs}; !slices.Equal(got, want) {
		t.Errorf("resources: got %v, want %v", got, want)
	}
}

func TestResourceThatNobodyServes(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1")
	s.looks(at(writes(appsV1)), "a/1")
	if o := s.Observe(s.now, widgets); o.Presence != NotServed || o.Class != "" {
		t.Errorf("unexpected observation %+v", o)
	}
	s.servers(true, "a/2")
	if o := s.Observe(s.now, widgets); o.Presence != PresenceUnknown {
		t.Errorf("a server that was not asked may serve it: %+v", o)
	}
	without := writes(appsV1)
	delete(without.Resources, deployments)
	s.looks(at(without), "a/2")
	if o := s.Observe(s.now, deployments); o.Presence != NotServed || o.Problem != nil {
		t.Errorf("unexpected observation %+v", o)
	}
}

func TestResourcesThatNobodyCanMigrateAreLeftOut(t *testing.T) {
	reviews := schema.GroupResource{Group: "apps", Resource: "reviews"}
	document := writes(appsV1)
	document.Resources[reviews] = Resource{Kind: "Review", Versions: []string{"v1"}, Hash: appsV1}
	s := newStory()
	s.servers(true, "a/1")
	s.looks(at(document), "a/1")
	if slices.Contains(s.Resources(), reviews) {
		t.Errorf("Resources: got %v", s.Resources())
	}
	changes := s.SetServers(s.tick(), processesOf([]string{"a/2"}), true)
	if _, changed := changes[reviews]; changed || len(changes) != 2 {
		t.Errorf("Changes: got %v, want those of deployments and jobs", changes)
	}
}
