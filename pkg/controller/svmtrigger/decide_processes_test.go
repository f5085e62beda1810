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

package svmtrigger

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// look shows the ledger a process of the only server, whose identity Lease stays the same.
func (l *life) look(version string, started time.Time) {
	servers := []storageversion.Process{{Identity: "a", Incarnation: "1"}}
	l.ledger.SetServers(l.in.Now, servers, true)
	l.ledger.SetLook(l.in.Now, storageversion.Look{LivingServers: storageversion.LivingServers{Living: servers},
		Documents: map[string]storageversion.Document{"10.0.0.1": {
			Version: version, Started: started, Connected: storageversion.LeaseMayOutliveProcess(version),
			Resources: map[schema.GroupResource]storageversion.Resource{
				widgets: {Kind: "Widget", Versions: []string{"v1"}, Hash: v1, Migratable: true},
			},
		}}})
}

// lookWithout shows the ledger that the only server does not serve the resource.
func (l *life) lookWithout() {
	servers := []storageversion.Process{{Identity: "a", Incarnation: "1"}}
	l.ledger.SetServers(l.in.Now, servers, true)
	l.ledger.SetLook(l.in.Now, storageversion.Look{LivingServers: storageversion.LivingServers{Living: servers},
		Documents: map[string]storageversion.Document{"10.0.0.1": {Version: "v1.37.0"}}})
}

// TestProcessThatAnotherReplacedUnwatched has two managers see the same server under the same Lease.
func TestProcessThatAnotherReplacedUnwatched(t *testing.T) {
	never := time.Time{}
	for name, test := range map[string]struct {
		version     string
		first, then time.Time
		epoch       int64
	}{
		"a Lease that identifies the process":   {"v1.35.4", never, never, 1},
		"a Lease that does not, and one start":  {"v1.34.4", start, start, 1},
		"a Lease that does not, and two starts": {"v1.34.4", start, start.Add(time.Hour), 2},
		"starts that nobody may know":           {"v1.34.4", never, never, 2},
		"a version that nobody may know":        {"", never, never, 2},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t)
			l.unwatched()
			l.look(test.version, test.first)
			l.decide()
			l.after(2 * time.Minute)
			l.succeeds()
			l.after(time.Second)
			l.in.Now = l.in.Now.Add(time.Second)
			l.look(test.version, test.first) // A poll, which proofs wait for where evidence is not durable.
			l.after(time.Second)
			l.expect(1, v1, v1)

			l.unwatched()
			l.in.Now = l.in.Now.Add(time.Minute)
			l.look(test.version, test.then)
			l.after(time.Second)
			want := []string{v1}
			if test.epoch > 1 {
				want = append(want, storageversion.Unknown)
			}
			l.expect(test.epoch, v1, want...)
		})
	}
}

// TestBesideAServerWithoutALease has an address that no Lease names, so the evidence counts only for a while. But the
// Leases show that another process took the place of a, and any number may have been there in between. Or a
// StorageVersion shows that another process has published something.
func TestBesideAServerWithoutALease(t *testing.T) {
	for name, test := range map[string]struct {
		published           string // the first resource version of the StorageVersion, if there is one
		incarnation, latest string // what the next manager sees
		epoch               int64
	}{
		"the same process":            {"", "1", "", 1},
		"another process":             {"", "3", "", 2},
		"the same publication":        {"1", "1", "1", 1},
		"a publication that replaced": {"1", "1", "3", 2},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t)
			look := func(incarnation, published string, addresses ...string) {
				servers := []storageversion.Process{{Identity: "a", Incarnation: incarnation}}
				look := storageversion.Look{LivingServers: storageversion.LivingServers{Living: servers},
					Documents: map[string]storageversion.Document{}}
				for _, address := range addresses {
					look.Documents[address] = storageversion.Document{
						Version: "v1.37.0", ServesStorageVersions: published != "",
						Resources: map[schema.GroupResource]storageversion.Resource{
							widgets: {Kind: "Widget", Versions: []string{"v1"}, Hash: v1, Migratable: true},
						},
					}
				}
				l.ledger.SetServers(l.in.Now, servers, true)
				if published != "" {
					l.ledger.SetStorageVersion(l.in.Now, "example.com.widgets", &storageversion.StorageVersion{
						UID: "u", ResourceVersion: published, EncodingVersions: map[string]string{"a": "example.com/v1"},
					}, true)
					l.ledger.SetStorageVersionsWatched(l.in.Now, true)
				}
				l.ledger.SetLook(l.in.Now, look)
				l.after(time.Second)
			}
			l.unwatched()
			look("1", test.published, "10.0.0.1")
			l.after(2 * time.Minute)
			l.succeeds()
			l.after(time.Second)
			look("1", test.published, "10.0.0.1", "10.0.0.2")
			l.expect(1, v1, v1)

			l.unwatched()
			l.memory = Memory{}
			l.in.Now = l.in.Now.Add(5 * time.Minute)
			look(test.incarnation, test.latest, "10.0.0.1", "10.0.0.2")
			if epoch := l.in.State.Status.Epoch; epoch != test.epoch {
				t.Errorf("the epoch is %d, want %d", epoch, test.epoch)
			}
		})
	}
}
