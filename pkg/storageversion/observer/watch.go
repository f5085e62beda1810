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
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// pageSize bounds how many whole objects are in memory at once. CustomResourceDefinitions may have a megabyte each.
	pageSize = 50

	// pageTimeout is what API servers give a request.
	pageTimeout = time.Minute

	// watchInterval is the least time between the beginnings of two watches, should a server end them right away.
	watchInterval = time.Second

	// brokenWatchPeriod is how long a watch that breaks again and again is begun where it broke, before all is listed anew.
	brokenWatchPeriod = time.Minute

	// steadyAfter is how long things must have gone well for the next failure to count as the first.
	steadyAfter = time.Minute
)

// watchBackoff stays short: a server that comes back is to be seen within five seconds, and few requests wait for it.
var watchBackoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Steps: 10, Cap: 4 * time.Second, Jitter: 0.25}

// handlers are told of objects, by one call after the other.
type handlers[T runtime.Object] struct {
	// replace gets all objects that there are. What happened since the call before may have gone unseen.
	replace func(all []T)
	// set and delete get every change since the call before.
	set, delete func(object T)
	// upToDate says that there was no other change up to now. It may be nil.
	upToDate func()
	// revision gets the revision up to which everything was told, before each call of replace and upToDate, or zero if that
	// cannot be read. It may be nil.
	revision func(at int64)
	// failed is told of every failure to list or to begin a watch. It may be nil.
	failed func(err error)
}

// source is what can be listed and watched.
type source struct {
	client    rest.Interface
	resource  string
	namespace string
	labels    string
}

// follow tells handlers of all objects of a source until ctx ends. A Reflector does the work. It is used without an informer
// because that would not tell a list from a watch, and with that not whether something may have gone unseen.
func follow[T runtime.Object](ctx context.Context, clk clock.WithTicker, from source, to handlers[T]) {
	logger := klog.FromContext(ctx).WithValues("resource", from.resource)
	ctx = klog.NewContext(ctx, logger)
	lw := &listWatch{source: from, clock: clk, failed: to.failed}
	defer lw.wait()
	var kind T
	reflector := cache.NewReflectorWithOptions(
		&cache.ListWatch{ListWithContextFunc: lw.list, WatchFuncWithContext: lw.watch},
		kind, &store[T]{handlers: to}, cache.ReflectorOptions{Name: from.resource, Logger: &logger, Clock: clk})
	reflector.MaxInternalErrorRetryDuration = brokenWatchPeriod

	backoff := watchBackoff
	for {
		began := clk.Now()
		err := reflector.ListAndWatchWithContext(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			lw.tell(ctx, err)
		}
		if clk.Since(began) > steadyAfter {
			backoff = watchBackoff
		}
		if !pause(ctx, clk, backoff.Step()) {
			return
		}
	}
}

// listWatch lists and watches for a Reflector, which has the list streamed where the API server can do that: a watch then
// begins with all objects, one by one. Otherwise the list is a consistent one, in pages.
//
// A watch that cannot begin because nobody answers is tried again here: if it begins where the one before ended, nothing is
// missed, whereas the Reflector would list anew, or go on waiting after ctx has ended.
type listWatch struct {
	source
	clock  clock.WithTicker
	failed func(error)

	mu      sync.Mutex
	trouble string // what was told of last; empty while all is well
	began   time.Time
	lists   sync.WaitGroup
}

// list ignores the options, which allow an API server to answer from its cache: it would then send everything at once,
// and perhaps an older state than was seen already.
func (l *listWatch) list(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	// The Reflector does not wait for a list when ctx ends. See wait.
	l.mu.Lock()
	if err := ctx.Err(); err != nil {
		l.mu.Unlock()
		return nil, err
	}
	l.lists.Add(1)
	l.mu.Unlock()
	defer l.lists.Done()

	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return l.request(options).Timeout(pageTimeout).Do(ctx).Get()
	})
	pages.PageSize = pageSize
	pages.FullListIfExpired = false
	all, _, err := pages.ListWithAlloc(ctx, metav1.ListOptions{})
	return all, err
}

// wait returns when no list is under way. ctx has ended, so that none can begin.
func (l *listWatch) wait() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lists.Wait()
}

func (l *listWatch) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	backoff := watchBackoff
	if !pause(ctx, l.clock, l.untilWatch()) {
		return nil, ctx.Err()
	}
	for {
		w, err := l.beginWatch(ctx, options)
		if err == nil {
			l.recovered(ctx)
			return w, nil
		}
		if ctx.Err() != nil || !unanswered(err) {
			return nil, err
		}
		l.tell(ctx, err)
		if !pause(ctx, l.clock, backoff.Step()) {
			return nil, ctx.Err()
		}
	}
}

// untilWatch is how long to wait before the next watch.
func (l *listWatch) untilWatch() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return watchInterval - l.clock.Since(l.began)
}

func (l *listWatch) beginWatch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	request := l.request(options)
	if options.TimeoutSeconds != nil {
		request.Timeout(time.Duration(*options.TimeoutSeconds) * time.Second)
	}
	w, err := request.Watch(ctx)
	if err == nil {
		l.mu.Lock()
		l.began = l.clock.Now()
		l.mu.Unlock()
	}
	return w, err
}

func (l *listWatch) request(options metav1.ListOptions) *rest.Request {
	options.LabelSelector = l.labels
	return l.client.Get().NamespaceIfScoped(l.namespace, l.namespace != "").Resource(l.resource).
		SpecificallyVersionedParams(&options, metav1.ParameterCodec, metav1.SchemeGroupVersion)
}

// unanswered says whether err means that no API server answered the question, as opposed to answering no.
func unanswered(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return true
	}
	// The answer of an API server that knows an earlier state only, perhaps because etcd was restored. All has to be listed.
	if apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests || code == 0
}

// tell logs the first of a row of failures of one kind. Another kind is a new row: what is wrong may change.
func (l *listWatch) tell(ctx context.Context, err error) {
	if l.failed != nil {
		l.failed(err)
	}
	trouble := "no answer"
	if !unanswered(err) {
		trouble = string(apierrors.ReasonForError(err))
	}
	l.mu.Lock()
	before := l.trouble
	l.trouble = trouble
	l.mu.Unlock()
	logger := klog.FromContext(ctx)
	switch {
	case before == trouble:
		logger.V(4).Info("A resource still cannot be read", "err", err)
	case trouble == string(metav1.StatusReasonNotFound):
		logger.Info("Waiting for a resource that the API server does not serve")
	default:
		logger.Info("Waiting for a resource that cannot be read; what is known of it may be out of date", "err", err)
	}
}

// recovered logs the end of a row of failures.
func (l *listWatch) recovered(ctx context.Context) {
	l.mu.Lock()
	before := l.trouble
	l.trouble = ""
	l.mu.Unlock()
	if before != "" {
		klog.FromContext(ctx).Info("The resource can be read again")
	}
}

// store turns what a Reflector does to it into calls of handlers. It stores nothing.
type store[T runtime.Object] struct {
	handlers handlers[T]
}

var (
	_ cache.ReflectorStore         = &store[runtime.Object]{}
	_ cache.ReflectorBookmarkStore = &store[runtime.Object]{}
)

// Replace is called after each list, hence once at the beginning, and whenever a watch could not go on where the one
// before it ended.
func (s *store[T]) Replace(objects []any, resourceVersion string) error {
	all := make([]T, 0, len(objects))
	for _, object := range objects {
		typed, ok := object.(T)
		if !ok {
			return fmt.Errorf("listing returned %T", object)
		}
		all = append(all, typed)
	}
	s.reached(resourceVersion)
	s.handlers.replace(all)
	return nil
}

// Add is called for what a watch says was created.
func (s *store[T]) Add(object any) error { return call(s.handlers.set, object) }

// Update is called for what a watch says was changed.
func (s *store[T]) Update(object any) error { return call(s.handlers.set, object) }

// Delete is called for what a watch says was deleted, with its last state.
func (s *store[T]) Delete(object any) error { return call(s.handlers.delete, object) }

// Bookmark is called when the API server says that a watch has sent everything.
func (s *store[T]) Bookmark(resourceVersion string) error {
	s.reached(resourceVersion)
	if s.handlers.upToDate != nil {
		s.handlers.upToDate()
	}
	return nil
}

func (s *store[T]) reached(resourceVersion string) {
	if s.handlers.revision != nil {
		s.handlers.revision(revisionOf(resourceVersion))
	}
}

// Resync has no meaning: nothing is stored.
func (s *store[T]) Resync() error { return nil }

func call[T runtime.Object](handler func(T), object any) error {
	typed, ok := object.(T)
	if !ok {
		return fmt.Errorf("the watch returned %T", object)
	}
	handler(typed)
	return nil
}
