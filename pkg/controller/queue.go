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
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// logInterval is how often a worker logs failures of one reason.
	logInterval = time.Minute

	// SyncTimeout is a Timeout for what sends a few requests, each of which the API server ends within a minute. Without
	// it one answer with "Retry-After: 86400", which client-go waits for, or a proxy that answers nothing, would stop a
	// worker for as long.
	SyncTimeout = 5 * time.Minute
)

// Queue is a queue of keys with the function that handles them.
type Queue[K comparable] struct {
	workqueue.TypedRateLimitingInterface[K]
	QueueOptions[K]
}

// QueueOptions configure the queue of a controller.
type QueueOptions[K comparable] struct {
	// Name is the name of the queue in metrics.
	Name  string
	Clock clock.WithTicker
	// Handle does the work for one key. again is when to handle the key again if nothing changes; the zero time means
	// never.
	Handle func(ctx context.Context, key K) (again time.Time, err error)
	// Timeout is after what time the context of a call of Handle ends. Zero means never.
	Timeout time.Duration
	// Workers is how many keys are handled at a time.
	Workers int
	// MinRetry is how long a key waits after Handle has failed. It doubles with each failure in a row of that key, up to
	// MaxRetry. It is also the least time that a key waits if Handle returns when to handle it again.
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

// AnyQueue is a Queue with any type of key.
type AnyQueue interface {
	ShutDown()
	start(ctx context.Context, end context.CancelCauseFunc, workers *sync.WaitGroup)
}

// Run waits until everything has synced, calls begin, and starts the workers of the queues. It stops them when ctx
// ends, or when a handler returns an error with which the manager has to end, and returns after all of them have
// returned. The error is that one, or nil.
func Run(ctx context.Context, synced []cache.InformerSynced, begin func(), queues ...AnyQueue) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	var workers sync.WaitGroup
	defer workers.Wait()
	for _, queue := range queues {
		defer queue.ShutDown()
	}
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return nil
	}
	begin()
	for _, queue := range queues {
		queue.start(ctx, end, &workers)
	}
	<-ctx.Done()
	return EndsManager(context.Cause(ctx))
}

func (q *Queue[K]) start(ctx context.Context, end context.CancelCauseFunc, workers *sync.WaitGroup) {
	for range q.Workers {
		workers.Go(func() { q.work(ctx, end) })
	}
}

// work calls Handle for one key after the other until the queue is shut down or ctx ends. If Handle fails, work adds
// the key again after a backoff. It logs the error, unless that is ErrOutdated. Many keys often fail for one reason,
// for example a missing permission, so it logs one error of each reason per minute, and the others at verbosity 4.
func (q *Queue[K]) work(ctx context.Context, end context.CancelCauseFunc) {
	defer utilruntime.HandleCrashWithContext(ctx)
	logged := map[metav1.StatusReason]time.Time{}
	for ctx.Err() == nil {
		key, shutdown := q.Get()
		if shutdown {
			return
		}
		q.workOn(ctx, end, key, logged)
	}
}

func (q *Queue[K]) handle(ctx context.Context, key K) (time.Time, error) {
	if q.Timeout > 0 {
		timed, cancel := context.WithTimeout(ctx, q.Timeout)
		defer cancel()
		ctx = timed
	}
	return q.Handle(ctx, key)
}

func (q *Queue[K]) workOn(
	ctx context.Context, end context.CancelCauseFunc, key K, logged map[metav1.StatusReason]time.Time,
) {
	defer q.Done(key)
	again, err := q.handle(ctx, key)
	switch {
	case ctx.Err() != nil:
	case EndsManager(err) != nil:
		end(EndsManager(err))
	case errors.Is(err, ErrOutdated):
		klog.FromContext(ctx).V(4).Info("Outdated, will retry", "key", fmt.Sprint(key), "err", err)
		q.AddRateLimited(key)
	case err != nil:
		if reason := apierrors.ReasonForError(err); q.Clock.Since(logged[reason]) < logInterval {
			klog.FromContext(ctx).V(4).Info("Sync failed, will retry", "key", fmt.Sprint(key), "err", err)
		} else {
			logged[reason] = q.Clock.Now()
			utilruntime.HandleErrorWithContext(ctx, err, "Sync failed, will retry. For a minute, this worker logs other "+
				"failures of this kind with -v=4 only", "key", fmt.Sprint(key))
		}
		q.AddRateLimited(key)
	default:
		q.Forget(key)
		if !again.IsZero() {
			q.AddAfter(key, max(again.Sub(q.Clock.Now()), q.MinRetry))
		}
	}
}
