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
	"fmt"
	"net/http"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

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
		if _, looked := c.LastLook()[migrationv1alpha1.EvidenceFromAggregatedDiscovery]; !looked {
			t.Error("no time of the last look")
		}
	})
	t.Run("are asked at every poll", func(t *testing.T) {
		c.settle(t)
		v1 := encode("v1")
		c.clock.Step(defaultPollInterval)
		c.until(t, c.sampled(v1))
	})
	t.Run("are asked when a Lease of such a server has another holder", func(t *testing.T) {
		c.settle(t)
		v1alpha1 := encode("v1alpha1")
		began := c.clock.Now()
		c.host.change(func() {
			c.leases.put("sample", object{
				"metadata": object{"labels": object{identityLabel: "sample-apiserver"}},
				"spec":     object{"holderIdentity": "sample_1"},
			})
		})
		c.until(t, c.sampled(v1alpha1))
		if took := c.clock.Since(began); took > defaultPollInterval/2 {
			t.Errorf("it took %v, as long as a poll", took)
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
					return fmt.Errorf("asked %d times", got)
				}
				return nil
			})
			o := c.Observe(flunders)
			if last, _ := o.Last(); o.Problem == nil || len(last.Writing) != 1 {
				t.Errorf("problem %v, written %q", o.Problem, last.Writing)
			}
		}
		v1 := encode("v1")
		c.host.change(func() { delete(c.host.failing, sampleV1Path) })
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
		c.clock.Step(defaultPollInterval)
		c.settle(t)
		if got := c.host.count(sampleV1Path); got > 0 {
			t.Errorf("asked %d times all the same", got)
		}
	})
	c.stop()
}
