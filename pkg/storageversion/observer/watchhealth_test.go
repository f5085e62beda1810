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
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

// newReadingCluster has a resource of each class.
func newReadingCluster(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t, 1)
	c.host.change(func() {
		c.host.documents[sampleV1Path] = resourcesDocument("flunders", "Flunder", sampleV1)
		c.register(sampleV1, "", sample)
		c.define("v1", 1)
	})
	c.run(t)
	c.until(t, c.sampled(sampleV1))
	c.until(t, func() error { return errors.Join(c.whole(widgets), c.whole(deployments)) })
	return c
}

// define is called in a change.
func (c *cluster) define(storage string, generation int) {
	versions := []object{}
	for _, version := range []string{"v1", "v2"} {
		versions = append(versions, object{"name": version, "served": true, "storage": version == storage})
	}
	c.definitions.put(widgets.String(), object{
		"metadata": object{"generation": generation},
		"spec": object{
			"group": widgets.Group, "names": object{"plural": widgets.Resource, "kind": "Widget"}, "versions": versions,
		},
		"status": object{"conditions": []object{{"type": "Established", "status": "True"}}},
	})
}

// whole complains unless the observation of a resource is complete.
func (c *cluster) whole(resource schema.GroupResource) error {
	o := c.Observe(resource)
	if _, seen := o.Last(); !seen || o.Problem != nil {
		return fmt.Errorf("%s was seen %t, with the problem %v", resource, seen, o.Problem)
	}
	return nil
}

// each complains about the first of the resources that check complains about.
func (c *cluster) each(check func(schema.GroupResource) error) error {
	return errors.Join(check(widgets), check(deployments), check(flunders))
}

// broken answers the requests for a watched list with that code from now on.
func (c *cluster) broken(path string, code int) {
	c.host.change(func() { c.host.failing[path] = code })
	c.host.CloseClientConnections()
}

// pass lets time go by in large steps, and calls check after each. Servers renew their Leases meanwhile. Time stands
// still while a request is under way.
func (c *cluster) pass(t *testing.T, period time.Duration, check func() error) {
	t.Helper()
	for end := c.clock.Now().Add(period); c.clock.Now().Before(end); {
		if !c.isAnswering() {
			c.host.change(func() { c.hold(0, 1) })
			c.clock.Step(5 * time.Second)
		}
		time.Sleep(5 * time.Millisecond) // for requests
		if err := check(); err != nil {
			t.Fatal(err)
		}
	}
}

// passUntil lets time go by until the check passes. Watches that fail are repeated by the clock of this machine.
func (c *cluster) passUntil(t *testing.T, check func() error) {
	t.Helper()
	c.until(t, func() error {
		c.pass(t, 5*time.Second, func() error { return nil })
		return check()
	})
}

func (c *cluster) tolds() map[schema.GroupResource]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	told := c.told
	c.told = map[schema.GroupResource]int{}
	return told
}

func TestWatchedListThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, path string
		code       int
		of         schema.GroupResource
		source     migrationv1alpha1.EvidenceSource
	}{
		{"definitions, refused", definitionsPath, http.StatusForbidden, widgets,
			migrationv1alpha1.EvidenceFromCustomResourceDefinition},
		{"definitions, not answered", definitionsPath, http.StatusServiceUnavailable, widgets,
			migrationv1alpha1.EvidenceFromCustomResourceDefinition},
		{"Leases, refused", leasesPath, http.StatusForbidden, deployments,
			migrationv1alpha1.EvidenceFromServerDiscovery},
		{"APIServices, refused", apiServicesPath, http.StatusForbidden, flunders,
			migrationv1alpha1.EvidenceFromAggregatedDiscovery},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newReadingCluster(t)
			began := c.clock.Now()
			c.broken(tc.path, tc.code)
			asked := func() int { return c.host.count(tc.path) + c.host.count(tc.path+"?watch") }
			before := asked()
			c.until(t, func() error { // The first failure is noted when the second request comes.
				if asked() < before+2 {
					return errors.New("nobody has asked twice")
				}
				return nil
			})
			c.pass(t, storageversion.DefaultPollInterval-time.Minute, func() error { return c.each(c.whole) })

			out := func() error {
				o := c.Observe(tc.of)
				if o.Problem == nil || !strings.Contains(o.Problem.Message, ": "+http.StatusText(tc.code)+". Check") {
					return fmt.Errorf("the problem of %s is %v", tc.of, o.Problem)
				}
				return nil
			}
			c.passUntil(t, out)
			if since := c.Observe(tc.of).Problem.Since; since.Sub(began) > time.Minute {
				t.Errorf("since %v, want %v", since, began)
			}
			if read := c.LastRead()[tc.source]; read.Sub(began) > time.Minute {
				t.Errorf("last read at %v, want %v", read, began)
			}
			for _, other := range []schema.GroupResource{widgets, deployments, flunders} {
				depends := other == tc.of || other == widgets && tc.of == flunders // One may come in front of the definition.
				if err := c.whole(other); (err != nil) != depends {
					t.Errorf("%s: %v", other, err)
				}
			}
			c.tolds()
			c.pass(t, time.Minute, out)
			if n := c.tolds()[tc.of]; n > 1 { // A poll confirms documents.
				t.Errorf("the subscriber was told %d times while nothing changed", n)
			}

			c.host.change(func() {
				c.define("v2", 2)
				delete(c.host.failing, tc.path)
			})
			c.until(t, func() error { return c.each(c.whole) })
			if told := c.tolds(); told[tc.of] == 0 {
				t.Errorf("the subscriber was told of %v", told)
			}
			o := c.Observe(widgets)
			if last, _ := o.Last(); tc.of == widgets && o.Versions[last.Writing[0]] != "example.com/v2" {
				t.Errorf("what was missed is not there as soon as the definitions can be read: %v", last.Writing)
			}
		})
	}
}

// TestWatchOfLeasesThatHangs has a server start again while the watch shows nothing and does not fail.
func TestWatchOfLeasesThatHangs(t *testing.T) {
	t.Parallel()
	c := newReadingCluster(t)
	c.settle(t)
	c.host.change(func() {
		c.leases.silent = true
		c.hold(0, 2)
	})
	began, told := c.clock.Now(), func() error {
		if o := c.Observe(deployments); o.Problem == nil || !strings.Contains(o.Problem.Message, "watch") {
			return fmt.Errorf("the problem is %v", o.Problem)
		}
		return nil
	}
	c.until(t, func() error {
		c.clock.Step(5 * time.Second)
		return told()
	})
	if took := c.clock.Since(began); took < storageversion.DefaultPollInterval {
		t.Errorf("a moment counts: it is a problem after %v", took)
	}
	if read := c.LastRead()[migrationv1alpha1.EvidenceFromServerDiscovery]; read.After(began) {
		t.Errorf("all was read at %v, and the server started at %v", read, began)
	}
	since := c.Observe(deployments).Problem.Since
	c.clock.Step(time.Second)
	c.Observer.leases.health.tried(errors.New("the watch broke"))
	if o := c.Observe(deployments); o.Problem == nil || !o.Problem.Since.Equal(since) {
		t.Errorf("the problem began at %v. When the watch broke as well, it is %v", since, o.Problem)
	}
	// The cache of the API server hears nothing of etcd, and goes on sending bookmarks.
	c.clock.Step(time.Second)
	c.host.change(func() { c.leases.bookmarks = true })
	c.settle(t)
	if err := told(); err != nil {
		t.Errorf("after a bookmark %v", err)
	}
	c.host.change(func() {
		c.leases.silent = false
		c.hold(0, 2)
	})
	c.until(t, func() error { return c.whole(deployments) })
}

// TestShortFailuresDoNotAddUp has a watch that begins between them, and shows nothing.
func TestShortFailuresDoNotAddUp(t *testing.T) {
	t.Parallel()
	c := newReadingCluster(t)
	r := c.shared.healthOf(storageversion.Custom)
	for range 10 {
		r.tried(errors.New("away"))
		c.clock.Step(storageversion.DefaultPollInterval / 2)
		r.tried(nil)
	}
	if err := c.whole(widgets); err != nil {
		t.Error(err)
	}
}
