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
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/retry"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// retryBackoff is between looks while something is missing.
var retryBackoff = wait.Backoff{
	Duration: 500 * time.Millisecond, Factor: 2, Steps: 10, Cap: 15 * time.Second, Jitter: 0.1,
}

// meetingBackoff is between meetings that do not meet all servers, or cannot read one of them. What may help soon is a
// balancer that finds out that a server is ready. Everything else takes somebody who changes something.
var meetingBackoff = wait.Backoff{
	Duration: time.Second, Factor: 2, Steps: 20, Cap: 5 * time.Minute, Jitter: 0.1,
}

// addressDelay is how long a server may have a Lease and no address. The address appears up to 25 s after the Lease.
const addressDelay = 30 * time.Second

// storageVersionPatience is how long to wait for the first list of StorageVersions. Without permission it never comes.
const storageVersionPatience = 30 * time.Second

// discoveryPoller gives the discovery documents of servers to the Ledger.
type discoveryPoller struct {
	*sharedLedger
	clients    *clients
	leases     *leaseWatcher
	aggregated *aggregatedReader
	kept       *keptConnections

	// synced: there was a look. allMet: in the last look servers shared addresses, and all of them were met there. Guarded
	// by sharedLedger.mu.
	synced, allMet bool

	// Only the goroutine of run writes these, while no other reads them.
	last storageversion.Look
	// direct says that the addresses of the last look come from EndpointSlices. Otherwise there is one address, that of
	// the configured host, and whichever server answers there.
	direct bool
	// awaited says that the first list of StorageVersions was waited for.
	awaited       bool
	meetingDelays wait.Backoff
	problems      retry.Streak
	// shortSince is since when there are fewer addresses than servers. meetFrom is when to take another look at those, if
	// nobody raises a signal before.
	shortSince, meetFrom time.Time
}

func (p *discoveryPoller) run(ctx context.Context) {
	defer p.kept.keepers.Wait()
	c := p.clients
	for _, watched := range []*watchedList{c.leases, c.endpointSlices, c.definitions, c.apiServices} {
		select {
		case <-ctx.Done():
			return
		case <-watched.listed:
		}
	}
	p.serversChanged.raise() // The lists did so too, unless there are no servers in them.
	p.keepReading(ctx, p.serversChanged, retryBackoff, p.read)
}

// read takes a look, unless that cannot find what is missing, and confirms earlier looks. It reports whether something
// is missing afterwards, and when the next confirmation is due.
func (p *discoveryPoller) read(ctx context.Context, why cause) (missing bool, due time.Time) {
	look, upToDate := true, true
	switch why {
	case woken:
		p.meetingDelays = meetingBackoff
	case incomplete:
		look = p.needsLook() && p.lookMayHelp(ctx)
	case intervalOver:
		upToDate = p.leases.isUpToDate(ctx)
	}
	if look {
		p.takeLook(ctx, upToDate)
	}
	confirmed, due := p.confirm(ctx)
	return !confirmed || p.needsLook(), due
}

func (p *discoveryPoller) needsLook() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ledger.NeedsLook()
}

// confirm asks etcd whether the processes that were read still hold their Leases, when they have had time to lose them.
// The watch may be late. confirmed is false if etcd did not say so; due is when to ask if it is too early.
func (p *discoveryPoller) confirm(ctx context.Context) (confirmed bool, due time.Time) {
	p.mu.Lock()
	from, asked := p.ledger.ConfirmableFrom(), p.clock.Now()
	p.mu.Unlock()
	if from.IsZero() || asked.Before(from) {
		return true, from
	}
	if _, err := p.leases.check(ctx); err != nil {
		return false, time.Time{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ledger.Confirm(asked)
	return true, p.ledger.ConfirmableFrom()
}

// takeLook asks every server for everything. upToDate is false if there may be other servers than the watch of Leases
// has shown.
func (p *discoveryPoller) takeLook(ctx context.Context, upToDate bool) {
	p.clients.forgetConnections()
	look, meets := p.readServers(ctx)
	if ctx.Err() != nil {
		return // An interrupted request says nothing about its server.
	}
	if look.ServesStorageVersions() {
		p.awaitStorageVersions(ctx)
	}
	p.logProblems(ctx, look)
	p.last = look
	complete := look.WhyUnmet == "" && len(look.Failed()) == 0
	switch {
	case complete || !look.Shared:
		p.meetingDelays, p.meetFrom = meetingBackoff, time.Time{}
	case meets:
		p.meetFrom = p.clock.Now().Add(p.meetingDelays.Step())
	}
	p.update(func(now time.Time) storageversion.Changes {
		p.synced, p.allMet = true, look.Shared && look.WhyUnmet == ""
		if upToDate && complete {
			p.lastRead[migrationv1alpha1.EvidenceFromServerDiscovery] = now
		}
		changes := p.ledger.SetLook(now, look)
		for name, document := range look.Documents {
			if document.Connected && p.kept.find(name) == nil {
				maps.Copy(changes, p.ledger.ConnectionLost(now, name)) // It ended before the Ledger knew of it.
			}
		}
		return changes
	})
}

// logProblems logs which API servers the look could not read, when these are others than before, and each hour.
func (p *discoveryPoller) logProblems(ctx context.Context, look storageversion.Look) {
	failed := slices.Sorted(slices.Values(look.Failed()))
	if len(failed) == 0 && look.WhyUnmet == "" {
		p.problems.Succeeded(ctx, "Can read again what all API servers write")
		return
	}
	failures := map[string]string{}
	for _, address := range failed {
		failures[address] = look.Documents[address].Failure
	}
	p.problems.Failed(ctx, fmt.Sprint(failed, look.WhyUnmet != ""), "Cannot read what all API servers write, will retry",
		"failures", failures, "err", look.WhyUnmet)
}

// awaitStorageVersions has StorageVersions watched, and waits for their first list. What the manager before recorded of
// StorageVersions connects only with StorageVersions. If the Ledger heard of documents first, everything would be
// migrated again.
func (p *discoveryPoller) awaitStorageVersions(ctx context.Context) {
	p.storageVersionsServed.raise()
	if p.awaited {
		return
	}
	p.awaited = true
	select {
	case <-ctx.Done():
	case <-p.clients.storageVersions.listed:
	case <-p.clock.After(storageVersionPatience):
	}
}

// countMet returns how many servers live behind addresses that they share. It is zero if they share none, or could
// not be met there.
func (p *discoveryPoller) countMet() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.allMet {
		return 0
	}
	return len(p.ledger.Living())
}

// meetAnew has a look taken, because not all servers behind the addresses that they share could be met any more.
func (p *discoveryPoller) meetAnew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.allMet = false
	p.serversChanged.raise()
}

// livingServers runs under the lock.
func (p *discoveryPoller) livingServers() storageversion.LivingServers {
	return storageversion.LivingServers{Living: p.ledger.Living(), Advertised: p.leases.shown.advertised()}
}

// checkCanAsk returns an error if a server lives that nobody can ask at these addresses: servers share them, and were
// not met there, or the server is not ready. Another process may also answer in its place.
func (p *discoveryPoller) checkCanAsk(addresses []string) error {
	p.mu.Lock()
	servers := p.livingServers()
	p.mu.Unlock()
	if !servers.AdvertisesAll(addresses) || p.leases.leaselessMayAnswer(addresses) {
		if err := p.leases.checkNoLeaseLost(); err != nil {
			return err
		}
	}
	if shares, _ := servers.SharesAddresses(addresses); shares {
		return fmt.Errorf("%d API servers have a living identity Lease, and the manager cannot ask each of them at %s. "+
			"Delete the Leases in kube-system of API servers that are gone for good", len(servers.Living),
			strings.Join(addresses, ", "))
	}
	if missing := servers.Missing(addresses); len(missing) > 0 {
		return fmt.Errorf("the API server %s %w %s, and may still write. If it is gone, this ends %s after it has renewed "+
			"its identity Lease for the last time; otherwise make it ready",
			missing[0], storageversion.ErrNotReady, servers.Advertised[missing[0]], goneAfter)
	}
	return nil
}

// lookMayHelp says whether another look may find out more: a server answers that failed before, or nothing failed and a
// server is missing all the same. That look asks all servers again, so that their documents belong together. While a
// server stays away, it does not cost the others a look each time.
func (p *discoveryPoller) lookMayHelp(ctx context.Context) bool {
	if p.last.Shared { // Any server that failed may be one that left, and nothing tells who answers in its place now.
		return !p.clock.Now().Before(p.meetFrom)
	}
	p.clients.forgetConnections()
	failed := p.last.Failed()
	return len(failed) == 0 || slices.ContainsFunc(failed, func(address string) bool {
		if p.last.Documents[address].Failure == errNoHashes.Error() {
			return false // Another process may say more, and its Lease causes a look.
		}
		return p.readServer(ctx, address).Failure == ""
	})
}
