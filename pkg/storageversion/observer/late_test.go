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
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// lateWatchIsTold complains while no problem says that the watch of Leases is late.
func (c *cluster) lateWatchIsTold() error {
	if p := c.Observe(deployments).Problem; p == nil || !strings.Contains(p.Message, "watch of identity Leases is late") {
		return fmt.Errorf("the problem is %+v", p)
	}
	return nil
}

// TestLateWatchIsAlwaysNoticed has the watch of Leases hang where every poll takes a look, which believes the watch.
func TestLateWatchIsAlwaysNoticed(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*testing.T) *cluster{
		"each server at its own address": func(t *testing.T) *cluster { return newCluster(t, 2) },
		"servers behind one address": func(t *testing.T) *cluster {
			c := newCluster(t, 2)
			c.behindOne()
			return c
		},
		"one address more than Leases": func(t *testing.T) *cluster {
			c := newCluster(t, 3)
			c.host.change(func() { c.leases.remove("server-2") })
			return c
		},
		"servers of 1.34 that do not tell when they started": func(t *testing.T) *cluster {
			c := newOldCluster(t, 2)
			for _, s := range c.servers {
				s.failing["/metrics"] = http.StatusForbidden
			}
			return c
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := prepare(t)
			c.run(t)
			c.until(t, c.encodings(1))
			c.settle(t)
			c.host.change(func() {
				c.leases.silent = true
				c.hold(2, 7) // A server has come.
			})
			c.passUntil(t, c.lateWatchIsTold)
		})
	}
}

// behindOne has all servers answer at the address of the first one, on one connection after the other. While requests
// are spread, those on each connection go from one server to the next as well.
func (c *cluster) behindOne() (spread func(bool)) {
	var mu sync.Mutex
	spreads, turns := false, map[string]int{} // by who asks
	for i, s := range c.servers {
		s.started = noon.Add(time.Duration(i) * time.Second)
	}
	c.servers[0].Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		turn, known := turns[r.RemoteAddr]
		switch {
		case !known:
			turn = len(turns)
		case spreads:
			turn++
		}
		turns[r.RemoteAddr] = turn
		mu.Unlock()
		c.servers[turn%len(c.servers)].ServeHTTP(w, r)
	})
	c.host.change(func() {
		for i := range c.servers {
			c.slices.remove(fmt.Sprintf("kubernetes-%d", i))
		}
		c.publishAddresses(c.servers[0])
	})
	return func(requests bool) {
		mu.Lock()
		defer mu.Unlock()
		spreads = requests
	}
}

// TestLateWatchAndBusyServer has every second list of Leases refused, which does not show that the watch has caught up.
func TestLateWatchAndBusyServer(t *testing.T) {
	t.Parallel()
	c := newReadingCluster(t)
	c.until(t, c.certain) // Nothing else asks for lists afterwards.
	c.settle(t)
	c.host.change(func() {
		c.leases.silent = true
		c.hold(0, 2)
	})
	lists := 0
	for c.lateWatchIsTold() != nil {
		c.clock.Step(5 * time.Second)
		time.Sleep(3 * time.Millisecond) // for requests
		if n := c.host.count(leasesPath); n > lists {
			lists = n
			c.host.change(func() {
				delete(c.host.failing, leasesPath)
				if lists%2 == 1 {
					c.host.failing[leasesPath] = http.StatusTooManyRequests
				}
			})
		}
		if lists > 20 {
			t.Fatal("after 20 lists nobody says that the watch is late")
		}
	}
}

// TestClientCertificateThatExpires has old servers refuse all requests on connections that began before the client
// certificate expired. client-go closes its own connections when it loads the next certificate, and no others.
func TestClientCertificateThatExpires(t *testing.T) {
	t.Parallel()
	c := newOldCluster(t, 2)
	var mu sync.Mutex
	old, expired := map[string]bool{}, false
	for _, s := range c.servers {
		s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			if !expired {
				old[r.RemoteAddr] = true
			}
			refused := expired && old[r.RemoteAddr]
			mu.Unlock()
			if refused {
				fail(w, http.StatusUnauthorized, "Unauthorized")
				return
			}
			s.ServeHTTP(w, r)
		})
	}
	c.run(t)
	c.until(t, c.encodings(1))
	c.settle(t)
	mu.Lock()
	expired = true
	mu.Unlock()
	c.clients.directHTTP.CloseIdleConnections()
	c.servers[0].restart() // so that there is a look
	c.passUntil(t, func() error {
		if p := c.Observe(deployments).Problem; p == nil {
			return fmt.Errorf("nothing has failed yet")
		}
		return nil
	})
	c.passUntil(t, func() error {
		if p := c.Observe(deployments).Problem; p != nil {
			return fmt.Errorf("the problem is %s", p.Message)
		}
		return nil
	})
}

// TestReadsOfAggregatedServers has a poll that began earlier end after the read of a migration.
func TestReadsOfAggregatedServers(t *testing.T) {
	t.Parallel()
	c := newReadingCluster(t)
	c.settle(t)
	held, release := make(chan struct{}), make(chan struct{})
	hold := sync.OnceFunc(func() { close(held); <-release })
	c.host.change(func() { c.sampleSlices.onTheWay = hold })
	c.clock.Step(storageversion.DefaultPollInterval)
	<-held // The poll has read the document, and asks for the replicas.
	next := sampleV1
	next.Version = "v2"
	c.host.change(func() {
		c.sampleSlices.onTheWay = nil
		c.host.documents[sampleV1Path] = resourcesDocument("flunders", "Flunder", next)
	})
	if err := c.ReadAggregated(t.Context(), sampleV1.Group); err != nil {
		t.Fatal(err)
	}
	close(release)
	c.pass(t, time.Minute, c.sampled(next))
}
