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
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// recorded is what a server of Kubernetes 1.34 said. TestRestart in test/integration/releases recorded it.
type recorded struct {
	lease            coordinationv1.Lease
	slice            discoveryv1.EndpointSlice
	version, metrics string
}

func readRecorded(t *testing.T, when string) recorded {
	t.Helper()
	read := func(name string) []byte {
		content, err := os.ReadFile(filepath.Join("testdata", "restart-of-1.34", when, name))
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	r := recorded{version: string(read("version.json")), metrics: string(read("metrics.pb"))}
	for name, into := range map[string]any{"lease.json": &r.lease, "endpointslice.json": &r.slice} {
		if err := json.Unmarshal(read(name), into); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// says makes the only server of the cluster say what was recorded.
func (c *cluster) says(r recorded) {
	c.servers[0].change(func() {
		c.servers[0].documents["/version"], c.servers[0].documents["/metrics"] = r.version, r.metrics
	})
	c.host.change(func() {
		c.leases.put(r.lease.Name, object{"metadata": object{"labels": r.lease.Labels}, "spec": r.lease.Spec})
	})
	c.servers[0].CloseClientConnections()
}

// TestRecordedRestart plays what a server of Kubernetes 1.34 said before and after it was killed and started again.
func TestRecordedRestart(t *testing.T) {
	before, after := readRecorded(t, "before"), readRecorded(t, "after")
	if !leaseFrom(&before.lease).sameProcess(leaseFrom(&after.lease)) || before.lease.UID != after.lease.UID {
		t.Error("the Lease tells one process from the next")
	}
	if diff := cmp.Diff(addressesIn(&before.slice), addressesIn(&after.slice)); diff != "" {
		t.Errorf("the address tells one process from the next: %s", diff)
	}

	start := func(t *testing.T, r recorded) (*cluster, migrationv1alpha1.StorageEvidence) {
		t.Helper()
		c := newCluster(t, 1)
		c.host.change(func() { c.leases.remove("server-0") })
		c.says(r)
		c.run(t)
		c.until(t, c.encodings(1))
		o := c.Observe(deployments)
		last, _ := o.Last()
		last.Evidence.Endpoints[0].Address = addressesIn(&r.slice)[0] // Each fake server has another one.
		return c, last.Evidence
	}
	var seen migrationv1alpha1.StorageEvidence
	t.Run("an observer that watches sees the restart", func(t *testing.T) {
		var c *cluster
		c, seen = start(t, before)
		if len(seen.Servers) != 1 || seen.Endpoints[0].ServerVersion != "v1.34.4" || !storageversion.Durable(seen) {
			t.Errorf("evidence %+v", seen)
		}
		c.settle(t)
		c.says(after)
		c.until(t, c.unread(c.servers[0], 1))
	})
	t.Run("another observer of the same process has the same evidence", func(t *testing.T) {
		if _, again := start(t, before); !storageversion.Continues(seen, again) {
			t.Errorf("%+v and %+v", seen, again)
		}
	})
	t.Run("an observer that begins after the restart has another evidence", func(t *testing.T) {
		_, later := start(t, after)
		if diff := cmp.Diff(seen.Servers, later.Servers); diff != "" {
			t.Errorf("servers (-before +after):\n%s", diff)
		}
		if storageversion.Continues(seen, later) {
			t.Error("it takes the process for the one before the restart")
		}
	})
}
