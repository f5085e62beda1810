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

package observer

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// sample is what an APIService refers to.
var sample = object{"namespace": "sample", "name": "api"}

// sampled wants a complete observation of what the aggregated server stores, in that encoding.
func (c *cluster) sampled(encoding schema.GroupVersion) func() error {
	return func() error {
		o := c.Observe(flunders)
		last, seen := o.Last()
		want := []string{storageversion.Hash(encoding, "Flunder")}
		if o.Class != storageversion.Aggregated || o.Problem != nil || !seen || !slices.Equal(last.Writing, want) {
			return fmt.Errorf("class %q, problem %v, written %q, want %q", o.Class, o.Problem, last.Writing, want)
		}
		return nil
	}
}

func TestAggregatedServers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	encode := func(version string) schema.GroupVersion {
		encoding := schema.GroupVersion{Group: sampleV1.Group, Version: version}
		c.host.change(func() { c.host.documents[sampleV1Path] = resourcesDocument("flunders", "Flunder", encoding) })
		return encoding
	}
	v1alpha1 := encode("v1alpha1")
	c.run(t)
	c.settle(t)

	t.Run("are asked when their APIService appears", func(t *testing.T) {
		c.host.change(func() { c.register(sampleV1, "", sample) })
		c.until(t, c.sampled(v1alpha1))
		c.until(t, func() error {
			if _, looked := c.LastRead()[migrationv1alpha1.EvidenceFromAggregatedDiscovery]; !looked {
				return errors.New("no time of the last look")
			}
			return nil
		})
	})
	t.Run("are asked at every poll", func(t *testing.T) {
		c.settle(t)
		v1 := encode("v1")
		c.clock.Step(storageversion.DefaultPollInterval)
		c.until(t, c.sampled(v1))
	})
	t.Run("are asked when somebody needs to know", func(t *testing.T) {
		c.settle(t)
		v1alpha1, began := encode("v1alpha1"), c.clock.Now()
		if err := c.ReadAggregated(t.Context(), "apps"); err != nil || c.sampled(v1alpha1)() == nil {
			t.Errorf("another group was read: %v", err)
		}
		if err := c.ReadAggregated(t.Context(), sampleV1.Group); err != nil {
			t.Error(err)
		}
		if err := c.sampled(v1alpha1)(); err != nil || !c.clock.Now().Equal(began) {
			t.Errorf("%v after the read: %v", c.clock.Since(began), err)
		}
		encode("v1")
		if err := c.ReadAggregated(t.Context(), sampleV1.Group); err != nil {
			t.Error(err)
		}
	})
	t.Run("are asked again while they fail, and what was known stays known", func(t *testing.T) {
		c.settle(t)
		c.host.change(func() {
			c.host.failing[sampleV1Path] = http.StatusServiceUnavailable
			c.register(sampleV1, "", object{"namespace": "sample", "name": "api", "port": 8443})
		})
		// The APIService says that there is a document, so even "not found" is no absence.
		for _, code := range []int{http.StatusServiceUnavailable, http.StatusNotFound} {
			c.host.change(func() { c.host.failing[sampleV1Path] = code })
			asked := c.host.count(sampleV1Path)
			c.until(t, func() error {
				if got := c.host.count(sampleV1Path) - asked; got < 4 {
					c.clock.Step(time.Second) // In the end a minute is between tries.
					return fmt.Errorf("asked %d times", got)
				}
				return nil
			})
			o := c.Observe(flunders)
			// It is another server than before, which may write anything.
			if last, _ := o.Last(); o.Problem == nil || !slices.Contains(last.Writing, storageversion.Unknown) {
				t.Errorf("problem %v, written %q", o.Problem, last.Writing)
			}
		}
		v1 := encode("v1")
		c.host.change(func() { delete(c.host.failing, sampleV1Path) })
		c.clock.Step(time.Minute)
		c.until(t, c.sampled(v1))
	})
	t.Run("are forgotten with their APIService", func(t *testing.T) {
		c.host.change(func() { c.apiServices.remove("v1.sample.example.com") })
		c.until(t, func() error {
			if o := c.Observe(flunders); o.Presence != storageversion.NotServed {
				return fmt.Errorf("presence %q", o.Presence)
			}
			return nil
		})
		c.settle(t)
		c.clock.Step(storageversion.DefaultPollInterval)
		c.settle(t)
		if got := c.host.count(sampleV1Path); got > 0 {
			t.Errorf("asked %d times all the same", got)
		}
		if at, looked := c.LastRead()[migrationv1alpha1.EvidenceFromAggregatedDiscovery]; looked {
			t.Errorf("the last look still counts, that at %v", at)
		}
	})
	c.stop()
}

// TestAggregatedDocumentThatLosesItsHash has a server that stops to say what it writes. From then on it may write
// anything.
func TestAggregatedDocumentThatLosesItsHash(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.host.change(func() {
		c.host.documents[sampleV1Path] = resourcesDocument("flunders", "Flunder", sampleV1)
		c.register(sampleV1, "", sample)
	})
	c.run(t)
	c.until(t, c.sampled(sampleV1))
	c.host.change(func() {
		c.host.documents[sampleV1Path] = marshal(metav1.APIResourceList{
			TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
			APIResources: []metav1.APIResource{stored("flunders", "Flunder", "", "list", "update")},
		})
	})
	if err := c.ReadAggregated(t.Context(), sampleV1.Group); err != nil {
		t.Fatal(err)
	}
	o := c.Observe(flunders)
	if last, _ := o.Last(); !slices.Equal(last.Writing, []string{storageversion.Unknown}) {
		t.Errorf("presence %q, written %q", o.Presence, last.Writing)
	}
	c.stop()
}

// TestAggregatedServerOfManyResources has a server whose resources would fill etcd with StorageStates.
func TestAggregatedServerOfManyResources(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.host.change(func() {
		c.host.documents[sampleV1Path] = resourcesDocument("flunders", "Flunder", sampleV1)
		c.register(sampleV1, "", sample)
	})
	c.run(t)
	c.until(t, c.sampled(sampleV1))
	many := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}}
	for i := range maxAggregated + 1 {
		many.APIResources = append(many.APIResources, stored(fmt.Sprintf("r%d", i), "R", "hash=", "list", "update"))
	}
	c.host.change(func() { c.host.documents[sampleV1Path] = marshal(many) })
	err := c.ReadAggregated(t.Context(), sampleV1.Group)
	if err == nil || !strings.Contains(err.Error(), "has 1001 resources") {
		t.Errorf("the error is %v", err)
	}
	if o := c.Observe(flunders); o.Problem == nil {
		t.Errorf("nothing is wrong with %v", o)
	}
	c.stop()
}

// TestAPIServiceThatIsNew has an APIService come, go and come for another version. Until the document of the aggregated
// server was read, nobody knows whether it serves a resource.
func TestAPIServiceThatIsNew(t *testing.T) {
	now := time.Date(2026, time.November, 20, 12, 0, 0, 0, time.UTC)
	ledger, living := storageversion.NewLedger(linger), []storageversion.Process{{Identity: "a", Incarnation: "1"}}
	ledger.SetServers(now, living, true)
	ledger.SetLook(now, storageversion.Look{LivingServers: storageversion.LivingServers{Living: living},
		Documents: map[string]storageversion.Document{"10.0.0.1:6443": {Version: "v1.37.1"}}})
	r := &aggregatedReader{
		sharedLedger: &sharedLedger{ledger: ledger, serversChanged: newSignal()}, wake: newSignal(),
		services: map[schema.GroupVersion]service{},
	}
	next := schema.GroupVersion{Group: sampleV1.Group, Version: "v2"}
	for _, step := range []struct {
		what string
		do   func()
		want storageversion.Presence
	}{
		{"no APIService", func() {}, storageversion.NotServed},
		{"it comes", func() { r.set(now, sampleV1, service{address: "sample/api:443"}) }, storageversion.PresenceUnknown},
		{"its document is read", func() {
			ledger.SetAggregated(now, sampleV1, &storageversion.AggregatedDocument{Address: "sample/api:443",
				Resources: map[schema.GroupResource]storageversion.Resource{
					flunders: {Kind: "Flunder", Versions: []string{"v1"}, Hash: "abc=", Migratable: true},
				}})
		}, storageversion.Served},
		{"it goes", func() { r.set(now, sampleV1, service{}) }, storageversion.NotServed},
		{"another version comes", func() { r.set(now, next, service{address: "sample/api:443"}) },
			storageversion.PresenceUnknown},
	} {
		step.do()
		o := ledger.Observe(now, flunders)
		if unknown := step.want == storageversion.PresenceUnknown; o.Presence != step.want || (o.Problem != nil) != unknown {
			t.Errorf("%s: presence %q, want %q; problem %v", step.what, o.Presence, step.want, o.Problem)
		}
	}
}

// TestReplicasOfAggregatedServers has Services with all kinds of endpoints.
func TestReplicasOfAggregatedServers(t *testing.T) {
	t.Parallel()
	pod := func(name string) object {
		return object{"addresses": []string{"10.0.0.1"}, "targetRef": object{"kind": "Pod", "name": name}}
	}
	with := func(endpoint object, conditions object) object {
		endpoint["conditions"] = conditions
		return endpoint
	}
	address := func() object { return object{"addresses": []string{"10.0.0.1"}} }
	stopped := object{"ready": false, "serving": false, "terminating": true}
	stopping := object{"ready": false, "serving": true, "terminating": true}
	owner := func(kind, uid string, labels object) object {
		return object{"labels": labels, "uid": "of-one", "ownerReferences": []object{
			{"apiVersion": "apps/v1", "kind": kind, "name": "api", "uid": uid, "controller": true}}}
	}
	hashed := func(hash string) object { return object{appsv1.ControllerRevisionHashLabelKey: hash} }
	for name, test := range map[string]struct {
		endpoints []object
		pods      map[string]object // their metadata
		unasked   string
		forbidden bool // whether a Pod may not be read
	}{
		"no endpoints":                  {},
		"one Pod":                       {endpoints: []object{pod("a")}},
		"one address":                   {endpoints: []object{address()}},
		"two addresses":                 {endpoints: []object{address(), address()}, unasked: "do not name Pods"},
		"a Pod and an address":          {endpoints: []object{pod("a"), address()}, unasked: "do not name Pods"},
		"no name of a Pod":              {endpoints: []object{pod("a"), pod("../nodes/b")}, unasked: "do not name Pods"},
		"one Pod, and one that is gone": {endpoints: []object{pod("a"), with(pod("b"), stopped)}},
		"two Pods of one ReplicaSet": {endpoints: []object{pod("a"), pod("b")}, pods: map[string]object{
			"a": owner("ReplicaSet", "1", nil), "b": owner("ReplicaSet", "1", nil)}},
		"a rollout": {endpoints: []object{pod("a"), with(pod("b"), stopping)}, unasked: "2 revisions",
			pods: map[string]object{
				"a": owner("ReplicaSet", "2", nil), "b": owner("ReplicaSet", "1", nil)}},
		"two Pods of one revision of a DaemonSet": {endpoints: []object{pod("a"), pod("b")}, pods: map[string]object{
			"a": owner("DaemonSet", "1", hashed("x")), "b": owner("DaemonSet", "1", hashed("x"))}},
		"a rollout of a StatefulSet": {endpoints: []object{pod("a"), pod("b")}, unasked: "2 revisions",
			pods: map[string]object{
				"a": owner("StatefulSet", "1", hashed("x")), "b": owner("StatefulSet", "1", hashed("y"))}},
		"Pods of another workload": {endpoints: []object{pod("a"), pod("b")}, unasked: "2 revisions",
			pods: map[string]object{"a": {"uid": "a"}, "b": {"uid": "b"}}},
		"Pods that may not be read": {endpoints: []object{pod("a"), pod("b")}, forbidden: true,
			unasked: "Allow the manager"},
		"Pods that are gone": {endpoints: []object{pod("a"), pod("b")}, unasked: "The manager asks again"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 0)
			c.host.change(func() {
				c.sampleSlices.put("api", object{"addressType": "IPv4", "endpoints": test.endpoints})
				if test.forbidden {
					c.host.failing[samplePodsPath+"a"] = http.StatusForbidden
				}
				for pod, metadata := range test.pods {
					c.host.documents[samplePodsPath+pod] = marshal(object{
						"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata})
				}
			})
			got, err := whyReplicasDiffer(t.Context(), c.clients.objects,
				types.NamespacedName{Namespace: "sample", Name: "api"})
			if !strings.Contains(got, test.unasked) || (got == "") != (test.unasked == "") {
				t.Errorf("%q (%v), want %q", got, err, test.unasked)
			}
			c.clients.closeIdleConnections()
		})
	}
}

// TestReplicasThatDiffer has a server that gets a second replica.
func TestReplicasThatDiffer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	v1 := schema.GroupVersion{Group: sampleV1.Group, Version: "v1"}
	c.host.change(func() {
		c.host.documents[sampleV1Path] = resourcesDocument("flunders", "Flunder", v1)
		c.register(sampleV1, "", sample)
	})
	c.run(t)
	c.until(t, c.sampled(v1))
	look := c.Observe(flunders).ReadAt
	c.host.change(func() {
		c.sampleSlices.put("api", object{"addressType": "IPv4", "endpoints": []object{
			{"addresses": []string{"10.0.0.1"}}, {"addresses": []string{"10.0.0.2"}}}})
	})
	c.settle(t) // Before that nobody may wait for the next poll.
	c.clock.Step(storageversion.DefaultPollInterval)
	c.until(t, func() error {
		o := c.Observe(flunders)
		if o.Problem == nil || o.Problem.Reason != migrationv1alpha1.StateReasonServersUnseen || !o.ReadAt.Equal(look) {
			return fmt.Errorf("problem %v, looked at %v", o.Problem, o.ReadAt)
		}
		return nil
	})
	c.host.change(func() { c.sampleSlices.remove("api") })
	c.settle(t)
	c.clock.Step(storageversion.DefaultPollInterval)
	c.until(t, c.sampled(v1))
	c.stop()
}
