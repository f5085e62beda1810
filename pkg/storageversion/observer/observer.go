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
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// Options of an Observer.
type Options struct {
	// PollInterval is how often the observer looks for changes that no watch reports. Zero means ten minutes.
	PollInterval time.Duration
	// Clock is the real one if nil.
	Clock clock.WithTicker
	// Restored is called when somebody has restored etcd from a backup, if it is not nil. The error is ErrRestored of
	// package storageversion, or ErrEarlier at first, while that is not sure. If it was restored, then after the time
	// that is given. Nothing that this manager knows of the cluster counts then, and its watches may be silent for ever.
	Restored func(err error, after time.Time)
}

// Observer knows how the servers of a cluster encode every resource. Any goroutine may call its methods at any time.
type Observer struct {
	shared  *sharedLedger
	clients *clients

	leases     *leaseWatcher
	aggregated *aggregatedReader
	poller     *discoveryPoller
}

// New returns an Observer. It does nothing before Run.
func New(config *rest.Config, options Options) (*Observer, error) {
	c, err := newClients(config)
	if err != nil {
		return nil, fmt.Errorf("making clients for the API servers: %w", err)
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.PollInterval == 0 {
		options.PollInterval = storageversion.DefaultPollInterval
	}
	for _, s := range []*watchedList{c.leases, c.endpointSlices, c.definitions, c.apiServices, c.storageVersions} {
		s.clock, s.restored = options.Clock, options.Restored
	}
	shared := &sharedLedger{
		clock: options.Clock, pollInterval: options.PollInterval, ledger: storageversion.NewLedger(linger),
		serversChanged: newSignal(), storageVersionsServed: newSignal(),
		lastRead: map[migrationv1alpha1.EvidenceSource]time.Time{},
	}
	o := &Observer{
		shared: shared, clients: c,
		aggregated: &aggregatedReader{
			sharedLedger: shared, apiServices: c.apiServices, host: c.host, objects: c.objects, wake: newSignal(),
			services: map[schema.GroupVersion]service{}, latest: map[schema.GroupVersion]int{},
		},
	}
	o.leases = &leaseWatcher{
		sharedLedger: shared, list: c.leases, health: shared.healthOf(storageversion.BuiltIn), leases: newServerLeases(),
	}
	o.poller = &discoveryPoller{
		sharedLedger: shared, clients: c, leases: o.leases, aggregated: o.aggregated,
		kept: &keptConnections{sharedLedger: shared, clients: c},
	}
	return o, nil
}

// Run observes until the context ends. It returns when everything that it started has ended.
func (o *Observer) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	logger.Info("Starting observer of storage versions")
	var running sync.WaitGroup
	for _, run := range []func(context.Context){
		o.leases.run, o.aggregated.watchAPIServices, o.aggregated.run, o.poller.run,
		func(ctx context.Context) { o.shared.followAddresses(ctx, o.clients.endpointSlices) },
		func(ctx context.Context) { o.shared.followDefinitions(ctx, o.clients.definitions) },
		func(ctx context.Context) { o.shared.followStorageVersions(ctx, o.clients.storageVersions) },
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

// Subscribe makes the Observer call changed for every resource of which the observation may have changed, and at
// every poll for resources that an unchanged document confirms. changed must be quick. It is not called for earlier
// changes.
func (o *Observer) Subscribe(changed func(schema.GroupResource)) {
	o.shared.mu.Lock()
	defer o.shared.mu.Unlock()
	o.shared.subscribers = append(slices.Clone(o.shared.subscribers), changed)
}

// HasSynced reports whether the Observer has listed Leases, EndpointSlices, CustomResourceDefinitions and APIServices,
// and has then asked every kube-apiserver for its documents once, with or without success.
func (o *Observer) HasSynced() bool {
	o.shared.mu.Lock()
	defer o.shared.mu.Unlock()
	return o.poller.synced
}

// Resources returns all resources that the Observer has ever seen and that can be migrated, in order.
func (o *Observer) Resources() []schema.GroupResource {
	o.shared.mu.Lock()
	defer o.shared.mu.Unlock()
	return o.shared.ledger.Resources()
}

// Observe returns what is known about a resource. It sends no request.
func (o *Observer) Observe(resource schema.GroupResource) storageversion.Observation {
	o.shared.mu.Lock()
	defer o.shared.mu.Unlock()
	return o.shared.ledger.Observe(o.shared.clock.Now(), resource)
}

// classOfSource maps each source of documents to the class of resources that its documents are about. While the Leases
// or APIServices of that class cannot be read, nobody knows which servers to ask. So LastRead returns the time at
// which that began, if it is earlier.
var classOfSource = map[migrationv1alpha1.EvidenceSource]storageversion.Class{
	migrationv1alpha1.EvidenceFromServerDiscovery:     storageversion.BuiltIn,
	migrationv1alpha1.EvidenceFromAggregatedDiscovery: storageversion.Aggregated,
}

// LastRead returns when each source of evidence was last read in full or, if it is watched, when its watch last said
// something. It leaves out sources that were never read, and those that are not there any more.
func (o *Observer) LastRead() map[migrationv1alpha1.EvidenceSource]time.Time {
	o.shared.mu.Lock()
	defer o.shared.mu.Unlock()
	read := maps.Clone(o.shared.lastRead)
	for source, class := range classOfSource {
		since := o.shared.ledger.UnreadableSince(class)
		if at, known := read[source]; known && !since.IsZero() && since.Before(at) {
			read[source] = since
		}
	}
	return read
}

// ReadAggregated reads the documents of the aggregated server that serves a group now, and finds out whether it has
// replicas that may write something else. It does nothing if no aggregated server serves the group.
func (o *Observer) ReadAggregated(ctx context.Context, group string) error {
	_, err := o.aggregated.readGroups(ctx, func(g string) bool { return g == group })
	return err
}

// CheckLeases asks etcd who holds the identity Leases of servers. It returns an error if these are not the processes
// that the watch has shown: an API server whose own watches hang reports no change.
func (o *Observer) CheckLeases(ctx context.Context) error {
	_, err := o.leases.check(ctx)
	return err
}

// AskEach asks all API servers that are ready, at the same time: each on a connection to it, if servers share addresses
// and the last look met all of them there; otherwise whichever server answers at each address, or at the configured
// host if no address is known. It returns all errors, each with the address, and an error if a living server could not
// be asked. Where the answer of a server that has lost its Lease could be taken for that of another one, it also
// returns an error for 90 s after a process lost its Lease, or after Leases were listed.
func (o *Observer) AskEach(
	ctx context.Context, ask func(ctx context.Context, server documents.Reader) error,
) error {
	addresses, direct := o.clients.addresses(o.shared.readyAddresses())
	if living := o.poller.countMet(); living > 0 {
		err := o.askMet(ctx, o.clients.meet(ctx, addresses, direct, living), ask)
		return errors.Join(err, o.leases.checkNoLeaseLost())
	}
	unasked := o.poller.checkCanAsk(addresses)
	asks := map[string]func() error{}
	for _, address := range addresses {
		asks[address] = func() error {
			server, err := o.clients.reader(address, direct)
			if err != nil {
				return err
			}
			return ask(ctx, server)
		}
	}
	return errors.Join(askAll("the API server at", asks), unasked)
}

// CheckCanAskEach returns why AskEach would fail whatever the servers answer, or nil. It sends no request.
func (o *Observer) CheckCanAskEach() error {
	if o.poller.countMet() > 0 {
		return o.leases.checkNoLeaseLost()
	}
	addresses, _ := o.clients.addresses(o.shared.readyAddresses())
	return o.poller.checkCanAsk(addresses)
}

// askMet asks each API server that was met, and closes the meeting. It returns an error if it met fewer than live.
func (o *Observer) askMet(
	ctx context.Context, m *meeting, ask func(ctx context.Context, server documents.Reader) error,
) error {
	defer m.close()
	var err error
	asks := map[string]func() error{}
	if why := m.whyUnmet(); why != "" {
		if ctx.Err() == nil {
			o.poller.meetAnew() // Until then nobody else tries in vain to meet all of them.
		}
		err = errors.New(why)
		for address, failure := range m.failures {
			asks[address] = func() error { return failure }
		}
	}
	for name, one := range m.met {
		asks[name] = func() error {
			if err := ask(ctx, one.reader); err != nil {
				return err
			}
			return one.confirm(ctx, 1)
		}
	}
	return errors.Join(err, askAll("the API server at", asks))
}

// askAll asks several servers at once, and returns all errors in the order of the names. Each error begins with what
// the servers are and the name.
func askAll(what string, asks map[string]func() error) error {
	names := slices.Sorted(maps.Keys(asks))
	failures := make([]error, len(names))
	var asking sync.WaitGroup
	for i, name := range names {
		asking.Go(func() {
			if err := asks[name](); err != nil {
				failures[i] = fmt.Errorf("%s %s: %w", what, name, err)
			}
		})
	}
	asking.Wait()
	return errors.Join(failures...)
}
