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

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestServersDisagreeAndAgree(t *testing.T) {
	s := newStory()
	s.servers(true, "a/1", "b/1")
	s.looks(at(writes(appsV1beta1), writes(appsV1beta1)), "a/1", "b/1")
	s.servers(true, "a/1")
	s.servers(true, "a/1", "b/2")
	expect(t, s, deployments, unseen, []string{appsV1beta1})
	if !s.NeedsLook() {
		t.Error("a new process has to be looked at")
	}
	both := []string{appsV1, appsV1beta1}
	slices.Sort(both)
	s.looks(at(writes(appsV1beta1), writes(appsV1)), "a/1", "b/2")
	expect(t, s, deployments, "", []string{appsV1beta1}, both)
	expect(t, s, jobs, "", []string{batchV1}, []string{batchV1})
}

func TestAddressOfServerThatLeftDoesNotStandForOneThatIsHidden(t *testing.T) {
	both := sortedSet([]string{appsV1, appsV1beta1})
	s := newStory()
	s.servers(true, "a/1", "b/1", "c/1")
	s.looks(at(writes(appsV1), writes(appsV1), writes(appsV1beta1)), "a/1", "b/1", "c/1")
	s.servers(true, "b/1", "c/1")
	s.looks(at(writes(appsV1), writes(appsV1)), "b/1", "c/1")
	expect(t, s, deployments, "", both, both)
	if !s.NeedsLook() {
		t.Error("once the address has gone another look tells")
	}
	s.now = s.now.Add(time.Minute)
	s.looks(map[string]Document{"10.0.0.2": writes(appsV1), "10.0.0.3": writes(appsV1beta1)}, "b/1", "c/1")
	expect(t, s, deployments, "", both, both, both)
}

func TestVersionThatNobodyServesIsReadable(t *testing.T) {
	old := Hash(schema.GroupVersion{Group: "apps", Version: "v1beta2"}, "Deployment")
	s := newStory()
	s.servers(true, "a/1")
	s.looks(at(writes(old)), "a/1")
	if got := s.Observe(s.now, deployments).Versions[old]; got != "apps/v1beta2" {
		t.Errorf("the version behind the hash: got %q, want apps/v1beta2", got)
	}
}

func TestSharedStorage(t *testing.T) {
	core := schema.GroupResource{Resource: "events"}
	grouped := schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
	hash := Hash(schema.GroupVersion{Version: "v1"}, "Event")
	s := newStory()
	s.servers(true, "a/1")
	s.looks(map[string]Document{"10.0.0.1": {Resources: map[schema.GroupResource]Resource{
		core:    {Kind: "Event", Versions: []string{"v1"}, Hash: hash, Migratable: true},
		grouped: {Kind: "Event", Versions: []string{"v1"}, Hash: hash, Migratable: true},
	}}}, "a/1")
	for resource, other := range map[schema.GroupResource]schema.GroupResource{core: grouped, grouped: core} {
		o := s.Observe(s.now, resource)
		if !slices.Equal(o.SharedWith, []schema.GroupResource{other}) {
			t.Errorf("%v: shared with %v, want %v", resource, o.SharedWith, other)
		}
		if !Expires(o.Resource) || o.Versions[hash] != "v1" {
			t.Errorf("unexpected observation %+v", o)
		}
	}
}
