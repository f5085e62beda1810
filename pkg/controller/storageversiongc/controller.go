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

package storageversiongc

import (
	"context"
	"sync"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	apiserverinternalinformers "k8s.io/client-go/informers/apiserverinternal/v1alpha1"
	coordinformers "k8s.io/client-go/informers/coordination/v1"
	"k8s.io/client-go/kubernetes"
	apiserverinternallisters "k8s.io/client-go/listers/apiserverinternal/v1alpha1"
	coordlisters "k8s.io/client-go/listers/coordination/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	queueName = "storage_version_garbage_collector"

	// everything is the only key of the queue. There are some sixty StorageVersions, and a server that goes is mentioned
	// in all of them: looking at all of them at once costs one list and one reading of each Lease in doubt, and the
	// Leases are always read after the StorageVersions.
	everything = "storageversions"

	// burst is how long events are collected. A server that starts or goes makes one for every StorageVersion.
	burst = time.Second

	// Failed syncs are repeated after minBackoff, doubling up to maxBackoff, which bounds both the load on an API server
	// in trouble and the time until garbage goes once it is back.
	minBackoff = time.Second
	maxBackoff = 15 * time.Second
)

// Controller removes entries of API servers that are gone from StorageVersions, and StorageVersions without entries.
type Controller struct {
	client kubernetes.Interface
	clock  clock.WithTicker
	queue  workqueue.TypedRateLimitingInterface[string]

	leases                coordlisters.LeaseLister
	leasesSynced          cache.InformerSynced
	storageVersions       apiserverinternallisters.StorageVersionLister
	storageVersionsSynced cache.InformerSynced

	// memory is what the last sync left for the next. There is one worker, and only it reads and writes this.
	memory memory
}

// NewStorageVersionGC returns a controller that is not running yet. The informers may be shared and may be filtered to
// the identity Leases of kube-system: a Lease missing from them is only a reason to look.
func NewStorageVersionGC(
	ctx context.Context,
	clientset kubernetes.Interface,
	leaseInformer coordinformers.LeaseInformer,
	storageVersionInformer apiserverinternalinformers.StorageVersionInformer,
) *Controller {
	return newController(ctx, clientset, leaseInformer, storageVersionInformer, clock.RealClock{})
}

func newController(
	ctx context.Context,
	clientset kubernetes.Interface,
	leaseInformer coordinformers.LeaseInformer,
	storageVersionInformer apiserverinternalinformers.StorageVersionInformer,
	clk clock.WithTicker,
) *Controller {
	Register()
	c := &Controller{
		client: clientset,
		clock:  clk,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](minBackoff, maxBackoff),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: queueName, Clock: clk},
		),
		leases:                leaseInformer.Lister(),
		leasesSynced:          leaseInformer.Informer().HasSynced,
		storageVersions:       storageVersionInformer.Lister(),
		storageVersionsSynced: storageVersionInformer.Informer().HasSynced,
	}

	// The handlers look at nothing, so that no event, no tombstone and no resync can be misread: the sync finds out from
	// the caches, without a request, whether there is anything to do.
	logger := klog.FromContext(ctx)
	changed := func() { c.queue.AddAfter(everything, burst) }
	_, err := leaseInformer.Informer().AddEventHandlerWithOptions(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(any) { changed() },
	}, cache.HandlerOptions{Logger: &logger})
	utilruntime.Must(err)
	_, err = storageVersionInformer.Informer().AddEventHandlerWithOptions(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
	}, cache.HandlerOptions{Logger: &logger})
	utilruntime.Must(err)
	return c
}

// Run collects garbage until the context ends, and returns when nothing of it runs anymore. A cluster that does not serve
// StorageVersions keeps it waiting for its caches.
func (c *Controller) Run(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)

	logger := klog.FromContext(ctx)
	logger.Info("Starting storage version garbage collector")
	var workers sync.WaitGroup
	defer func() {
		logger.Info("Shutting down storage version garbage collector")
		c.queue.ShutDown()
		workers.Wait()
	}()

	if !cache.WaitForCacheSync(ctx.Done(), c.leasesSynced, c.storageVersionsSynced) {
		return
	}
	c.queue.Add(everything)
	workers.Go(func() { wait.UntilWithContext(ctx, c.work, time.Second) })
	<-ctx.Done()
}

func (c *Controller) work(ctx context.Context) {
	for c.processNext(ctx) {
	}
}

func (c *Controller) processNext(ctx context.Context) bool {
	key, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(key)

	next, err := c.sync(ctx)
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		utilruntime.HandleErrorWithContext(ctx, err, "Collecting stale storage versions failed, will retry")
		c.queue.AddRateLimited(key)
		return true
	}
	c.queue.Forget(key)
	if next != never {
		c.queue.AddAfter(key, next)
	}
	return true
}

// sync returns when to look again.
func (c *Controller) sync(ctx context.Context) (time.Duration, error) {
	suspicious, err := c.suspicious()
	if err != nil || !suspicious {
		c.memory = memory{}
		return never, err
	}
	obs, observeErr := c.observe(ctx)
	decision := decide(obs)
	outcome, actErr := c.act(ctx, decision)
	c.memory = outcome.memory
	if observeErr != nil {
		return never, observeErr
	}
	return outcome.next, actErr
}
