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
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// retryBackoff is between snapshots while something is missing.
var retryBackoff = wait.Backoff{
	Duration: 500 * time.Millisecond, Factor: 2, Steps: 10, Cap: 15 * time.Second, Jitter: 0.1,
}

// pollReason is why the poller asks servers.
type pollReason int

const (
	serversMoved     pollReason = iota // a process or an address has changed
	somethingMissing                   // the last snapshot was not complete
	intervalOver                       // the poll interval is over
)

// discoveryPoller tells the Ledger what servers say in their discovery documents.
type discoveryPoller struct {
	*facts
	clients         *clients
	leases          *leaseWatcher
	addresses       *addressWatcher
	definitions     *definitionWatcher
	aggregated      *aggregatedReader
	storageVersions *storageVersionWatcher
	serversChanged  signal

	synced bool // whether there was a snapshot; guarded by facts.mu

	// Only the goroutine of run uses these.
	last     discoverySnapshot
	backoff  wait.Backoff
	nextTry  time.Time // when to ask again for what is missing; zero if nothing is
	nextPoll time.Time
}

func (p *discoveryPoller) run(ctx context.Context) {
	c := p.clients
	for _, watched := range []*source{c.leases, c.endpointSlices, c.definitions, c.apiServices} {
		select {
		case <-ctx.Done():
			return
		case <-watched.listed:
		}
	}
	p.serversChanged.clear() // The lists raised it.
	p.nextPoll = p.facts.nextPoll()
	for reason := serversMoved; ; {
		switch reason {
		case serversMoved:
			p.backoff = retryBackoff
			p.takeSnapshot(ctx)
		case somethingMissing:
			p.retry(ctx)
		case intervalOver:
			p.poll(ctx)
		}
		p.schedule(reason)

		until := p.nextPoll
		reason = intervalOver
		if !p.nextTry.IsZero() && p.nextTry.Before(until) {
			until, reason = p.nextTry, somethingMissing
		}
		if moved, err := p.serversChanged.await(ctx, p.clock, until); err != nil {
			return
		} else if moved {
			reason = serversMoved
		}
	}
}

// schedule sets the times of the next try and the next poll.
func (p *discoveryPoller) schedule(after pollReason) {
	p.mu.Lock()
	missing := p.ledger.NeedsLook()
	p.mu.Unlock()
	switch {
	case !missing:
		p.nextTry, p.backoff = time.Time{}, retryBackoff
	case after != intervalOver || p.nextTry.IsZero():
		p.nextTry = p.clock.Now().Add(p.backoff.Step())
	}
	if after == intervalOver {
		p.nextPoll = p.facts.nextPoll()
	}
}

// takeSnapshot asks every server for everything.
func (p *discoveryPoller) takeSnapshot(ctx context.Context) {
	p.clients.forgetConnections()
	s := p.readServers(ctx)
	if ctx.Err() != nil {
		return // An interrupted request says nothing about its server.
	}
	p.last = s
	if served, known := s.storageVersionsServed(); known {
		p.storageVersions.setServed(served)
	}
	p.update(func(now time.Time) storageversion.Changes {
		p.synced = true
		if len(s.Incomplete()) == 0 {
			p.lastRead[migrationv1alpha1.EvidenceFromServerDiscovery] = now
		}
		return p.ledger.SetLook(now, s.Look)
	})
}

// retry takes another snapshot if a server answers that failed before, or if nothing failed and a server is missing all
// the same. Documents that belong together are then read together. A server that stays away does not cost the others a
// snapshot each time.
func (p *discoveryPoller) retry(ctx context.Context) {
	failed := p.last.Incomplete()
	p.clients.forgetConnections()
	recovered := func(address string) bool { return p.hasRecovered(ctx, address) }
	if len(failed) == 0 || slices.ContainsFunc(failed, recovered) {
		p.takeSnapshot(ctx)
	}
}

// hasRecovered says whether more can be read from an address than for the last snapshot.
func (p *discoveryPoller) hasRecovered(ctx context.Context, address string) bool {
	before := p.last.Documents[address]
	_, now := p.readServer(ctx, address, p.last.Direct)
	return now.Failure == "" && (before.Failure != "" || len(now.FailedGroups) < len(before.FailedGroups))
}

// poll looks for a reason to take another snapshot that no watch has reported. A process does not change how it
// encodes. Where Leases tell processes apart it is therefore enough to compare what each server serves.
func (p *discoveryPoller) poll(ctx context.Context) {
	if len(p.leases.processes()) == 0 || len(p.last.Incomplete()) > 0 || p.catalogsChanged(ctx) {
		p.takeSnapshot(ctx)
	}
}

// catalogsChanged says whether a server serves other built-in group versions than for the last snapshot. It asks one server
// after the other, because catalogs are large if there are many custom resources.
func (p *discoveryPoller) catalogsChanged(ctx context.Context) bool {
	p.clients.forgetConnections()
	logger := klog.FromContext(ctx)
	for _, address := range p.last.addresses {
		_, now, err := p.readCatalog(ctx, address, p.last.Direct)
		if err != nil {
			// Leases tell which servers live. It does not matter whether one of them answers just now.
			logger.V(4).Info("An API server did not say what it serves", "address", address, "err", err)
			return false
		}
		if !slices.Equal(now, p.last.catalogs[address].only(p.aggregated.isBuiltIn)) {
			logger.V(2).Info("An API server serves other resources than before", "address", address)
			return true
		}
	}
	p.current(migrationv1alpha1.EvidenceFromServerDiscovery)
	return false
}
