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
	"fmt"
	"time"

	apiserverinternalinformers "k8s.io/client-go/informers/apiserverinternal/v1alpha1"
	coordinformers "k8s.io/client-go/informers/coordination/v1"
	"k8s.io/client-go/kubernetes"
	apiserverinternallisters "k8s.io/client-go/listers/apiserverinternal/v1alpha1"
	coordlisters "k8s.io/client-go/listers/coordination/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
)

const (
	// everything is the only key of the queue. There are about sixty StorageVersions, and all of them name a server that
	// goes. One sync for all of them costs one list and one read of each Lease in doubt, and it always reads the Leases
	// after the StorageVersions.
	everything = "storageversions"

	// burst is how long the controller collects events. A server that starts or goes causes one for each StorageVersion.
	burst = time.Second

	// A sync that failed is repeated after minBackoff, then after twice as long each time, up to maxBackoff. This bounds
	// the load on an API server in trouble, and the time until garbage goes after the API server is back.
	minBackoff = time.Second
	maxBackoff = 15 * time.Second
)

// Controller removes the entries of API servers that are gone from StorageVersions, and deletes StorageVersions without
// entries.
type Controller struct {
	client kubernetes.Interface
	clock  clock.WithTicker
	queue  *controller.Queue[string]

	leases          coordlisters.LeaseLister
	storageVersions apiserverinternallisters.StorageVersionLister
	synced          []cache.InformerSynced

	// memory is what the last sync left for the next one. Only the one worker reads and writes it.
	memory memory
}

// New returns a controller that is not running yet. The informers may be shared, and the one of Leases may be limited
// to the identity Leases of kube-system. A Lease that it does not have is only a reason to read that Lease.
func New(
	ctx context.Context,
	client kubernetes.Interface,
	leases coordinformers.LeaseInformer,
	storageVersions apiserverinternalinformers.StorageVersionInformer,
	clk clock.WithTicker,
) (*Controller, error) {
	register()
	c := &Controller{
		client:          client,
		clock:           clk,
		leases:          leases.Lister(),
		storageVersions: storageVersions.Lister(),
		synced:          []cache.InformerSynced{leases.Informer().HasSynced, storageVersions.Informer().HasSynced},
	}
	c.queue = controller.NewQueue(controller.QueueOptions[string]{
		Name: subsystem, Clock: clk, Handle: c.sync, Timeout: controller.SyncTimeout, Workers: 1,
		MinRetry: minBackoff, MaxRetry: maxBackoff,
	})

	// The handlers do not look at the objects, so they cannot misread a tombstone or a resync. The sync finds out from the
	// caches, without a request, whether there is anything to do.
	logger := klog.FromContext(ctx)
	changed := func() { c.queue.AddAfter(everything, burst) }
	_, err := leases.Informer().AddEventHandlerWithOptions(cache.ResourceEventHandlerFuncs{
		DeleteFunc: func(any) { changed() },
	}, cache.HandlerOptions{Logger: &logger})
	if err != nil {
		return nil, fmt.Errorf("listening to leases: %w", err)
	}
	_, err = storageVersions.Informer().AddEventHandlerWithOptions(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
	}, cache.HandlerOptions{Logger: &logger})
	if err != nil {
		return nil, fmt.Errorf("listening to storage versions: %w", err)
	}
	return c, nil
}

// Run collects garbage until ctx ends, and returns when all its goroutines have ended. It waits for its caches as long
// as the cluster does not serve StorageVersions.
func (c *Controller) Run(ctx context.Context) error {
	return controller.Run(ctx, c.synced, func() { c.queue.Add(everything) }, c.queue)
}

// sync removes what is proven to be garbage.
func (c *Controller) sync(ctx context.Context, _ string) (again time.Time, err error) {
	remembered := c.memory
	c.memory = memory{}
	if !c.suspicious() {
		return time.Time{}, nil // Only an event can make another sync necessary.
	}
	c.memory.refusals = remembered.refusals // Reads that fail do not end a row of refused writes.
	obs, err := c.observe(ctx, remembered)
	if err != nil {
		// What was not read is unknown. What prevented the read may also prevent a living server from writing its Lease.
		return time.Time{}, err
	}
	d := decide(obs)
	err = c.act(ctx, &d)
	c.memory = d.memory
	return c.clock.Now().Add(d.next), err
}
