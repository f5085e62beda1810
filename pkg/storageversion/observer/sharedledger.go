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
	"math/rand/v2"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/retry"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	// linger is how long a server may answer at its address after it has lost its Lease. A server that stops first gives
	// up its address and its Lease, and then finishes requests, which may take a minute. If it fails to give up the
	// address, the other servers remove it: 15 s later, plus up to 10 s until they check.
	linger = 90 * time.Second

	// burst is how long a goroutine waits for more signals after the first: a server that starts causes several.
	burst = 250 * time.Millisecond
)

// sharedLedger is the Ledger with its lock and its subscribers. The same lock guards what a watcher keeps for other
// goroutines, so that they see it in step with the Ledger.
type sharedLedger struct {
	clock        clock.WithTicker
	pollInterval time.Duration
	// serversChanged is raised when a process or an address of kube-apiserver changed, or what a server serves.
	serversChanged signal
	// storageVersionsServed is raised when all servers serve StorageVersions. If only some do, a request may reach one of
	// the others.
	storageVersionsServed signal

	mu          sync.Mutex
	ledger      *storageversion.Ledger
	ready       []string // the addresses of servers that are ready, in order
	subscribers []func(schema.GroupResource)
	lastRead    map[migrationv1alpha1.EvidenceSource]time.Time
}

// update calls change under the lock, and then the subscribers with each resource that change returns.
func (s *sharedLedger) update(change func(now time.Time) storageversion.Changes) {
	s.mu.Lock()
	changes, subscribers := change(s.clock.Now()), s.subscribers
	s.mu.Unlock()
	for resource := range changes {
		for _, changed := range subscribers {
			changed(resource)
		}
	}
}

// noteRead notes that everything about a source is known up to now.
func (s *sharedLedger) noteRead(source migrationv1alpha1.EvidenceSource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastRead[source] = s.clock.Now()
}

// forgetSource notes that nothing is read from a source any more. Otherwise its last read would grow old, as if the
// source could not be read.
func (s *sharedLedger) forgetSource(source migrationv1alpha1.EvidenceSource) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lastRead, source)
}

// living returns the processes that the Ledger knows to live.
func (s *sharedLedger) living() []storageversion.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ledger.Living()
}

// nextPoll is when to poll again. It varies, so that processes that start together do not poll together forever.
func (s *sharedLedger) nextPoll() time.Time {
	return s.clock.Now().Add(s.pollInterval - rand.N(s.pollInterval/10+1))
}

// cause is why servers are asked for documents.
type cause int

const (
	woken        cause = iota // somebody raised a signal
	incomplete                // not everything could be read before
	intervalOver              // the poll interval is over
)

// keepReading calls read until ctx ends: whenever somebody raises wake, at every poll, at intervals that grow from
// those of retries while read reports that something is missing, and when read says that it is due again.
func (s *sharedLedger) keepReading(
	ctx context.Context, wake signal, retries wait.Backoff,
	read func(context.Context, cause) (missing bool, due time.Time),
) {
	backoff, nextPoll := retries, s.nextPoll()
	for until, why := nextPoll, intervalOver; ; {
		raised, err := wake.await(ctx, s.clock, until)
		if err != nil {
			return
		}
		if raised {
			why, backoff = woken, retries
		}
		missing, due := read(ctx, why)
		if why == intervalOver {
			nextPoll = s.nextPoll()
		}
		until, why = nextPoll, intervalOver
		if !missing {
			backoff = retries
		} else if soon := s.clock.Now().Add(backoff.Step()); soon.Before(until) {
			until, why = soon, incomplete
		}
		if !due.IsZero() && due.Before(until) {
			until, why = due, incomplete
		}
	}
}

// signal wakes one goroutine. Several signals before it wakes are one.
type signal chan struct{}

func newSignal() signal { return make(signal, 1) }

func (s signal) raise() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// await returns when the signal was raised, after a burst of signals is over, or when it is time. It returns an error
// if ctx ended first.
func (s signal) await(ctx context.Context, clk clock.Clock, until time.Time) (raised bool, err error) {
	timer := clk.NewTimer(until.Sub(clk.Now()))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-timer.C():
		return false, nil
	case <-s:
	}
	if !retry.Sleep(ctx, clk, burst) {
		return false, ctx.Err()
	}
	select {
	case <-s: // It belongs to the burst.
	default:
	}
	return true, nil
}
