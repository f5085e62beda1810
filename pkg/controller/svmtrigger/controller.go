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
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	migrationclient "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"
	migrationinformers "sigs.k8s.io/svm-api/client/informers/externalversions/migration/v1alpha1"
	migrationlisters "sigs.k8s.io/svm-api/client/listers/migration/v1alpha1"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	queueName = "storage_version_migration_trigger"

	// Syncs that failed are repeated after minRetry, doubling up to maxRetry for each resource by itself.
	minRetry = time.Second
	maxRetry = 15 * time.Second
)

// Observer knows what the servers write.
type Observer interface {
	HasSynced() bool
	// Subscribe calls changed for each resource of which the observation changed. changed returns at once.
	Subscribe(changed func(schema.GroupResource))
	// Resources are all that were ever heard of.
	Resources() []schema.GroupResource
	Observe(resource schema.GroupResource) storageversion.Observation
	// LastLook tells when each source was last looked at with success.
	LastLook() map[migrationv1alpha1.EvidenceSource]time.Time
}

// Options are what administrators choose.
type Options struct {
	// AutoMigrate says of which resources migrations may be started.
	AutoMigrate Selection
	// MaxUnfinished is how many migrations that the trigger created may be unfinished at a time.
	MaxUnfinished int
	Periods       Periods
}

// Controller keeps StorageStates true and creates StorageVersionMigrations that are due.
type Controller struct {
	client   migrationclient.MigrationV1alpha1Interface
	observer Observer
	events   record.EventRecorderLogger
	clock    clock.WithTicker
	options  Options
	decide   func(Input) Decision
	queue    workqueue.TypedRateLimitingInterface[schema.GroupResource]

	states           migrationlisters.StorageStateLister
	stateIndexer     cache.TypedIndexer[*migrationv1alpha1.StorageState]
	migrations       migrationlisters.StorageVersionMigrationLister
	migrationIndexer cache.TypedIndexer[*migrationv1alpha1.StorageVersionMigration]
	synced           []cache.InformerSynced

	// There is one worker, and only it reads and writes these. A second one would make the order in which slots are given a
	// matter of chance, and could decide on a state while the first one writes it. One is enough: a sync that has nothing
	// to write takes microseconds, and the client's rate limit bounds the rest whatever the number of workers.
	wave *wave
	own  *ownWrites
	// complained is when a failure of that kind was logged last.
	complained map[metav1.StatusReason]time.Time

	// waiting is the size of the wave, for metrics.
	waiting atomic.Int64
}

// New returns a controller that is not running yet.
func New(
	ctx context.Context,
	client migrationclient.MigrationV1alpha1Interface,
	informers migrationinformers.Interface,
	observer Observer,
	events record.EventRecorderLogger,
	options Options,
) (*Controller, error) {
	return newController(ctx, client, informers, observer, events, options, clock.RealClock{})
}

func newController(
	ctx context.Context,
	client migrationclient.MigrationV1alpha1Interface,
	informers migrationinformers.Interface,
	observer Observer,
	events record.EventRecorderLogger,
	options Options,
	clk clock.WithTicker,
) (*Controller, error) {
	Register()
	states, migrations := informers.StorageStates(), informers.StorageVersionMigrations()
	c := &Controller{
		client:   client,
		observer: observer,
		events:   events.WithLogger(klog.FromContext(ctx)),
		clock:    clk,
		options:  options,
		decide:   Decide,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[schema.GroupResource](minRetry, maxRetry),
			workqueue.TypedRateLimitingQueueConfig[schema.GroupResource]{Name: queueName, Clock: clk},
		),
		states:           states.Lister(),
		stateIndexer:     states.TypedInformer().GetTypedIndexer(),
		migrations:       migrations.Lister(),
		migrationIndexer: migrations.TypedInformer().GetTypedIndexer(),
		wave:             newWave(),
		own:              newOwnWrites(),
		complained:       map[metav1.StatusReason]time.Time{},
	}
	if err := c.index(states.TypedInformer(), migrations.TypedInformer()); err != nil {
		return nil, err
	}
	if err := c.listen(ctx, states.TypedInformer(), migrations.TypedInformer()); err != nil {
		return nil, err
	}
	return c, nil
}

func (c *Controller) index(states migrationinformers.StorageStateIndexInformer, migrations migrationinformers.StorageVersionMigrationIndexInformer) error {
	set := func(contained bool) ([]string, error) {
		if contained {
			return []string{indexed}, nil
		}
		return nil, nil
	}
	err := errors.Join(
		states.AddTypedIndexers(migrationinformers.StorageStateIndexers{
			statesByPromise: func(state *migrationv1alpha1.StorageState) ([]string, error) { return set(promise(state) != "") },
		}),
		migrations.AddTypedIndexers(migrationinformers.StorageVersionMigrationIndexers{
			migrationsByResource: func(migration *migrationv1alpha1.StorageVersionMigration) ([]string, error) {
				return []string{resourceOf(migration).String()}, nil
			},
			migrationsByTrigger: func(migration *migrationv1alpha1.StorageVersionMigration) ([]string, error) {
				return set(byTrigger(migration) && !finished(migration) && !stuck(migration))
			},
		}),
	)
	if err != nil {
		return fmt.Errorf("adding indices: %w", err)
	}
	return nil
}

// listen enqueues a resource when anything changes that a decision about it depends on.
func (c *Controller) listen(ctx context.Context, states migrationinformers.StorageStateIndexInformer, migrations migrationinformers.StorageVersionMigrationIndexInformer) error {
	c.observer.Subscribe(c.queue.Add)

	logger := klog.FromContext(ctx)
	// A state counts for the resource that its name says, whatever is in it.
	stateChanged := func(name string) { c.changed(schema.ParseGroupResource(name)) }
	statesListener, err := states.AddTypedEventHandler(migrationinformers.StorageStateHandlerFuncs{
		AddFunc:    func(state *migrationv1alpha1.StorageState) { stateChanged(state.Name) },
		UpdateFunc: func(_, state *migrationv1alpha1.StorageState) { stateChanged(state.Name) },
		DeleteFunc: func(state migrationinformers.DeletedStorageState) { stateChanged(state.GetObjectName().Name) },
	}, cache.HandlerOptions{Logger: &logger})
	if err != nil {
		return fmt.Errorf("listening to storage states: %w", err)
	}
	migrationChanged := func(migration *migrationv1alpha1.StorageVersionMigration) { c.changed(resourceOf(migration)) }
	migrationsListener, err := migrations.AddTypedEventHandler(migrationinformers.StorageVersionMigrationHandlerFuncs{
		AddFunc:    migrationChanged,
		UpdateFunc: func(_, migration *migrationv1alpha1.StorageVersionMigration) { migrationChanged(migration) },
		DeleteFunc: func(migration migrationinformers.DeletedStorageVersionMigration) {
			if migration.OptionalObj != nil {
				migrationChanged(migration.OptionalObj)
			}
		},
	}, cache.HandlerOptions{Logger: &logger})
	if err != nil {
		return fmt.Errorf("listening to migrations: %w", err)
	}
	// Not only the caches: the worker begins when everything that they hold was enqueued.
	c.synced = []cache.InformerSynced{c.observer.HasSynced, statesListener.HasSynced, migrationsListener.HasSynced}
	return nil
}

// changed enqueues a resource whose state or migrations changed, and those that share its storage.
func (c *Controller) changed(resource schema.GroupResource) {
	c.queue.Add(resource)
	for _, other := range c.observer.Observe(resource).SharedWith {
		c.queue.Add(other)
	}
}

// Run works until the context ends, and returns when nothing of it runs anymore.
func (c *Controller) Run(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)

	logger := klog.FromContext(ctx)
	logger.Info("Starting storage version migration trigger")
	var workers sync.WaitGroup
	defer func() {
		logger.Info("Shutting down storage version migration trigger")
		c.queue.ShutDown()
		workers.Wait()
	}()

	if !cache.WaitForCacheSync(ctx.Done(), c.synced...) {
		return
	}
	for _, resource := range c.observer.Resources() {
		c.queue.Add(resource)
	}
	defer expose(c)()
	workers.Go(func() { wait.UntilWithContext(ctx, c.work, time.Second) })
	<-ctx.Done()
}

func (c *Controller) work(ctx context.Context) {
	for c.processNext(ctx) {
	}
}

func (c *Controller) processNext(ctx context.Context) bool {
	resource, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	c.process(ctx, resource)
	c.queue.Done(resource)
	if ctx.Err() != nil {
		return false
	}
	for _, next := range c.grant(ctx) {
		c.queue.Add(next)
	}
	return true
}

func (c *Controller) process(ctx context.Context, resource schema.GroupResource) {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("resource", resource.String()))
	lookAgain, err := c.sync(ctx, resource)
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, errOutdated):
		klog.FromContext(ctx).V(4).Info("Deciding anew", "cause", err)
		c.queue.AddRateLimited(resource)
	case err != nil:
		c.complain(ctx, err)
		c.queue.AddRateLimited(resource)
	default:
		c.queue.Forget(resource)
		if !lookAgain.IsZero() {
			c.queue.AddAfter(resource, max(lookAgain.Sub(c.clock.Now()), minRetry))
		}
	}
}

// complain logs a failure. What fails for one resource fails for all of them, if it is the API server, the network, a
// permission or a definition that is missing: of each kind one is logged a minute. A write that the API server finds invalid
// is about that one resource.
func (c *Controller) complain(ctx context.Context, err error) {
	kind, now := apierrors.ReasonForError(err), c.clock.Now()
	if last, before := c.complained[kind]; before && now.Sub(last) < maxRetry && kind != metav1.StatusReasonInvalid {
		klog.FromContext(ctx).V(2).Info("Syncing failed as it did for another resource, will retry", "err", err)
		return
	}
	c.complained[kind] = now
	utilruntime.HandleErrorWithContext(ctx, err, "Syncing failed, will retry; the same failure of other resources is logged at most once a minute")
}

// sync returns when to look again.
func (c *Controller) sync(ctx context.Context, resource schema.GroupResource) (time.Time, error) {
	slot := c.wave.take(resource)
	in, err := c.observe(resource)
	if err != nil {
		return time.Time{}, err
	}
	in.Slot = slot || promise(in.State) != ""
	in, decision := c.decideInTurn(ctx, resource, in)
	return decision.LookAgain, c.act(ctx, in, decision)
}

// decideInTurn decides, and once more if that shows that a migration is due and there is a slot for it.
func (c *Controller) decideInTurn(ctx context.Context, resource schema.GroupResource, in Input) (Input, Decision) {
	decision := c.decide(in)
	if decision.Due && !in.Slot {
		c.wave.wait(resource, decision.Priority)
		for _, next := range c.grant(ctx) {
			if next != resource {
				c.queue.Add(next)
				continue
			}
			in.Slot = c.wave.take(resource)
			decision = c.decide(in)
		}
	}
	c.waiting.Store(int64(c.wave.size()))
	klog.FromContext(ctx).V(6).Info("Decided", "observation", in.Observation, "decision", decision)
	return in, decision
}

// grant returns the resources whose turn it is. While others wait to be looked at it is nobody's turn: at the start, and
// after a long absence of the API server, what comes first is only known when all have been looked at. That it is a glance at
// a queue that others fill is good enough: the bound holds in any case, only the order depends on it.
func (c *Controller) grant(ctx context.Context) []schema.GroupResource {
	if c.wave.size() == 0 || c.queue.Len() > 0 {
		return nil
	}
	unfinished, err := c.unfinished()
	if err != nil {
		utilruntime.HandleErrorWithContext(ctx, err, "Counting unfinished migrations failed")
		return nil
	}
	return c.wave.grant(c.options.MaxUnfinished - unfinished.Len())
}
