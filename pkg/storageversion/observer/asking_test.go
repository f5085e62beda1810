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
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// TestEveryAnswerCounts has each of two servers answer with an error of its own.
func TestEveryAnswerCounts(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.run(t)
	errs := map[string]error{c.servers[0].address(): errors.New("away"), c.servers[1].address(): errors.New("lags")}
	err := c.AskEach(t.Context(), func(_ context.Context, server documents.Reader) error {
		return errs[server.Client.Get().URL().Host]
	})
	for address, one := range errs {
		if !errors.Is(err, one) || !strings.Contains(err.Error(), address) {
			t.Errorf("%v does not have %v of %s", err, one, address)
		}
	}
	c.stop()
}

// TestAnswersOfServersWithoutALease asks at an address that no Lease names. A server may answer there that has lost its
// Lease before the manager began.
func TestAnswersOfServersWithoutALease(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.run(t)
	ask := func() error {
		return c.AskEach(t.Context(), func(context.Context, documents.Reader) error { return nil })
	}
	for name, why := range map[string]func() error{"AskEach": ask, "CheckCanAskEach": c.CheckCanAskEach} {
		if err := why(); err == nil || !strings.Contains(err.Error(), "whose identity Lease is gone") {
			t.Errorf("the error of %s is %v", name, err)
		}
	}
	c.clock.Step(goneAfter)
	if err := errors.Join(ask(), c.CheckCanAskEach()); err != nil {
		t.Errorf("%v later: %v", goneAfter, err)
	}
	c.stop()
}

// TestServerThatIsNotReady takes away the address that the Lease of a living server names.
func TestServerThatIsNotReady(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.host.change(func() {
		for i, server := range c.servers {
			c.holdAt(i, 1, server.address())
		}
	})
	c.run(t)
	if err := c.CheckCanAskEach(); err != nil {
		t.Error(err)
	}
	c.host.change(func() { c.slices.remove("kubernetes-0") })
	c.until(t, func() error {
		if err := c.CheckCanAskEach(); !errors.Is(err, storageversion.ErrNotReady) {
			return fmt.Errorf("the error is %w", err)
		}
		return nil
	})
	c.stop()
}

// TestServerThatStopsBehindASharedAddress has one of two servers that advertise the address of a balancer lose its
// Lease. For a while it may still answer there, and nothing else shows whose answer it is: only one server lives.
func TestServerThatStopsBehindASharedAddress(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.host.change(func() {
		for i := range c.servers {
			c.holdAt(i, 1, c.servers[1].address())
		}
		c.slices.remove("kubernetes-0")
	})
	c.run(t)
	c.host.change(func() { c.leases.remove("server-0") })
	c.until(t, func() error {
		c.poller.mu.Lock()
		defer c.poller.mu.Unlock()
		if n := len(c.poller.ledger.Living()); n != 1 {
			return fmt.Errorf("%d servers live", n)
		}
		return nil
	})
	c.clock.Step(goneAfter / 2)
	if err := c.CheckCanAskEach(); err == nil || !strings.Contains(err.Error(), "whose identity Lease is gone") {
		t.Errorf("the error is %v", err)
	}
	c.host.change(func() { c.holdAt(1, 1, c.servers[1].address()) }) // It goes on to renew its Lease.
	c.clock.Step(goneAfter / 2)
	if err := c.CheckCanAskEach(); err != nil {
		t.Errorf("%v later: %v", goneAfter, err)
	}
	c.stop()
}

// saysMixed wants the problem that requests on one connection reach several servers.
func (c *cluster) saysMixed() error {
	if p := c.Observe(deployments).Problem; p == nil || !strings.Contains(p.Message, errMixed.Error()) {
		return fmt.Errorf("the problem is %+v", p)
	}
	return nil
}

// TestBalancerThatSpreadsRequests has requests on one connection reach two servers, which are met behind one address.
// No answer shows which of them gave it, neither in a look nor when somebody asks each of them.
func TestBalancerThatSpreadsRequests(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	spread := c.behindOne()
	spread(true)
	c.run(t)
	c.until(t, c.saysMixed)
	spread(false)
	c.until(t, c.encodings(1))
	c.clock.Step(goneAfter)
	ask := func() error {
		return c.AskEach(t.Context(), func(context.Context, documents.Reader) error { return nil })
	}
	if err := ask(); err != nil {
		t.Error(err)
	}
	spread(true)
	if err := ask(); err == nil || !errors.Is(err, errMixed) && c.CheckCanAskEach() == nil { // A poll may see it first.
		t.Errorf("the error is %v, want %v", err, errMixed)
	}
	c.stop()
}

// TestMeetingThatSucceeds comes after some that failed. The next one that fails is repeated as soon as the first was.
func TestMeetingThatSucceeds(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	spread := c.behindOne()
	spread(true)
	c.run(t)
	c.clock.Step(goneAfter)
	if err := c.CheckCanAskEach(); err == nil || !strings.Contains(err.Error(), "Delete the Leases") {
		t.Errorf("the error is %v", err)
	}
	c.until(t, c.saysMixed)
	spread(false)
	c.until(t, c.encodings(1))
	c.stop()
	if c.poller.meetingDelays != meetingBackoff {
		t.Errorf("the next meeting that fails is repeated after %v", c.poller.meetingDelays.Duration)
	}
}

// TestServerWithoutHashesBehindASharedAddress has a server that does not tell what it writes. Nothing shows when
// another one answers in its place, so meetings go on, and become rare.
func TestServerWithoutHashesBehindASharedAddress(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.behindOne()
	silent := c.servers[1]
	silent.change(func() { silent.documents["/apis/apps/v1"] = `{"kind":"APIResourceList"}` })
	c.run(t)
	c.until(t, func() error {
		p := c.Observe(deployments).Problem
		if c.poller.countMet() < 2 || p == nil || !strings.Contains(p.Message, errNoHashes.Error()) {
			return fmt.Errorf("%d servers were met, and the problem is %+v", c.poller.countMet(), p)
		}
		return nil
	})
	const step = 30 * time.Second
	passStep := func() {
		c.host.change(func() { c.hold(0, 1); c.hold(1, 1) })
		c.clock.Step(step)
		for quiet, asked := 0, 0; quiet < 15; quiet++ { // By the clock of this machine a meeting takes a while.
			if got := silent.count("/metrics"); got > asked || c.isAnswering() {
				quiet, asked = 0, got
			}
			time.Sleep(10 * time.Millisecond)
		}
	}
	silent.reset()
	for range storageversion.DefaultPollInterval / step {
		passStep()
	}
	if got := silent.count("/apis/apps/v1"); got > 12 {
		t.Errorf("%d meetings in %v, want few", got, storageversion.DefaultPollInterval)
	}
	serve(silent, appsV1)
	c.until(t, func() error {
		passStep()
		return c.encodings(1)()
	})
	c.stop()
}

// TestBalancerThatIsDown asks servers behind an address at which nobody answers any more.
func TestBalancerThatIsDown(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.behindOne()
	c.run(t)
	c.until(t, c.encodings(1))
	c.servers[0].CloseClientConnections()
	c.servers[0].Close()
	err := c.AskEach(t.Context(), func(context.Context, documents.Reader) error { return nil })
	if err == nil || !strings.Contains(err.Error(), c.servers[0].address()+": connect: connection refused") {
		t.Errorf("the error is %v", err)
	}
	c.stop()
}

// TestManyQuestionsAtOnce asks a server about many resources. All requests to it share a limit, whoever asks.
func TestManyQuestionsAtOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.run(t)
	c.servers[0].reset()
	start := time.Now()
	var asking sync.WaitGroup
	for range 3 * documentsAtOnce {
		asking.Go(func() {
			_ = c.AskEach(t.Context(), func(ctx context.Context, server documents.Reader) error {
				_, err := server.ServerVersion(ctx)
				return err
			})
		})
	}
	asking.Wait()
	took := time.Since(start)
	got := c.servers[0].reset()["/version"]
	if most := documentsAtOnce + took.Seconds()*documentsPerSecond; float64(got) > most || got < 3*documentsAtOnce {
		t.Errorf("%d requests within %v", got, took)
	}
	c.stop()
}

// TestWatchOfLeasesThatIsLate has the Lease of a server change its holder, which no watch tells.
func TestWatchOfLeasesThatIsLate(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.run(t)
	c.until(t, func() error { return c.CheckLeases(t.Context()) })
	c.host.change(func() {
		c.leases.silent = true
		c.hold(1, 2)
	})
	if err := c.CheckLeases(t.Context()); err == nil || !strings.Contains(err.Error(), "is late") ||
		!strings.Contains(err.Error(), "who holds server-1 now") {
		t.Errorf("the error is %v", err)
	}
	c.host.change(func() { c.leases.silent = false })
	c.until(t, func() error { return c.CheckLeases(t.Context()) })
	c.stop()
}

// TestRestoreThatNoWatchShows has etcd go back, while the watch of Leases stays open and silent.
func TestRestoreThatNoWatchShows(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	var told error
	c.clients.leases.restored = func(err error, _ time.Time) { told = err }
	c.run(t)
	c.until(t, func() error { return c.CheckLeases(t.Context()) })
	c.host.change(func() {
		c.leases.silent = true
		c.leases.version--
	})
	want := storageversion.ErrEarlier
	for looks := range 4 {
		if looks == 3 {
			want = storageversion.ErrRestored
		}
		if err := c.CheckLeases(t.Context()); !errors.Is(err, want) || !errors.Is(told, want) {
			t.Errorf("the error is %v, and told was %v, want %v", err, told, want)
		}
		c.clock.Step(restoredAfter / 3)
	}
	c.stop()
}

// TestEveryWatchedListShowsARestore has etcd go back to before the revision that one list has shown, and breaks its
// watch.
func TestEveryWatchedListShowsARestore(t *testing.T) {
	t.Parallel()
	for path, of := range map[string]func(*cluster) *collection{
		leasesPath:         func(c *cluster) *collection { return c.leases },
		definitionsPath:    func(c *cluster) *collection { return c.definitions },
		apiServicesPath:    func(c *cluster) *collection { return c.apiServices },
		endpointSlicesPath: func(c *cluster) *collection { return c.slices },
	} {
		c := newCluster(t, 2)
		of(c).version += 100
		c.run(t)
		c.host.change(func() {
			of(c).version -= 50
			of(c).broken = true
		})
		c.until(t, func() error {
			c.mu.Lock()
			defer c.mu.Unlock()
			if !errors.Is(c.restored, storageversion.ErrEarlier) {
				return fmt.Errorf("%s: the error is %v", path, c.restored)
			}
			return nil
		})
		c.stop()
	}
}

// TestRenewalIsNoRestore has the watch of Leases show a renewal while a list of them is on its way.
func TestRenewalIsNoRestore(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	var told error
	c.clients.leases.restored = func(err error, _ time.Time) { told = err }
	c.run(t)
	c.until(t, func() error { return c.CheckLeases(t.Context()) })
	shown := func() int64 {
		c.shared.mu.Lock()
		defer c.shared.mu.Unlock()
		return c.Observer.leases.shown.revision
	}
	c.host.change(func() {
		c.leases.onTheWay = func() {
			before := shown()
			c.host.change(func() { c.hold(0, 1) })
			eventually(t, func() error {
				if shown() == before {
					return errors.New("the watch has not shown the renewal")
				}
				return nil
			})
		}
	})
	if err := c.CheckLeases(t.Context()); err != nil || told != nil {
		t.Errorf("the error is %v, and told was %v", err, told)
	}
	c.stop()
}
