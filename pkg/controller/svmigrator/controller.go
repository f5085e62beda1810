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

package svmigrator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/featuregate"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	migrationclient "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"
	migrationinformers "sigs.k8s.io/svm-api/client/informers/externalversions/migration/v1alpha1"
	migrationlisters "sigs.k8s.io/svm-api/client/listers/migration/v1alpha1"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	queueName = "storage_version_migrator"
	turnsName = "storage_version_migrator_turns"

	// Syncs that failed are repeated after minSyncRetry, doubling up to maxSyncRetry for each migration by itself.
	minSyncRetry = time.Second
	maxSyncRetry = 30 * time.Second
	// syncWorkers is more than one, because a sync may look for a resource at an API server that does not answer.
	syncWorkers = 2
)

// Observer knows what the servers write.
type Observer interface {
	HasSynced() bool
	// Subscribe calls changed for each resource of which the observation changed. changed returns at once.
	Subscribe(changed func(schema.GroupResource))
	Observe(resource schema.GroupResource) storageversion.Observation
	// ReadAggregated has what aggregated servers write looked at again.
	ReadAggregated()
}

// Clients are those that the controller writes and reads with.
type Clients struct {
	Migrations migrationclient.MigrationV1alpha1Interface
	// Documents is for discovery documents and CustomResourceDefinitions.
	Documents rest.Interface
	// Objects is for what a client for objects' metadata is made of.
	Objects *rest.Config
}

// Controller brings all objects of a resource to the encoding that the servers write, for each StorageVersionMigration.
type Controller struct {
	client        migrationclient.MigrationV1alpha1Interface
	documents     rest.Interface
	objectsClient rest.Interface
	observer      Observer
	events        record.EventRecorderLogger
	features      featuregate.FeatureGate
	clock         clock.WithTicker
	options       Options
	pacer         *pacer.Pacer
	logger        klog.Logger

	// queue has migrations that something changed about, turns those that may write.
	queue workqueue.TypedRateLimitingInterface[string]
	turns workqueue.TypedRateLimitingInterface[string]

	states           migrationlisters.StorageStateLister
	migrations       migrationlisters.StorageVersionMigrationLister
	migrationIndexer cache.TypedIndexer[*migrationv1alpha1.StorageVersionMigration]
	synced           []cache.InformerSynced

	sweeps sweeps

	mu sync.Mutex
	// active are the turns that run, of each resource one at most.
	active map[schema.GroupResource]*turn
	// found are the migrations that have not started and whose resource was found to be served.
	found map[types.UID]bool
	// stuck are the migrations whose last turn ended because nothing came about.
	stuck sets.Set[types.UID]
}

// New returns a controller that is not running yet.
func New(
	ctx context.Context,
	clients Clients,
	informers migrationinformers.Interface,
	observer Observer,
	events record.EventRecorderLogger,
	features featuregate.FeatureGate,
	options Options,
) (*Controller, error) {
	Register()
	objectsClient, err := newObjectsClient(clients.Objects)
	if err != nil {
		return nil, err
	}
	states, migrations := informers.StorageStates(), informers.StorageVersionMigrations()
	c := &Controller{
		client:           clients.Migrations,
		documents:        clients.Documents,
		objectsClient:    objectsClient,
		observer:         observer,
		events:           events.WithLogger(klog.FromContext(ctx)),
		features:         features,
		clock:            clock.RealClock{},
		options:          options,
		pacer:            pacer.New(pacer.Options{MaxConcurrent: options.MaxConcurrentRewrites, MaxPerSecond: options.MaxRewritesPerSecond, Unpaced: options.Unpaced}),
		logger:           klog.FromContext(ctx),
		states:           states.Lister(),
		migrations:       migrations.Lister(),
		migrationIndexer: migrations.TypedInformer().GetTypedIndexer(),
		active:           map[schema.GroupResource]*turn{},
		found:            map[types.UID]bool{},
		stuck:            sets.New[types.UID](),
	}
	limiter := func() workqueue.TypedRateLimiter[string] {
		return workqueue.NewTypedItemExponentialFailureRateLimiter[string](minSyncRetry, maxSyncRetry)
	}
	c.queue = workqueue.NewTypedRateLimitingQueueWithConfig(limiter(), workqueue.TypedRateLimitingQueueConfig[string]{Name: queueName})
	c.turns = workqueue.NewTypedRateLimitingQueueWithConfig(limiter(), workqueue.TypedRateLimitingQueueConfig[string]{
		Name: turnsName,
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[string]{
			Name:  turnsName,
			Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Name: turnsName, Queue: &inOrder{before: c.before}}),
		}),
	})
	if err := c.listen(ctx, states.TypedInformer(), migrations.TypedInformer()); err != nil {
		return nil, err
	}
	return c, nil
}

// listen enqueues a migration when anything changes that a decision about it depends on. What has to stop is stopped at
// once, whatever the workers are doing.
func (c *Controller) listen(ctx context.Context, states migrationinformers.StorageStateIndexInformer, migrations migrationinformers.StorageVersionMigrationIndexInformer) error {
	err := migrations.AddTypedIndexers(migrationinformers.StorageVersionMigrationIndexers{
		migrationsByResource: func(m *migrationv1alpha1.StorageVersionMigration) ([]string, error) {
			return []string{resourceOf(m).String()}, nil
		},
	})
	if err != nil {
		return fmt.Errorf("adding an index: %w", err)
	}
	c.observer.Subscribe(c.resourceChanged)

	logger := klog.FromContext(ctx)
	stateChanged := func(name string) { c.resourceChanged(schema.ParseGroupResource(name)) }
	statesListener, err := states.AddTypedEventHandler(migrationinformers.StorageStateHandlerFuncs{
		AddFunc:    func(state *migrationv1alpha1.StorageState) { stateChanged(state.Name) },
		UpdateFunc: func(_, state *migrationv1alpha1.StorageState) { stateChanged(state.Name) },
		DeleteFunc: func(state migrationinformers.DeletedStorageState) { stateChanged(state.GetObjectName().Name) },
	}, cache.HandlerOptions{Logger: &logger})
	if err != nil {
		return fmt.Errorf("listening to storage states: %w", err)
	}
	migrationsListener, err := migrations.AddTypedEventHandler(migrationinformers.StorageVersionMigrationHandlerFuncs{
		AddFunc:    func(m *migrationv1alpha1.StorageVersionMigration) { c.queue.Add(m.Name) },
		UpdateFunc: c.migrationChanged,
		DeleteFunc: func(m migrationinformers.DeletedStorageVersionMigration) { c.migrationDeleted(m.OptionalObj) },
	}, cache.HandlerOptions{Logger: &logger})
	if err != nil {
		return fmt.Errorf("listening to migrations: %w", err)
	}
	c.synced = []cache.InformerSynced{c.observer.HasSynced, statesListener.HasSynced, migrationsListener.HasSynced}
	return nil
}

// Run works until the context ends, and returns when nothing of it runs anymore.
func (c *Controller) Run(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)

	logger := klog.FromContext(ctx)
	logger.Info("Starting storage version migrator")
	var workers sync.WaitGroup
	defer func() {
		logger.Info("Shutting down storage version migrator")
		c.queue.ShutDown()
		c.turns.ShutDown()
		workers.Wait()
	}()

	if !cache.WaitForCacheSync(ctx.Done(), c.synced...) {
		return
	}
	defer expose(c)()
	for range syncWorkers {
		workers.Go(func() { wait.UntilWithContext(ctx, c.work(c.queue, c.sync), time.Second) })
	}
	for range c.options.ConcurrentMigrations {
		workers.Go(func() { wait.UntilWithContext(ctx, c.work(c.turns, c.takeTurn), time.Second) })
	}
	<-ctx.Done()
}

// work handles what is in a queue until that is shut down.
func (c *Controller) work(queue workqueue.TypedRateLimitingInterface[string], handle func(context.Context, string) (time.Time, error)) func(context.Context) {
	next := func(ctx context.Context) bool {
		name, shutdown := queue.Get()
		if shutdown {
			return false
		}
		defer queue.Done(name)
		ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("migration", klog.KRef("", name)))
		lookAgain, err := handle(ctx, name)
		switch {
		case ctx.Err() != nil:
			return false
		case err != nil:
			utilruntime.HandleErrorWithContext(ctx, err, "Handling a migration failed, will retry")
			queue.AddRateLimited(name)
		default:
			queue.Forget(name)
			if !lookAgain.IsZero() {
				queue.AddAfter(name, max(lookAgain.Sub(c.clock.Now()), minSyncRetry))
			}
		}
		return true
	}
	return func(ctx context.Context) {
		for next(ctx) {
		}
	}
}

// sync does what needs no turn: it ends what cannot be migrated, tells what a migration waits for, and puts those in line
// that may write.
func (c *Controller) sync(ctx context.Context, name string) (time.Time, error) {
	m, err := c.migration(name)
	if err != nil || m == nil || m.DeletionTimestamp != nil {
		return time.Time{}, err
	}
	if finished(m) {
		return c.expire(ctx, m)
	}
	if c.hasTurn(m) {
		return time.Time{}, nil
	}
	decision, err := c.decide(ctx, m)
	if err != nil {
		return time.Time{}, err
	}
	if decision.Verdict == Wait {
		// It may wait for ever for something that is not there, or is there no longer.
		if decision, err = c.findFirst(ctx, m, decision); err != nil {
			return time.Time{}, err
		}
	}
	t := c.newTurn(m)
	t.journal.once = true
	switch decision.Verdict {
	case Go:
		c.turns.Add(name)
	case Wait:
		now := c.clock.Now()
		if waiting(m.Status.DeepCopy(), now, decision.Message) {
			err = t.journal.write(ctx, func(status *migrationv1alpha1.StorageVersionMigrationStatus) { waiting(status, now, decision.Message) })
		}
	case Fail:
		err = t.fail(ctx, decision)
	}
	if errors.Is(err, errMigrationGone) || errors.Is(err, errOutdated) {
		err = nil // whoever wrote it brings it here again
	}
	return decision.LookAgain, err
}

// takeTurn lets a migration write, until it has ended or has to stop.
func (c *Controller) takeTurn(ctx context.Context, name string) (time.Time, error) {
	m, err := c.migration(name)
	if err != nil || m == nil || finished(m) {
		return time.Time{}, err
	}
	t := c.newTurn(m)
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("resource", t.resource.String()))
	turnCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	t.stop = stop
	if !c.begin(t) {
		return time.Time{}, nil // its turn comes when that of the other one has ended
	}
	err = t.run(turnCtx)
	c.end(t)
	c.noteEnd(t.uid, err)
	klog.FromContext(ctx).V(4).Info("Turn ended", "cause", err)
	for _, other := range c.namesOf(t.resource) {
		if other != name {
			c.queue.Add(other) // It may have waited for this one.
		}
	}
	switch {
	case ctx.Err() != nil:
		return time.Time{}, nil
	case errors.Is(err, errStuck):
		c.queue.AddAfter(name, stuckRest)
		return time.Time{}, nil
	case errors.Is(err, errStopped), errors.Is(err, errMigrationGone):
		if errors.Is(err, errMigrationGone) {
			c.sweeps.drop(t.uid)
		}
		// Not at once: the caches may not show yet what it was stopped for, or that it has ended.
		c.queue.AddAfter(name, minSyncRetry)
		return time.Time{}, nil
	default:
		return time.Time{}, err
	}
}

// before orders the migrations that wait for a turn: those that have begun, then the oldest, and last those in whose last turn nothing came
// about.
func (c *Controller) before(a, b string) bool {
	first, errA := c.migrations.Get(a)
	second, errB := c.migrations.Get(b)
	if errA != nil || errB != nil {
		return errA != nil && errB == nil // what is gone is out of the way at once
	}
	begun := func(m *migrationv1alpha1.StorageVersionMigration) int {
		if m.Status.StartTime != nil {
			return 0
		}
		return 1
	}
	if a, b := c.isStuck(first.UID), c.isStuck(second.UID); a != b {
		return b
	}
	return cmp.Or(begun(first)-begun(second), first.CreationTimestamp.Compare(second.CreationTimestamp.Time), cmp.Compare(a, b)) < 0
}

// tell records an event on a migration.
func (c *Controller) tell(m *migrationv1alpha1.StorageVersionMigration, eventType, reason, message string) {
	c.events.Event(&corev1.ObjectReference{
		APIVersion:      migrationv1alpha1.SchemeGroupVersion.String(),
		Kind:            "StorageVersionMigration",
		Name:            m.Name,
		UID:             m.UID,
		ResourceVersion: m.ResourceVersion,
	}, eventType, reason, firstRunes(message, maxEventLength))
}
