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
	"testing"

	"github.com/google/go-cmp/cmp"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// encodings wants as many in a complete observation of deployments.
func (c *cluster) encodings(n int) func() error {
	return func() error {
		o := c.Observe(deployments)
		last, seen := o.Last()
		if !seen || o.Problem != nil || o.Presence != storageversion.Served || len(last.Writing) != n {
			return fmt.Errorf("presence %q, problem %v, written %q, want %d encodings", o.Presence, o.Problem, last.Writing, n)
		}
		return nil
	}
}

// asked wants just these requests to a server since it was reset.
func asked(s *fakeServer, want map[string]int) func() error {
	return func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if diff := cmp.Diff(want, s.requests); diff != "" {
			return fmt.Errorf("requests (-want +got):\n%s", diff)
		}
		return nil
	}
}

var aLook = map[string]int{
	"/api": 1, "/apis": 1, "/apis/apps/v1": 1, "/apis/authorization.k8s.io/v1": 1, "/version": 1,
}

func TestLooksAtEveryServer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	serve(c.servers[1], appsV1beta1)
	c.run(t)
	c.until(t, c.encodings(2))
	for _, s := range c.servers {
		if err := asked(s, aLook)(); err != nil {
			t.Error(err)
		}
	}
	o := c.Observe(deployments)
	last, _ := o.Last()
	if last.Evidence.Source != migrationv1alpha1.EvidenceFromServerDiscovery ||
		len(last.Evidence.Endpoints) != 3 || len(last.Evidence.Servers) != 3 {
		t.Errorf("evidence %v", last.Evidence)
	}
	if got := c.host.count("/apis"); got != 0 {
		t.Errorf("%d documents of whichever server answers", got)
	}
	if c.told[deployments] == 0 {
		t.Error("nobody was told")
	}

	t.Run("a renewed Lease costs nothing", func(t *testing.T) {
		c.settle(t)
		c.host.change(func() { c.hold(1, 1) })
		c.settle(t)
		if got := c.servers[1].reset(); len(got) > 0 {
			t.Errorf("requests %v", got)
		}
	})
	t.Run("another process is looked at", func(t *testing.T) {
		serve(c.servers[1], appsV1)
		c.host.change(func() { c.hold(1, 2) })
		c.until(t, c.encodings(1))
	})
	t.Run("a server that comes is looked at", func(t *testing.T) {
		another := newFakeServer(t)
		serve(another, appsV1beta1)
		c.servers = append(c.servers, another)
		c.host.change(func() { c.hold(3, 1); c.publishAddresses(c.servers...) })
		c.until(t, c.encodings(2))
	})
	c.stop()
}

// TestPolls has servers change without another Lease.
func TestPolls(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.run(t)
	c.until(t, c.encodings(1))
	c.settle(t)

	before := c.LastRead()[migrationv1alpha1.EvidenceFromServerDiscovery]
	c.clock.Step(storageversion.DefaultPollInterval)
	for _, s := range c.servers {
		c.until(t, asked(s, aLook))
	}
	c.until(t, func() error {
		if after := c.LastRead()[migrationv1alpha1.EvidenceFromServerDiscovery]; !after.After(before) {
			return fmt.Errorf("the last look was at %v, and before that at %v", after, before)
		}
		return nil
	})

	// A server that serves another built-in resource than before, which nothing else has told of.
	c.settle(t)
	c.servers[1].change(func() {
		c.servers[1].documents["/api"] = `{"kind":"APIGroupDiscoveryList","items":[{"metadata":{},"versions":[
			{"version":"v1","resources":[{"resource":"pods","verbs":["list"]}]}]}]}`
		c.servers[1].documents["/api/v1"] = resourcesDocument("pods", "Pod", coreV1)
	})
	c.clock.Step(storageversion.DefaultPollInterval)
	c.until(t, func() error {
		if got := c.servers[1].count("/api/v1"); got != 1 {
			return fmt.Errorf("%d requests for the new group version", got)
		}
		return nil
	})

	// A process that serves the same in another encoding, and has taken over the Lease of the one before.
	c.settle(t)
	c.servers[0].change(func() {
		c.servers[0].documents["/apis/apps/v1"] = resourcesDocument("deployments", "Deployment", appsV1beta1)
	})
	c.clock.Step(storageversion.DefaultPollInterval)
	c.until(t, c.encodings(2))
	c.stop()
}

func TestWithoutLeasesEveryPollIsALook(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 0)
	c.run(t)
	c.until(t, c.encodings(1))
	c.settle(t)
	told := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.told[deployments]
	}
	before := told()
	serve(c.host, appsV1beta1)
	c.clock.Step(storageversion.DefaultPollInterval)
	c.until(t, func() error {
		if told() == before {
			return errors.New("nobody was told of the poll")
		}
		return nil
	})
	c.stop()
}

func TestAServerThatIsAwayCostsTheOthersNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.servers[1].change(func() { c.servers[1].failing["/"] = http.StatusInternalServerError })
	c.run(t)
	if err := asked(c.servers[0], aLook)(); err != nil {
		t.Error(err)
	}
	tries := func(n int) func() error {
		return func() error {
			if got := c.servers[1].count("/version"); got < n {
				return fmt.Errorf("the server was asked %d times", got)
			}
			return nil
		}
	}
	c.until(t, tries(4))
	if err := asked(c.servers[0], aLook)(); err != nil {
		t.Error(err)
	}
	if o := c.Observe(deployments); o.Problem == nil {
		t.Error("nothing is the matter")
	}
	c.servers[1].change(func() { delete(c.servers[1].failing, "/") })
	c.until(t, c.encodings(1))

	t.Run("nor does one document that fails", func(t *testing.T) {
		c.settle(t)
		c.servers[1].change(func() { c.servers[1].failing["/apis/apps"] = http.StatusInternalServerError })
		c.host.change(func() { c.hold(1, 2) })
		c.until(t, tries(4))
		if err := asked(c.servers[0], aLook)(); err != nil {
			t.Error(err)
		}
		c.servers[1].change(func() { delete(c.servers[1].failing, "/apis/apps") })
		c.until(t, c.encodings(1))
	})
	c.stop()
}

func TestCustomGroupVersionsAreNotBuiltIn(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.run(t)
	c.until(t, c.encodings(1))
	c.settle(t)
	// The APIService goes, and documents still list the group version.
	c.host.change(func() { c.apiServices.remove("v1.example.com"); c.hold(0, 2) })
	c.until(t, asked(c.servers[0], aLook))
	c.stop()
}

// publish has a server serve StorageVersions.
func publish(s *fakeServer) {
	s.change(func() {
		s.documents["/api"] = `{"kind":"APIGroupDiscoveryList","items":[
			{"metadata":{"name":"internal.apiserver.k8s.io"},"versions":[
			{"version":"v1alpha1","resources":[{"resource":"storageversions","verbs":["list"]}]}]}]}`
		s.documents["/apis/internal.apiserver.k8s.io/v1alpha1"] =
			resourcesDocument("storageversions", "StorageVersion", publishingV1)
	})
}

// TestStorageVersionsAreAwaited has a server that does not answer when the manager starts, and lists of StorageVersions
// that fail at first. What the Ledger hears of first is all the same StorageVersions.
func TestStorageVersionsAreAwaited(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	for _, s := range c.servers {
		publish(s)
	}
	c.storageVersions = c.host.collect(storageVersionsPath, "internal.apiserver.k8s.io/v1alpha1", "StorageVersion")
	c.host.change(func() {
		c.storageVersions.put("apps.deployments", object{"status": object{"storageVersions": []object{
			{"apiServerID": "server-0", "encodingVersion": "apps/v1"},
			{"apiServerID": "server-1", "encodingVersion": "apps/v1"}}}})
		c.host.failing[storageVersionsPath] = http.StatusForbidden
	})
	c.servers[1].change(func() { c.servers[1].failing["/api"] = http.StatusServiceUnavailable })
	c.run(t)
	c.servers[1].change(func() { delete(c.servers[1].failing, "/api") })
	c.until(t, func() error {
		if c.host.count(storageVersionsPath+"?watch") < 2 {
			return errors.New("nobody has tried twice to read StorageVersions")
		}
		return nil
	})
	c.host.change(func() { delete(c.host.failing, storageVersionsPath) })
	c.until(t, c.encodings(1))
	for _, one := range c.Observe(deployments).Sightings {
		if one.Evidence.Source != migrationv1alpha1.EvidenceFromStorageVersion {
			t.Errorf("evidence from %s: %v", one.Evidence.Source, one.Writing)
		}
	}
	c.stop()
}

// TestStorageVersionsThatCannotBeListed has the list of StorageVersions fail for ever. Documents are the evidence then.
func TestStorageVersionsThatCannotBeListed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	publish(c.servers[0])
	c.host.change(func() { c.host.failing[storageVersionsPath] = http.StatusForbidden })
	c.start(t)
	c.until(t, c.encodings(1))
	if waited := c.clock.Since(noon); waited < storageVersionPatience {
		t.Errorf("documents counted after %v", waited)
	}
	c.stop()
}

func TestStorageVersionsAreWatchedWhileServed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	source := func(want migrationv1alpha1.EvidenceSource) func() error {
		return func() error {
			o := c.Observe(deployments)
			if last, _ := o.Last(); last.Evidence.Source != want {
				return fmt.Errorf("evidence from %q, want %q", last.Evidence.Source, want)
			}
			return nil
		}
	}
	publish(c.servers[0])
	c.storageVersions = c.host.collect(storageVersionsPath, "internal.apiserver.k8s.io/v1alpha1", "StorageVersion")
	c.host.change(func() {
		c.storageVersions.put("apps.deployments", object{"status": object{"storageVersions": []object{
			{"apiServerID": "server-0", "encodingVersion": "apps/v1", "decodableVersions": []string{"apps/v1"}},
			{"apiServerID": "server-1", "encodingVersion": "apps/v1beta1", "decodableVersions": []string{"apps/v1"}}}}})
	})
	c.run(t)
	c.until(t, source(migrationv1alpha1.EvidenceFromServerDiscovery))
	if got := c.host.count(storageVersionsPath + "?watch"); got > 0 {
		t.Error("StorageVersions are watched although only one server publishes")
	}

	publish(c.servers[1])
	c.host.change(func() { c.hold(1, 2) })
	c.until(t, source(migrationv1alpha1.EvidenceFromStorageVersion))
	c.until(t, c.encodings(2))
	if _, heard := c.LastRead()[migrationv1alpha1.EvidenceFromStorageVersion]; !heard {
		t.Error("StorageVersions were never heard of")
	}

	c.host.change(func() { delete(c.host.collections, storageVersionsPath) })
	c.host.CloseClientConnections()
	c.passUntil(t, func() error {
		o := c.Observe(deployments)
		if last, _ := o.Last(); last.Evidence.Source == migrationv1alpha1.EvidenceFromStorageVersion {
			return fmt.Errorf("the evidence is still from StorageVersions")
		}
		if at, heard := c.LastRead()[migrationv1alpha1.EvidenceFromStorageVersion]; heard {
			return fmt.Errorf("what was heard of StorageVersions at %v still counts", at)
		}
		return nil
	})
	c.stop()
}

// TestStorageVersionsThatMayNotBeReadAnyMore wants the documents to tell again what is written.
func TestStorageVersionsThatMayNotBeReadAnyMore(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	publish(c.servers[0])
	c.storageVersions = c.host.collect(storageVersionsPath, "internal.apiserver.k8s.io/v1alpha1", "StorageVersion")
	c.host.change(func() {
		c.storageVersions.put("apps.deployments", object{"status": object{"storageVersions": []object{
			{"apiServerID": "server-0", "encodingVersion": "apps/v1", "decodableVersions": []string{"apps/v1"}}}}})
	})
	c.run(t)
	from := func(want migrationv1alpha1.EvidenceSource) func() error {
		return func() error {
			o := c.Observe(deployments)
			if last, _ := o.Last(); last.Evidence.Source != want {
				return fmt.Errorf("evidence from %q, want %q", last.Evidence.Source, want)
			}
			return nil
		}
	}
	c.until(t, from(migrationv1alpha1.EvidenceFromStorageVersion))
	c.broken(storageVersionsPath, http.StatusForbidden)
	c.passUntil(t, from(migrationv1alpha1.EvidenceFromServerDiscovery))
	c.stop()
}
