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
	"k8s.io/apimachinery/pkg/util/sets"
)

// newStoryOfAll has a resource of each class.
func newStoryOfAll() *story {
	s := newStory()
	s.servers(true, "a/1")
	s.looks(at(writes(appsV1)), "a/1")
	s.SetDefinition(s.tick(), widgets, widget(1, "v1", "v1"))
	s.SetAggregated(s.tick(), schema.GroupVersion{Group: flunders.Group, Version: "v1"}, &AggregatedDocument{
		Address: "wardle/api:443", Resources: map[schema.GroupResource]Resource{
			flunders: {Kind: "Flunder", Versions: []string{"v1"}, Hash: flunderV1, Migratable: true},
		},
	})
	return s
}

func TestUnreadListIsAProblemOfItsClass(t *testing.T) {
	for class, of := range map[Class][]schema.GroupResource{
		Custom: {widgets}, BuiltIn: {deployments, jobs},
		Aggregated: {flunders, widgets}, // An aggregated server may be in front of a definition.
	} {
		t.Run(string(class), func(t *testing.T) {
			s := newStoryOfAll()
			all := s.Resources()
			before := map[schema.GroupResource]Observation{}
			for _, resource := range all {
				before[resource] = s.Observe(s.now, resource)
			}
			failure := Unreadable{Failure: "refused", Since: s.now.Add(-time.Minute)}
			for _, want := range []Changes{sets.New(of...), nil} { // The second failure is no news.
				if diff := cmp.Diff(want, s.SetUnreadable(class, failure)); diff != "" {
					t.Errorf("changes (-want +got):\n%s", diff)
				}
				failure.Failure = "away"
			}
			for _, resource := range all {
				o := s.Observe(s.now, resource)
				if !slices.Contains(of, resource) {
					if diff := cmp.Diff(before[resource], o); diff != "" {
						t.Errorf("%s changed (-want +got):\n%s", resource, diff)
					}
					continue
				}
				last, _ := o.Last()
				if o.Problem == nil || o.Problem.Reason != failed || o.Problem.Since != failure.Since ||
					!strings.Contains(o.Problem.Message, "away") || o.AllWrite(last.Writing[0]) ||
					o.ReadAt.After(failure.Since) || o.Presence != Served {
					t.Errorf("unexpected observation %+v, problem %+v", o, o.Problem)
				}
			}
			if got := s.UnreadableSince(class); got != failure.Since {
				t.Errorf("unread since %v", got)
			}
			for _, want := range []Changes{sets.New(of...), nil} {
				if diff := cmp.Diff(want, s.SetUnreadable(class, Unreadable{})); diff != "" {
					t.Errorf("changes (-want +got):\n%s", diff)
				}
			}
			for _, resource := range all {
				if diff := cmp.Diff(before[resource], s.Observe(s.now, resource)); diff != "" {
					t.Errorf("%s differs from before (-want +got):\n%s", resource, diff)
				}
			}
		})
	}
}

// TestUnreadListMayHideAResource has absence count as unknown: another process may have recorded the resource.
func TestUnreadListMayHideAResource(t *testing.T) {
	s := newStoryOfAll()
	nobodys := schema.GroupResource{Group: "example.com", Resource: "gadgets"}
	s.SetDefinition(s.tick(), widgets, nil)
	for resource, presence := range map[schema.GroupResource]Presence{widgets: Deleted, nobodys: NotServed} {
		if o := s.Observe(s.now, resource); o.Presence != presence || o.Problem != nil {
			t.Errorf("%s: unexpected observation %+v", resource, o)
		}
	}
	for _, class := range []Class{Custom, BuiltIn, Aggregated} {
		s.SetUnreadable(class, Unreadable{Failure: "refused", Since: s.now})
		if o := s.Observe(s.now, nobodys); o.Presence != PresenceUnknown || o.Problem == nil {
			t.Errorf("%s: unexpected observation %+v", class, o)
		}
		if o := s.Observe(s.now, widgets); class != BuiltIn && (o.Presence != PresenceUnknown || o.Problem == nil) {
			t.Errorf("unexpected observation %+v", o)
		}
		s.SetUnreadable(class, Unreadable{})
	}
}

// TestOtherProblemsComeFirst because they name the server.
func TestOtherProblemsComeFirst(t *testing.T) {
	s := newStoryOfAll()
	s.servers(true, "a/1", "b/1")
	s.SetUnreadable(BuiltIn, Unreadable{Failure: "refused", Since: s.now})
	expect(t, s, deployments, unseen, []string{appsV1})
}
