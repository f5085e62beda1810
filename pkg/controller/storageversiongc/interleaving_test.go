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

package storageversiongc

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/storageversion"
)

// store is the little of an API server that the race of marker.go is about: one StorageVersion, one Lease, optimistic
// concurrency, and updates that change nothing being dropped.
type store struct {
	object  *apiserverinternalv1alpha1.StorageVersion
	version int
	lease   bool
}

func (s *store) update(object *apiserverinternalv1alpha1.StorageVersion) bool {
	if s.object == nil || s.object.ResourceVersion != object.ResourceVersion {
		return false
	}
	if !equality.Semantic.DeepEqual(s.object, object) {
		s.put(object)
	}
	return true
}

func (s *store) put(object *apiserverinternalv1alpha1.StorageVersion) {
	s.version++
	s.object = object.DeepCopy()
	s.object.ResourceVersion = fmt.Sprint(s.version)
}

// returning is a server that starts again under its old identity, one request a step.
type returning struct {
	store *store
	entry apiserverinternalv1alpha1.ServerStorageVersion
	read  *apiserverinternalv1alpha1.StorageVersion
	state string
}

func (r *returning) step() {
	switch r.state {
	case "":
		r.store.lease = true
		r.state = "registered"
	case "registered":
		r.read = published("apps.deployments")
		r.read.ResourceVersion = ""
		if r.store.object != nil {
			r.read = r.store.object.DeepCopy()
		}
		r.state = "read"
	case "read":
		others := withoutServers(r.read.Status.StorageVersions, []string{r.entry.APIServerID})
		r.read.Status.StorageVersions = append(others, r.entry)
		storageversion.SetCommonEncodingVersion(r.read)
		r.state = "registered"
		if r.read.ResourceVersion == "" {
			if r.store.object == nil {
				r.store.put(r.read)
				r.state = "published"
			}
		} else if r.store.update(r.read) {
			r.state = "published"
		}
	}
}

// collector is this controller, one request a step. Its grace is over.
type collector struct {
	store       *store
	obs         observation
	effects     []effect
	state       string
	withoutCare bool
}

func (c *collector) step() {
	switch c.state {
	case "":
		c.obs = observation{absent: sets.New[string](), began: at(100), now: at(100),
			remembered: memory{at: at(99), absentSince: missedSince(at(0), "back")}}
		if c.store.object != nil {
			c.obs.storageVersions = objects(c.store.object.DeepCopy())
		}
		c.state = "listed"
	case "listed":
		if !c.store.lease {
			c.obs.absent.Insert("back")
		}
		c.effects = decide(c.obs).effects
		c.state = "decided"
	case "decided":
		for _, e := range c.effects {
			c.write(e)
		}
		c.state = ""
	}
}

func (c *collector) write(e effect) {
	if c.withoutCare && e.action == putMarker {
		e.action = removeEntries
		if len(withoutServers(e.object.Status.StorageVersions, e.serverIDs)) == 0 {
			e.action = deleteObject
		}
	}
	if object := e.written(); object != nil {
		c.store.update(object)
	} else if c.store.object != nil && c.store.object.ResourceVersion == e.object.ResourceVersion {
		c.store.object = nil
	}
}

// TestEveryInterleavingWithAReturningServer tries every order of the requests of a server that comes back and of
// three syncs. Once it has published, the server must be in the object, whatever happened in between and after.
func TestEveryInterleavingWithAReturningServer(t *testing.T) {
	const collectorSteps, serverSteps = 9, 7
	for _, others := range [][]apiserverinternalv1alpha1.ServerStorageVersion{nil, {entry("living", "v1")}} {
		for _, withoutCare := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d other servers, without marker: %t", len(others), withoutCare), func(t *testing.T) {
				lost := sets.New[string]()
				interleavings(collectorSteps, serverSteps, func(order string) {
					if losesEntry(others, withoutCare, order) {
						lost.Insert(order)
					}
				})
				// The controller that removes at once is here to show that this test can see the entry being lost.
				if withoutCare == (lost.Len() == 0) {
					t.Errorf("the entry was lost in these orders: %v", sets.List(lost))
				}
			})
		}
	}
}

func losesEntry(others []apiserverinternalv1alpha1.ServerStorageVersion, withoutCare bool, order string) bool {
	s := &store{}
	back := entry("back", "v1")
	s.put(published("apps.deployments", append(others, back)...))
	server := &returning{store: s, entry: back}
	gc := &collector{store: s, withoutCare: withoutCare}
	lost := false
	for _, who := range order {
		if who == 'c' {
			gc.step()
		} else {
			server.step()
		}
		if server.state == "published" {
			named := func(e serverEntry) bool { return e.APIServerID == "back" }
			lost = lost || s.object == nil || !slices.ContainsFunc(s.object.Status.StorageVersions, named)
		}
	}
	return lost
}

// interleavings calls f with every word of so many c and s.
func interleavings(c, s int, f func(string)) {
	var extend func(c, s int, prefix string)
	extend = func(c, s int, prefix string) {
		if c == 0 || s == 0 {
			f(prefix + strings.Repeat("c", c) + strings.Repeat("s", s))
			return
		}
		extend(c-1, s, prefix+"c")
		extend(c, s-1, prefix+"s")
	}
	extend(c, s, "")
}
