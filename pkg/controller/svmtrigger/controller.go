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
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	migrationclient "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"
	migrationinformers "sigs.k8s.io/svm-api/client/informers/externalversions/migration/v1alpha1"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	// A sync that failed is repeated after minRetry, which doubles up to maxRetry for each resource by itself.
	minRetry = time.Second
	maxRetry = 15 * time.Second
)

// Observer knows what the servers write.
type Observer interface {
	HasSynced() bool
	// Subscribe registers a function that is called for each resource whose observation changes. It must not block.
	Subscribe(changed func(schema.GroupResource))
	// Resources returns all resources that were ever observed.
	Resources() []schema.GroupResource
	Observe(resource schema.GroupResource) storageversion.Observation
	// LastRead returns when each source was last read with success.
	LastRead() map[migrationv1alpha1.EvidenceSource]time.Time
}

// Options are what administrators choose.
type Options struct {
	// AutoMigrate selects the resources that the trigger creates migrations of.
	AutoMigrate Selection
	Periods     Periods
	// CleanManagedFields makes the trigger create a migration of a custom resource when a version is not served any more.
	CleanManagedFields bool
}

// Controller keeps StorageStates true and creates StorageVersionMigrations that are due.
type Controller struct {
	client   migrationclient.MigrationV1alpha1Interface
	observer Observer
	events   record.EventRecorderLogger
	clock    clock.WithTicker
	options  Options
	decide   func(Input) Decision
	queue    *controller.Queue[schema.GroupResource]

	caches *controller.Caches
	synced []cache.InformerSynced

	// Only the one worker uses these. A second worker could decide on a state while the first one writes it, and
	// would win nothing: a sync without a write takes microseconds, and the client's rate limit bounds the writes.
	stateWrites, migrationWrites ownWrites
	memory                       Memory
	// made is when the Controller was made.
	made time.Time
	// selectionChecked says that the names of AutoMigrate were compared with the resources that there are.
	selectionChecked bool
}

// New returns a controller that is not running yet.
func New(
	ctx context.Context,
	client migrationclient.MigrationV1alpha1Interface,
	informers migrationinformers.Interface,
	observer Observer,
	events record.EventRecorderLogger,
	options Options,
	clk clock.WithTicker,
) (*Controller, error) {
	Register()
	states, migrations := informers.StorageStates().TypedInformer(), informers.StorageVersionMigrations().TypedInformer()
	caches, err := controller.NewCaches(informers, "svmtrigger")
	if err != nil {
		return nil, err
	}
	c := &Controller{
		client:          client,
		observer:        observer,
		events:          events.WithLogger(klog.FromContext(ctx)),
		clock:           clk,
		options:         options,
		made:            clk.Now(),
		decide:          Decide,
		caches:          caches,
		stateWrites:     newOwnWrites(states.GetStore()),
		migrationWrites: newOwnWrites(migrations.GetStore()),
		memory:          Memory{},
	}
	c.queue = controller.NewQueue(controller.QueueOptions[schema.GroupResource]{
		Name: subsystem, Clock: clk, Handle: c.sync, Timeout: controller.SyncTimeout, Workers: 1,
		MinRetry: minRetry, MaxRetry: maxRetry,
	})
	observer.Subscribe(c.queue.Add)
	// The worker begins when c.synced is true, which is after every object in the caches was enqueued.
	c.synced, err = caches.Listen(ctx, c.queue.Add, func(m *migrationv1alpha1.StorageVersionMigration) {
		c.queue.Add(m.GroupResource())
	})
	c.synced = append(c.synced, observer.HasSynced)
	return c, err
}

// Run works until the context ends. It returns when all its goroutines have ended.
func (c *Controller) Run(ctx context.Context) error {
	defer gauges.Hide(c)
	return controller.Run(ctx, c.synced, func() {
		for _, resource := range c.observer.Resources() {
			c.queue.Add(resource)
		}
		gauges.Show(c)
	}, c.queue)
}

// checkSelection logs once which names of AutoMigrate match no resource. It waits until all API servers were read:
// before that a name may be right, and its resource not known yet.
func (c *Controller) checkSelection(logger klog.Logger) {
	if c.selectionChecked || c.observer.LastRead()[migrationv1alpha1.EvidenceFromServerDiscovery].IsZero() {
		return
	}
	c.selectionChecked = true
	if names := c.options.AutoMigrate.Unmatched(c.observer.Resources()); len(names) > 0 {
		logger.Info("--auto-migrate has names that match no resource now. "+
			"Check that each is a plural with its group, for example deployments.apps", "names", names)
	}
}

// sync returns when to look again.
func (c *Controller) sync(ctx context.Context, resource schema.GroupResource) (time.Time, error) {
	c.checkSelection(klog.FromContext(ctx))
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("resource", resource.String()))
	if !c.stateWrites.visible(resource) || !c.migrationWrites.visible(resource) {
		return c.clock.Now().Add(minRetry), nil // unless an event that shows the write comes first
	}
	in := c.observe(resource)
	decision := c.decide(in)
	klog.FromContext(ctx).V(6).Info("Decided", "observation", in.Observation, "decision", decision)
	return decision.DecideAt, c.act(ctx, in, decision)
}
