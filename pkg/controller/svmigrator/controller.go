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
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	migrationclient "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"
	migrationinformers "sigs.k8s.io/svm-api/client/informers/externalversions/migration/v1alpha1"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

const (
	queueName = rewrite.Subsystem
	readyName = rewrite.Subsystem + "_turns" // a label of metrics, so the name stays

	// A failed sync, run or end of a migration is repeated after minRequeue, doubling up to maxRequeue. Each migration has
	// its own delay.
	minRequeue = time.Second
	maxRequeue = 30 * time.Second
	// syncWorkers is more than one, because a sync may wait for an API server that does not answer.
	syncWorkers = 2
)

// Observer knows what the servers write.
type Observer interface {
	HasSynced() bool
	// Subscribe registers a function that is called for each resource whose observation changed. The function must return
	// at once.
	Subscribe(changed func(schema.GroupResource))
	Observe(resource schema.GroupResource) storageversion.Observation
	// ReadAggregated reads what the aggregated server of a group writes now. It does nothing if there is no such server.
	ReadAggregated(ctx context.Context, group string) error
	// CheckLeases returns an error if other processes hold the identity Leases of API servers than were observed.
	CheckLeases(ctx context.Context) error
	// CheckCanAskEach returns why AskEach would return an error whatever the servers answer, or nil. It sends no request.
	CheckCanAskEach() error
	// AskEach calls a function with a reader of each live API server, at its own address or on a connection that stays
	// with it. The error names the servers for which the function failed or that could not be asked, and says why.
	AskEach(ctx context.Context, ask func(ctx context.Context, server documents.Reader) error) error
}

// Clients are the clients that the controller reads and writes with.
type Clients struct {
	Migrations migrationclient.MigrationV1alpha1Interface
	// Documents is for discovery documents and CustomResourceDefinitions.
	Documents rest.Interface
	// Objects configures the client for the metadata of objects.
	Objects *rest.Config
}

// Controller runs StorageVersionMigrations.
type Controller struct {
	env   *environment
	pacer *pacer.Pacer
	runs  *runs

	// queue has migrations to decide about. ready has migrations that may write and wait for a free slot. There are
	// options.ConcurrentMigrations slots.
	queue *controller.Queue[string]
	ready *controller.Queue[string]

	synced []cache.InformerSynced
}

// New returns a controller. Run starts it.
func New(
	ctx context.Context,
	clients Clients,
	informers migrationinformers.Interface,
	observer Observer,
	events record.EventRecorderLogger,
	options Options,
) (*Controller, error) {
	Register()
	pace := pacer.New(options.Pace)
	engine, err := rewrite.NewEngine(clients.Objects, pace, clock.RealClock{}, options.ChunkSize, options.Turn)
	if err != nil {
		return nil, err
	}
	caches, err := controller.NewCaches(informers, "svmigrator")
	if err != nil {
		return nil, err
	}
	c := &Controller{
		env: &environment{
			client:    clients.Migrations,
			documents: documents.Reader{Client: clients.Documents, Timeout: readTimeout},
			observer:  observer,
			caches:    caches,
			engine:    engine,
			events:    events.WithLogger(klog.FromContext(ctx)),
			clock:     clock.RealClock{},
			options:   options,
		},
		pacer: pace,
		runs:  newRuns(),
	}
	c.env.space = newSpace(klog.FromContext(ctx), c.env, c.stopWriting)
	c.queue = controller.NewQueue(controller.QueueOptions[string]{
		Name: queueName, Clock: c.env.clock, Handle: c.sync, Timeout: controller.SyncTimeout,
		Workers: syncWorkers, MinRetry: minRequeue, MaxRetry: maxRequeue,
	})
	c.ready = controller.NewQueue(controller.QueueOptions[string]{
		Name: readyName, Clock: c.env.clock, Handle: c.runMigration, Workers: options.ConcurrentMigrations,
		MinRetry: minRequeue, MaxRetry: maxRequeue, Order: &readyOrder{rank: c.rankOfName},
	})
	c.env.followers = newFollowers(c.env, c.enqueueResource)
	observer.Subscribe(c.resourceChanged)
	c.synced, err = caches.Listen(ctx, c.resourceChanged, c.migrationChanged)
	c.synced = append(c.synced, observer.HasSynced)
	return c, err
}

// Run runs the controller until the context ends. All its goroutines have ended when it returns.
func (c *Controller) Run(ctx context.Context) error {
	defer gauges.Hide(c)
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watching.Go(func() { c.env.space.run(ctx) })
	return controller.Run(ctx, c.synced, func() { gauges.Show(c) }, c.queue, c.ready, c.env.followers.queue)
}

// resourceChanged stops the run of a resource if the run may not write any more, and queues all migrations of the
// resource.
func (c *Controller) resourceChanged(resource schema.GroupResource) {
	if run := c.runs.runOf(resource); run != nil && run.mustStop() {
		run.stop(errStopped)
	}
	c.enqueueResource(resource)
	c.env.followers.queue.Add(resource)
}

// stopWriting stops all runs but those that write no object. The cache may be late, and a run be stopped for nothing:
// the next one goes on.
func (c *Controller) stopWriting() {
	for _, run := range c.runs.all() {
		if m := c.env.caches.Migration(run.name); m == nil || !writesNoObject(m) {
			run.stop(errStopped)
		}
	}
}

// enqueueResource queues all migrations of a resource.
func (c *Controller) enqueueResource(resource schema.GroupResource) {
	for _, m := range c.env.caches.MigrationsOf(resource) {
		c.queue.Add(m.Name)
	}
}

// migrationChanged stops the run of a migration that may not write any more, because it was deleted or suspended or
// because somebody else ended it. It queues the migrations that the change is about.
func (c *Controller) migrationChanged(m *migrationv1alpha1.StorageVersionMigration) {
	cached, run := c.env.caches.Migration(m.Name), c.runs.runOfMigration(m)
	gone := cached == nil || cached.UID != m.UID || cached.DeletionTimestamp != nil
	if run != nil {
		switch {
		case gone, m.Finished() && !run.ending.Load():
			run.stop(errMigrationGone)
		case m.Finished(): // The run itself is ending the migration.
		case cached.Spec.Suspend:
			run.stop(errStopped)
		default:
			return // The run writes the status all the time.
		}
	}
	c.queue.Add(m.Name)
	c.env.followers.queue.Add(m.GroupResource())
	if gone || m.Finished() {
		c.runs.forget(m.UID)
	}
}

// rankOfName returns the rank of a migration in the ready queue.
func (c *Controller) rankOfName(name string) rank {
	m := c.env.caches.Migration(name)
	if m == nil {
		return rank{name: name} // A migration that is gone comes first, and leaves the queue at once.
	}
	return rankOf(m, c.env.caches.State(m.GroupResource()), c.runs.memoryOf(m))
}

// runMigration runs a migration in one of the slots, until it has ended or must stop.
func (c *Controller) runMigration(ctx context.Context, name string) (again time.Time, err error) {
	m := c.env.caches.Migration(name)
	if m == nil || m.Finished() {
		return time.Time{}, nil
	}
	ctx = withMigration(ctx, m)
	runCtx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	run := &migrationRun{
		env: c.env, status: &statusWriter{env: c.env, stored: m},
		name: name, uid: m.UID, resource: m.GroupResource(),
		stop: stop, ready: c.ready,
	}
	if !c.runs.claimResource(run) {
		c.queue.Add(name) // The other one began while this one was queued, and the status must say that this one waits.
		return time.Time{}, nil
	}
	err = run.run(runCtx)
	if cause := context.Cause(runCtx); cause != nil && err != nil && ctx.Err() == nil {
		// The errors of cancelled requests do not say why they were cancelled.
		err = cmp.Or(controller.EndsManager(err), cause)
	}
	return time.Time{}, c.runEnded(ctx, run, err)
}

// runEnded keeps what the next run of the migration needs, and queues the migrations that may run now. It returns an
// error if the run failed. Then the migration runs again after a delay that grows with each such error.
func (c *Controller) runEnded(ctx context.Context, run *migrationRun, err error) error {
	broken := false
	run.whyPostponed = nil
	later, isPostponed := errors.AsType[*postponed](err)
	switch {
	case isPostponed:
		run.notBefore, run.whyPostponed = later.notBefore, &later.why
	case err == nil, ctx.Err() != nil, errors.Is(err, errStopped), errors.Is(err, errMigrationGone),
		errors.Is(err, rewrite.ErrStuck), errors.Is(err, rewrite.ErrTurnOver):
		run.hadTurn = run.hadTurn || errors.Is(err, rewrite.ErrTurnOver)
		run.notBefore = c.env.clock.Now().Add(minRequeue) // The caches may not show yet what stopped the run.
	default:
		broken, run.notBefore = true, c.env.clock.Now()
		run.reportFailure(ctx, err)
	}
	if !broken {
		run.failingSince = time.Time{}
	}
	c.runs.release(run, err)
	if cached := c.env.caches.Migration(run.name); cached == nil || cached.UID != run.uid || cached.Finished() {
		c.runs.forget(run.uid) // It may have been deleted after the run was stopped for another reason.
	}
	logger := klog.FromContext(ctx)
	if !errors.Is(err, errMigrationGone) { // Otherwise nothing else tells that objects are left.
		logger = logger.V(4)
	}
	logger.Info("Run ended", "err", err)
	for _, other := range c.env.caches.MigrationsOf(run.resource) {
		if other.Name != run.name {
			c.queue.Add(other.Name) // It may have waited for this one.
		}
	}
	if broken {
		return err
	}
	c.queue.AddAfter(run.name, run.notBefore.Sub(c.env.clock.Now()))
	return nil
}

// withMigration adds the migration to all log entries.
func withMigration(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration) context.Context {
	logger := klog.FromContext(ctx).WithValues("migration", klog.KObj(m), "resource", m.GroupResource().String())
	return klog.NewContext(ctx, logger)
}
