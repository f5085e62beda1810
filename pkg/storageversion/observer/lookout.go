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
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// burst is how long events are collected: a server that starts makes several.
const burst = 250 * time.Millisecond

// lookBackoff is between looks that found something missing.
var lookBackoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Steps: 10, Cap: 15 * time.Second, Jitter: 0.1}

// occasion is why to look.
type occasion int

const (
	ended    occasion = iota // not at all: ctx has ended
	moved                    // servers or addresses changed
	unseen                   // the last look was not complete
	polltime                 // it is time
)

// keepLooking looks at the servers' documents until ctx ends.
func (o *Observer) keepLooking(ctx context.Context) {
	select {
	case <-ctx.Done():
		return
	case <-o.listed:
	}
	// What was listed made signals, too.
	select {
	case <-o.lookNow:
	default:
	}
	l := &lookout{Observer: o, backoff: lookBackoff}
	for why := moved; why != ended; why = l.await(ctx) {
		switch why {
		case moved:
			l.backoff = lookBackoff
			l.look(ctx)
		case unseen:
			l.lookForUnseen(ctx)
		case polltime:
			l.poll(ctx)
		}
		l.schedule(why)
	}
}

// lookout is the state of the goroutine that looks.
type lookout struct {
	*Observer
	backoff wait.Backoff
	// nextTry is when to look again for what was missing, zero if nothing was.
	nextTry  time.Time
	nextPoll time.Time

	// Of the last look.
	at        places
	catalogs  map[string]catalog
	documents map[string]storageversion.Document
}

// await returns at the next occasion.
func (l *lookout) await(ctx context.Context) occasion {
	why, at := polltime, l.nextPoll
	if !l.nextTry.IsZero() && l.nextTry.Before(at) {
		why, at = unseen, l.nextTry
	}
	timer := l.clock.NewTimer(at.Sub(l.clock.Now()))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ended
	case <-timer.C():
		return why
	case <-l.lookNow:
	}
	if !pause(ctx, l.clock, burst) {
		return ended
	}
	select {
	case <-l.lookNow:
	default:
	}
	return moved
}

func (l *lookout) schedule(why occasion) {
	l.mu.Lock()
	missing := l.ledger.NeedsLook()
	l.mu.Unlock()
	switch {
	case !missing:
		l.nextTry, l.backoff = time.Time{}, lookBackoff
	case why != polltime || l.nextTry.IsZero():
		l.nextTry = l.clock.Now().Add(l.backoff.Step())
	}
	if why == polltime || l.nextPoll.IsZero() {
		l.nextPoll = l.Observer.nextPoll()
	}
}

// look asks every server for everything.
func (l *lookout) look(ctx context.Context) {
	l.clients.forgetConnections()
	at := l.places()
	l.conclude(ctx, at, l.readAll(ctx, at))
}

// conclude tells the ledger what servers answered.
func (l *lookout) conclude(ctx context.Context, at places, readings map[string]reading) {
	if ctx.Err() != nil {
		return // What was interrupted says nothing about servers.
	}
	l.at, l.catalogs, l.documents = at, map[string]catalog{}, map[string]storageversion.Document{}
	for address, got := range readings {
		l.catalogs[address] = got.catalog
		l.documents[address] = l.document(got)
	}
	l.log(ctx)
	failing := len(l.failing()) > 0
	l.decideAboutStorageVersions()
	l.update(func(now time.Time) storageversion.Changes {
		l.looked = true
		if !failing {
			l.heard(migrationv1alpha1.EvidenceFromServerDiscovery, now)
		}
		return l.ledger.SetLook(now, storageversion.Look{Servers: at.servers, Direct: at.direct, Documents: l.documents})
	})
}

func (l *lookout) log(ctx context.Context) {
	logger := klog.FromContext(ctx)
	for address, document := range l.documents {
		logger.V(4).Info("Looked at the discovery documents of an API server", "address", address, "direct", l.at.direct,
			"resources", len(document.Resources), "failure", document.Failure, "failedGroups", document.FailedGroups)
	}
}

// decideAboutStorageVersions has them watched if all servers serve them, as far as these could be asked. If only some do,
// the objects do not tell of all that is written, and a request for them may meet one of the others.
func (l *lookout) decideAboutStorageVersions() {
	served := false
	for _, document := range l.documents {
		_, failed := document.FailedGroups[storageVersionsResource.Group]
		switch {
		case document.ServesStorageVersions:
			served = true
		case document.Failure == "" && !failed:
			l.wantStorageVersions(false)
			return
		}
	}
	if served {
		l.wantStorageVersions(true)
	}
}

// failing are the addresses that something could not be read from.
func (l *lookout) failing() []string {
	var addresses []string
	for address, document := range l.documents {
		if document.Failure != "" || len(document.FailedGroups) > 0 {
			addresses = append(addresses, address)
		}
	}
	slices.Sort(addresses)
	return addresses
}

// lookForUnseen looks at everything again if something that failed does so no longer, or if nothing failed and some server
// is missing all the same. Documents that belong together are thereby read together, and a server that cannot be reached
// does not cost the others a look every time.
func (l *lookout) lookForUnseen(ctx context.Context) {
	failing := l.failing()
	if len(failing) == 0 {
		l.look(ctx)
		return
	}
	l.clients.forgetConnections()
	var recovered atomic.Bool
	var readers sync.WaitGroup
	for _, address := range failing {
		readers.Go(func() {
			if l.recovered(ctx, address) {
				recovered.Store(true)
			}
		})
	}
	readers.Wait()
	if recovered.Load() {
		l.look(ctx)
	}
}

// recovered says whether more can be read from an address than in the last look.
func (l *lookout) recovered(ctx context.Context, address string) bool {
	from, ok := l.at.readers[address]
	if !ok {
		return false
	}
	before := l.documents[address]
	if before.Failure != "" {
		_, err := from.catalog(ctx)
		return err == nil
	}
	got := l.document(l.read(ctx, from))
	return got.Failure == "" && len(got.FailedGroups) < len(before.FailedGroups)
}

// poll finds out whether there is reason for a look that no event told of. A process does not change how it encodes, so
// that where Leases tell processes apart it is enough to compare what each serves.
func (l *lookout) poll(ctx context.Context) {
	l.mu.Lock()
	leases := len(l.living)
	l.mu.Unlock()
	if leases == 0 || len(l.failing()) > 0 || l.servesOther(ctx) {
		l.look(ctx)
	}
}

// servesOther says whether a server serves other built-in resources than in the last look. Servers are asked one after
// the other, because catalogs are large where there are many custom resources.
func (l *lookout) servesOther(ctx context.Context) bool {
	l.clients.forgetConnections()
	for address, from := range l.at.readers {
		now, err := from.catalog(ctx)
		if err != nil {
			// What lives is known from Leases. Whether it answers just now is of no interest.
			klog.FromContext(ctx).V(4).Info("An API server did not say what it serves", "address", address, "err", err)
			return false
		}
		if !now.only(l.isBuiltIn).equal(l.catalogs[address].only(l.isBuiltIn)) {
			klog.FromContext(ctx).V(2).Info("An API server serves other resources than before", "address", address)
			return true
		}
	}
	l.alive(migrationv1alpha1.EvidenceFromServerDiscovery)
	return false
}
