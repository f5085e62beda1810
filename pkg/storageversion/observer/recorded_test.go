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
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// recorded is what a server said. TestRestart in test/upgrade recorded it.
type recorded struct {
	lease            coordinationv1.Lease
	slice            discoveryv1.EndpointSlice
	version, metrics string
}

func readRecorded(t *testing.T, release, when string) recorded {
	t.Helper()
	read := func(name string) []byte {
		content, err := os.ReadFile(filepath.Join("testdata", "restart-of-"+release, when, name))
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

// says makes the only server of the cluster say what was recorded, but for its address.
func (c *cluster) says(r recorded) {
	s := c.servers[0]
	s.change(func() { s.documents["/version"], s.documents["/metrics"] = r.version, r.metrics })
	metadata := object{"labels": r.lease.Labels, "uid": r.lease.UID}
	if _, told := r.lease.Annotations[corev1.AnnotationPeerAdvertiseAddress]; told {
		metadata["annotations"] = object{corev1.AnnotationPeerAdvertiseAddress: s.address()}
	}
	c.host.change(func() {
		if before, exists := c.leases.objects[r.lease.Name]; exists && before["metadata"].(object)["uid"] != r.lease.UID {
			c.leases.remove(r.lease.Name)
		}
		c.leases.put(r.lease.Name, object{"metadata": metadata, "spec": r.lease.Spec})
	})
	s.CloseClientConnections()
}

// read wants all servers to be read, and returns the evidence. The server has the address that was recorded.
func (c *cluster) read(t *testing.T, r recorded) migrationv1alpha1.StorageEvidence {
	t.Helper()
	incarnation := *r.lease.Spec.HolderIdentity
	c.until(t, func() error {
		o := c.Observe(deployments)
		if last, _ := o.Last(); len(last.Evidence.Servers) != 1 || last.Evidence.Servers[0].Incarnation != incarnation {
			return fmt.Errorf("%s is not read: %+v", incarnation, last.Evidence)
		}
		return c.encodings(1)()
	})
	o := c.Observe(deployments)
	last, _ := o.Last()
	last.Evidence.Endpoints[0].Address = addressesIn(&r.slice)[0] // Each fake server has another one.
	return last.Evidence
}

// TestRecordedRestart plays what servers said before and after they were killed and started again. Those of Kubernetes
// 1.34 take over the Lease, those of 1.35 do not, and those of 1.36 write their address into it. Those of 1.37 do as
// those of 1.36.
func TestRecordedRestart(t *testing.T) {
	t.Parallel()
	for release, facts := range map[string]struct{ keepsLease, address bool }{
		"1.34": {keepsLease: true}, "1.35": {}, "1.36": {address: true},
	} {
		t.Run(release, func(t *testing.T) {
			before, after := readRecorded(t, release, "before"), readRecorded(t, release, "after")
			was, is := leaseFrom(&before.lease), leaseFrom(&after.lease)
			if was.sameProcess(is) != facts.keepsLease || (was.uid == is.uid) != facts.keepsLease {
				t.Errorf("the Lease was %+v and is %+v", was, is)
			}
			address := addressesIn(&before.slice)
			if diff := cmp.Diff(address, addressesIn(&after.slice)); diff != "" {
				t.Errorf("the address tells one process from the next: %s", diff)
			}
			if facts.address != slices.Equal(address, []string{is.address}) {
				t.Errorf("the server has the address %v, and its Lease %q", address, is.address)
			}
			testRecordedRestart(t, release, before, after, facts.keepsLease)
		})
	}
}

func testRecordedRestart(t *testing.T, release string, before, after recorded, keepsLease bool) {
	start := func(t *testing.T, r recorded) (*cluster, migrationv1alpha1.StorageEvidence) {
		t.Helper()
		c := newCluster(t, 1)
		c.host.change(func() { c.leases.remove("server-0") })
		c.says(r)
		c.run(t)
		return c, c.read(t, r)
	}
	var seen migrationv1alpha1.StorageEvidence
	t.Run("an observer that watches sees the restart", func(t *testing.T) {
		var c *cluster
		c, seen = start(t, before)
		endpoint := seen.Endpoints[0]
		if !strings.HasPrefix(endpoint.ServerVersion, "v"+release+".") || !storageversion.Durable(seen) ||
			(endpoint.ProcessStartTime != nil) != keepsLease {
			t.Errorf("evidence %+v", seen)
		}
		c.settle(t)
		c.says(after)
		c.read(t, after)
		if keepsLease {
			c.until(t, c.unread(c.servers[0], 1))
		}
	})
	t.Run("another observer of the same process has the same evidence", func(t *testing.T) {
		if _, again := start(t, before); !storageversion.Continues(seen, again) {
			t.Errorf("%+v and %+v", seen, again)
		}
	})
	t.Run("an observer that begins after the restart has another evidence", func(t *testing.T) {
		_, later := start(t, after)
		if same := cmp.Equal(seen.Servers, later.Servers); same != keepsLease {
			t.Errorf("servers %+v before and %+v after", seen.Servers, later.Servers)
		}
		if storageversion.Continues(seen, later) {
			t.Error("it takes the process for the one before the restart")
		}
	})
}
