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
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// newOldCluster has servers of Kubernetes 1.34, whose identity Leases outlive their processes.
func newOldCluster(t *testing.T, servers int) *cluster {
	t.Helper()
	c := newCluster(t, servers)
	for _, s := range c.servers {
		s.change(func() {
			s.documents["/version"] = `{"gitVersion":"v1.34.4"}`
			s.started = noon
		})
	}
	return c
}

// restart replaces the process at an address, which the identity Lease does not tell.
func (s *fakeServer) restart() {
	s.change(func() { s.started = s.started.Add(time.Second) })
	s.CloseClientConnections()
}

// unread wants that many processes at the address of a server to have left unread, and all that live to be read.
func (c *cluster) unread(s *fakeServer, want int) func() error {
	return func() error {
		o, got := c.Observe(deployments), 0
		for _, sighting := range o.Sightings {
			if slices.Contains(sighting.UnreadDeparted, storageversion.Process{Identity: s.address()}) {
				got++
			}
		}
		if got != want || o.Problem != nil || len(o.UnreadLiving) > 0 {
			return fmt.Errorf("%d processes were not read, want %d; problem %+v, unread %v", got, want, o.Problem,
				o.UnreadLiving)
		}
		return nil
	}
}

func TestRestartUnderTheSameLeaseIsNoticed(t *testing.T) {
	t.Parallel()
	for name, forbidden := range map[string]bool{"processes tell their starts": false, "they may not": true} {
		t.Run(name, func(t *testing.T) {
			c := newOldCluster(t, 2)
			for _, s := range c.servers {
				if forbidden {
					s.failing["/metrics"] = http.StatusForbidden
				}
			}
			c.run(t)
			c.until(t, c.encodings(1))
			last, _ := func() (storageversion.Sighting, bool) { o := c.Observe(deployments); return o.Last() }()
			for _, endpoint := range last.Evidence.Endpoints {
				if endpoint.ServerVersion != "v1.34.4" || (endpoint.ProcessStartTime == nil) != forbidden {
					t.Errorf("evidence %+v", endpoint)
				}
			}
			if durable := storageversion.Durable(last.Evidence); durable == forbidden {
				t.Errorf("durable: %t", durable)
			}
			c.settle(t)
			c.servers[1].restart()
			c.until(t, c.unread(c.servers[1], 1))
			c.settle(t)
			c.servers[1].restart()
			c.until(t, c.unread(c.servers[1], 2))
			if err := c.unread(c.servers[0], 0)(); err != nil {
				t.Error(err)
			}
			c.stop()
		})
	}
}

func TestConnectionThatEndsForAnotherReason(t *testing.T) {
	t.Parallel()
	c := newOldCluster(t, 2)
	c.run(t)
	c.until(t, c.encodings(1))
	c.settle(t)
	c.servers[1].CloseClientConnections()
	want := maps.Clone(aLook)
	want["/version"], want["/metrics"] = 2, 1
	c.until(t, asked(c.servers[1], want))
	c.until(t, c.unread(c.servers[1], 0))
	c.stop()
}

// TestKeptConnectionsAreCheap counts what it costs to keep a connection: one request each minute.
func TestKeptConnectionsAreCheap(t *testing.T) {
	t.Parallel()
	c := newOldCluster(t, 2)
	c.run(t)
	c.until(t, c.encodings(1))
	c.settle(t)
	for i := range 3 {
		c.clock.Step(keepAliveInterval)
		for _, s := range c.servers {
			eventually(t, func() error {
				if got := s.count("/version"); got < i+1 {
					return fmt.Errorf("%d requests", got)
				}
				return nil
			})
		}
	}
	for _, s := range c.servers {
		if err := asked(s, map[string]int{"/version": 3})(); err != nil {
			t.Error(err)
		}
	}
	c.stop()
}

// TestServerThatStopsAnswering keeps its connection open, as a host does that lost its power.
func TestServerThatStopsAnswering(t *testing.T) {
	t.Parallel()
	c := newOldCluster(t, 1)
	c.run(t)
	c.until(t, c.encodings(1))
	c.settle(t)
	c.servers[0].change(func() { c.servers[0].failing["/"] = noAnswer })
	c.clock.Step(keepAliveInterval)
	c.until(t, func() error {
		if o := c.Observe(deployments); o.Problem == nil {
			return fmt.Errorf("nothing is the matter")
		}
		return nil
	})
	c.servers[0].change(func() { delete(c.servers[0].failing, "/") })
	c.until(t, c.unread(c.servers[0], 0))
	c.stop()
}

// TestServerThatIsBusyLives has a server refuse the request that keeps its connection open, or answer late.
func TestServerThatIsBusyLives(t *testing.T) {
	t.Parallel()
	c := newOldCluster(t, 2)
	c.run(t)
	c.until(t, c.encodings(1))
	c.settle(t)
	since := c.Observe(deployments).ServersSince
	for i, code := range []int{http.StatusServiceUnavailable, comeBack, lateAnswer, 0} {
		c.servers[1].change(func() { c.servers[1].failing["/version"] = code })
		c.clock.Step(keepAliveInterval)
		c.until(t, func() error {
			if got := c.servers[1].count("/version"); got < i+1 {
				return fmt.Errorf("%d requests", got)
			}
			return nil
		})
	}
	if lost := c.Observe(deployments).ServersSince; !lost.Equal(since) {
		t.Errorf("the server counted as lost at %v", lost)
	}
	c.stop()
}

// TestOldServersBehindOneAddress has a manager first read the address, because more addresses may appear, and then meet
// both servers there. Whichever answered first has not left.
func TestOldServersBehindOneAddress(t *testing.T) {
	t.Parallel()
	c := newOldCluster(t, 2)
	c.behindOne()
	c.run(t)
	if c.Observe(deployments).Problem == nil {
		t.Error("the manager does not wait for more addresses")
	}
	c.until(t, c.encodings(1))
	if err := c.unread(c.servers[0], 0)(); err != nil {
		t.Error(err)
	}
	c.stop()
}

// TestSharedAddressThatGoes has a balancer lose one of its two addresses. The three servers behind it live on.
func TestSharedAddressThatGoes(t *testing.T) {
	t.Parallel()
	c := newOldCluster(t, 3)
	c.behindOne()
	c.servers[1].Config.Handler = c.servers[0].Config.Handler
	c.host.change(func() { c.publishAddresses(c.servers[:2]...) })
	c.run(t)
	c.until(t, c.encodings(1))
	first := 0
	if c.servers[1].address() < c.servers[0].address() {
		first = 1
	}
	c.host.change(func() { c.slices.remove(fmt.Sprintf("kubernetes-%d", first)) })
	c.settle(t)
	if o := c.Observe(deployments); len(o.Sightings) != 1 || o.Problem != nil {
		t.Errorf("problem %+v, sightings %+v", o.Problem, o.Sightings)
	}
	c.stop()
}

// TestServerThatTellsLater has a server that does not tell who it is when it is asked first.
func TestServerThatTellsLater(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cluster func(*testing.T, int) *cluster
		path    string
		code    int
	}{
		"it does not know the roles yet":            {newCluster, "/version", http.StatusForbidden},
		"its metrics break off, which is no answer": {newOldCluster, "/metrics", cutOff},
	} {
		t.Run(name, func(t *testing.T) {
			c := test.cluster(t, 2)
			late := c.servers[1]
			late.change(func() { late.failing[test.path] = test.code })
			c.run(t)
			c.until(t, func() error {
				if c.Observe(deployments).Problem == nil {
					return errors.New("nothing is missing")
				}
				return nil
			})
			late.change(func() { delete(late.failing, test.path) })
			c.until(t, c.encodings(1))
			last, _ := func() (storageversion.Sighting, bool) { o := c.Observe(deployments); return o.Last() }()
			if !storageversion.Durable(last.Evidence) {
				t.Errorf("evidence %+v", last.Evidence)
			}
			c.stop()
		})
	}
}
