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
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	defaultPollInterval = 10 * time.Minute

	// linger is how long a server may be asked at its address after its Lease went. A server that stops takes its address
	// and its Lease away at the beginning, and then finishes requests, which may take a minute; if it fails to take the
	// address away, the other servers do so after 15 s, at their next look, 10 s later.
	linger = 90 * time.Second
)

// Options of an Observer.
type Options struct {
	// PollInterval is how often that is looked at what no event tells of: ten minutes if zero.
	PollInterval time.Duration
	// Clock is the real one if nil.
	Clock clock.WithTicker
}

// Observer knows what the servers of a cluster encode every resource in. All its methods may be called at any time by
// anybody, if not said otherwise.
type Observer struct {
	clients      *clients
	clock        clock.WithTicker
	pollInterval time.Duration

	// lookNow and readAggregatedNow wake the goroutines that read documents, storageVersionsNow the one that watches
	// StorageVersions.
	lookNow, readAggregatedNow, storageVersionsNow signal
	// listed is closed when all that a look depends on was listed once.
	listed chan struct{}

	mu          sync.Mutex
	subscribers []func(schema.GroupResource)
	ledger      *storageversion.Ledger
	unlisted    sets.Set[listing]
	looked      bool
	lastLook    map[migrationv1alpha1.EvidenceSource]time.Time

	living      []storageversion.Server
	addresses   []string
	definitions map[schema.GroupResource]struct{}
	// origins keeps those of group versions whose APIService is gone, for documents follow APIServices with a delay.
	origins    map[schema.GroupVersion]origin
	aggregated map[schema.GroupVersion]*aggregatedVersion
	// storageVersionsWanted says that the servers serve StorageVersions; unwatchStorageVersions ends the watch that runs.
	storageVersionsWanted  bool
	unwatchStorageVersions context.CancelFunc
}

// listing names something that has to be listed before all is known.
type listing string

const (
	leasesListed         listing = "leases"
	endpointSlicesListed listing = "endpointslices"
	definitionsListed    listing = "customresourcedefinitions"
	apiServicesListed    listing = "apiservices"
)

// New returns an Observer that does nothing until it is run.
func New(config *rest.Config, options Options) (*Observer, error) {
	clients, err := newClients(config)
	if err != nil {
		return nil, err
	}
	o := &Observer{
		clients:      clients,
		clock:        options.Clock,
		pollInterval: options.PollInterval,

		lookNow:            newSignal(),
		readAggregatedNow:  newSignal(),
		storageVersionsNow: newSignal(),
		listed:             make(chan struct{}),

		ledger:      storageversion.NewLedger(storageversion.Options{Linger: linger}),
		unlisted:    sets.New(leasesListed, endpointSlicesListed, definitionsListed, apiServicesListed),
		lastLook:    map[migrationv1alpha1.EvidenceSource]time.Time{},
		definitions: map[schema.GroupResource]struct{}{},
		origins:     map[schema.GroupVersion]origin{},
		aggregated:  map[schema.GroupVersion]*aggregatedVersion{},
	}
	if o.clock == nil {
		o.clock = clock.RealClock{}
	}
	if o.pollInterval == 0 {
		o.pollInterval = defaultPollInterval
	}
	return o, nil
}

// Subscribe has changed called for every resource of which the observation may have changed, and at every poll for those
// whose evidence says nothing later on. It must be quick, and must not call Subscribe. What changed before it does not
// hear of.
func (o *Observer) Subscribe(changed func(schema.GroupResource)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.subscribers = append(slices.Clone(o.subscribers), changed)
}

// Run observes until the context ends, and returns when nothing of it runs anymore.
func (o *Observer) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	logger.Info("Starting observer of storage versions")
	var running sync.WaitGroup
	for _, run := range []func(context.Context){
		o.watchLeases, o.watchEndpointSlices, o.watchDefinitions, o.watchAPIServices, o.watchStorageVersions,
		o.keepLooking, o.keepReadingAggregated,
	} {
		running.Go(func() {
			defer utilruntime.HandleCrashWithContext(ctx)
			run(ctx)
		})
	}
	<-ctx.Done()
	running.Wait()
	o.clients.closeIdleConnections()
	logger.Info("Shut down observer of storage versions")
}

// HasSynced says that everything was listed, and the servers' documents were asked for once, with whatever success.
func (o *Observer) HasSynced() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.unlisted) == 0 && o.looked
}

// Resources are all that were ever heard of and can be migrated, in order.
func (o *Observer) Resources() []schema.GroupResource {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ledger.Resources()
}

// Observe returns what is known of a resource. It sends no request.
func (o *Observer) Observe(resource schema.GroupResource) storageversion.Observation {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.ledger.Observe(o.clock.Now(), resource)
}

// LastLook is when each source of evidence was read last, or heard of where it is watched. Sources that were never are left out.
func (o *Observer) LastLook() map[migrationv1alpha1.EvidenceSource]time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.lastLook)
}

// update changes what is known, and tells subscribers what came of it. change runs under the lock.
func (o *Observer) update(change func(now time.Time) storageversion.Changes) {
	o.mu.Lock()
	changes, subscribers := change(o.clock.Now()), o.subscribers
	o.mu.Unlock()
	for resource := range changes {
		for _, changed := range subscribers {
			changed(resource)
		}
	}
}

// heard notes that all of a source was read, or that its watch is alive. Callers hold the lock.
func (o *Observer) heard(source migrationv1alpha1.EvidenceSource, now time.Time) {
	o.lastLook[source] = now
}

// done notes that something was listed. Callers hold the lock.
func (o *Observer) done(what listing) {
	if !o.unlisted.Has(what) {
		return
	}
	o.unlisted.Delete(what)
	if len(o.unlisted) == 0 {
		close(o.listed)
	}
}

// nextPoll is when to poll again. Several processes that start together drift apart.
func (o *Observer) nextPoll() time.Time {
	return o.clock.Now().Add(o.pollInterval - rand.N(o.pollInterval/10+1))
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

// pause returns after d, or with false when ctx ends.
func pause(ctx context.Context, clk clock.Clock, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := clk.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}
