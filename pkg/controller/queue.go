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

package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
)

// logInterval is how often a worker logs failures of one kind.
const logInterval = time.Minute

// Queue is a queue of keys, and how they are handled.
type Queue[K comparable] struct {
	workqueue.TypedRateLimitingInterface[K]
	QueueOptions[K]
}

// QueueOptions are what makes the queue of a controller.
type QueueOptions[K comparable] struct {
	// Name is the name of the queue in metrics.
	Name  string
	Clock clock.WithTicker
	// Handle does the work for one key. It returns when the key must be handled again although nothing has changed. The
	// zero time means never.
	Handle func(ctx context.Context, key K) (again time.Time, err error)
	// Workers is how many keys are handled at a time.
	Workers int
	// A key is handled again MinRetry after Handle failed, doubling up to MaxRetry for each key by itself. MinRetry is
	// also the least time before a key is handled again because Handle asked for it.
	MinRetry, MaxRetry time.Duration
	// Order is the order of the keys. If it is nil, the key that was added first comes first.
	Order workqueue.Queue[K]
}

// NewQueue returns a queue that nobody works on yet.
func NewQueue[K comparable](o QueueOptions[K]) *Queue[K] {
	ordered := workqueue.TypedQueueConfig[K]{Name: o.Name, Clock: o.Clock, Queue: o.Order}
	delaying := workqueue.TypedDelayingQueueConfig[K]{
		Name: o.Name, Clock: o.Clock, Queue: workqueue.NewTypedWithConfig(ordered),
	}
	limiting := workqueue.TypedRateLimitingQueueConfig[K]{
		DelayingQueue: workqueue.NewTypedDelayingQueueWithConfig(delaying),
	}
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[K](o.MinRetry, o.MaxRetry)
	return &Queue[K]{workqueue.NewTypedRateLimitingQueueWithConfig(limiter, limiting), o}
}

// Workload is a Queue of any kind of keys.
type Workload interface {
	ShutDown()
	start(ctx context.Context, workers *sync.WaitGroup)
}

// Run has the keys of the queues handled until ctx ends. It first waits until everything has synced, and calls begin.
// When it returns, all workers have ended.
func Run(ctx context.Context, synced []cache.InformerSynced, begin func(), queues ...Workload) {
	var workers sync.WaitGroup
	defer workers.Wait()
	for _, queue := range queues {
		defer queue.ShutDown()
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return
	}
	begin()
	for _, queue := range queues {
		queue.start(ctx, &workers)
	}
	<-ctx.Done()
}

func (q *Queue[K]) start(ctx context.Context, workers *sync.WaitGroup) {
	for range q.Workers {
		workers.Go(func() { q.work(ctx) })
	}
}

// work handles keys, one after the other, until the queue is shut down or ctx ends. It handles a key again after a
// backoff if that failed, and logs the error, except ErrOutdated. What fails for one key often fails for all of them,
// for lack of a permission for instance: work logs one error of each kind in a minute.
func (q *Queue[K]) work(ctx context.Context) {
	defer utilruntime.HandleCrashWithContext(ctx)
	logged := map[metav1.StatusReason]time.Time{}
	for ctx.Err() == nil {
		key, shutdown := q.Get()
		if shutdown {
			return
		}
		q.workOn(ctx, key, logged)
	}
}

func (q *Queue[K]) workOn(ctx context.Context, key K, logged map[metav1.StatusReason]time.Time) {
	defer q.Done(key)
	again, err := q.Handle(ctx, key)
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, ErrOutdated):
		q.AddRateLimited(key)
	case err != nil:
		if kind := apierrors.ReasonForError(err); q.Clock.Since(logged[kind]) >= logInterval {
			logged[kind] = q.Clock.Now()
			utilruntime.HandleErrorWithContext(ctx, err, "Sync failed, will retry; others may fail for the same reason",
				"key", fmt.Sprint(key))
		}
		q.AddRateLimited(key)
	default:
		q.Forget(key)
		if !again.IsZero() {
			q.AddAfter(key, max(again.Sub(q.Clock.Now()), q.MinRetry))
		}
	}
}
