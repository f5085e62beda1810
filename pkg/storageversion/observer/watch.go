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
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/pkg/retry"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	// pageSize bounds how many whole objects are in memory at once. A CustomResourceDefinition may have a megabyte.
	pageSize = 50

	// pageTimeout is what API servers give a request.
	pageTimeout = time.Minute

	// shortWatch is how long a watch lives at most that ends at once.
	shortWatch = 5 * time.Second

	// restoredAfter is for how long each list must show an earlier state before etcd counts as restored. An API server
	// that is late writes, and is not late any more, when it renews its identity Lease every ten seconds.
	restoredAfter = 30 * time.Second

	// restoredGap is the longest time between two such lists. What etcd had in a longer one is not known.
	restoredGap = 15 * time.Second

	// steadyAfter is how long a watch must run before the next failure counts as the first.
	steadyAfter = time.Minute
)

// watchBackoff stays short: few requests wait for a server, and its return must be seen within five seconds.
var watchBackoff = wait.Backoff{
	Duration: 500 * time.Millisecond, Factor: 2, Steps: 10, Cap: 4 * time.Second, Jitter: 0.25,
}

// listBackoff is for watches that end at once, or are refused, after everything was listed.
var listBackoff = wait.Backoff{
	Duration: 500 * time.Millisecond, Factor: 2, Steps: 10, Cap: time.Minute, Jitter: 0.25,
}

// watchable is what can be listed and watched.
type watchable interface {
	runtime.Object
	metav1.ObjectMetaAccessor
}

// delta is what a list or an event of a watch says about objects of type T. That of a bookmark has only a revision.
type delta[T watchable] struct {
	// set has the objects that were created or changed, and all objects after a list.
	set []T
	// gone has the names of objects that were deleted.
	gone []string
	// listed says that this is a list: changes since the last delta may have been missed.
	listed bool
	// revision of etcd is that of the list or of the last change. It is zero if it cannot be read.
	revision int64
}

// watchedList is what can be listed and watched. Nobody follows it twice at the same time.
type watchedList struct {
	client rest.Interface
	path   string
	labels string
	clock  clock.WithTicker
	// restored is called when a list shows an earlier state of etcd than was seen before, if it is not nil. See Options.
	restored func(err error, after time.Time)
	mu       sync.Mutex
	// revisionSeen is when revision became as high as it is. Bookmarks of a watch that hangs do not change it: they have
	// the same revision again and again.
	revisionSeen time.Time
	// earlierSince is when the first list of a row showed an earlier state, and earlierLast when the last one did.
	// earlierLast is zero after a list, or a watch, has shown anything else.
	earlierSince, earlierLast time.Time

	// revision is the highest revision of any delta.
	revision int64
	// listedAgain says that the last attempt to follow it listed everything.
	listedAgain bool
	// listed is closed after the first list was applied.
	listed chan struct{}
	// names are those of the objects that exist. They outlive a watch: a name that the next list lacks was deleted.
	names sets.Set[string]
}

func newWatchedList(client rest.Interface, path, labels string) *watchedList {
	return &watchedList{client: client, path: path, labels: labels, listed: make(chan struct{})}
}

func (w *watchedList) resource() string { return path.Base(w.path) }

func (w *watchedList) request(options metav1.ListOptions) *rest.Request {
	options.LabelSelector = w.labels
	return w.client.Get().AbsPath(w.path).
		SpecificallyVersionedParams(&options, metav1.ParameterCodec, metav1.SchemeGroupVersion)
}

// follow calls apply with each delta of a watched list, one after the other, until ctx ends. It calls tried with every
// failure to list or to begin a watch, and with nil when a watch begins where the one before it ended.
//
// It drives a Reflector without an informer, because an informer hides whether it listed or watched, and with that
// whether something may have been missed.
func follow[T watchable](ctx context.Context, from *watchedList, apply func(delta[T]), tried func(error)) {
	clk := from.clock
	logger := klog.FromContext(ctx).WithValues("resource", from.resource())
	ctx = klog.NewContext(ctx, logger)
	lw := &listWatch{watchedList: from, tried: tried}
	defer lw.wait()
	var kind T
	reflector := cache.NewReflectorWithOptions(
		&cache.ListWatch{ListWithContextFunc: lw.list, WatchFuncWithContext: lw.watch},
		kind, &store[T]{list: from, apply: apply},
		cache.ReflectorOptions{Name: from.resource(), Logger: &logger, Clock: clk})
	reflector.WatchListPageSize = pageSize

	watchDelay, listDelay := watchBackoff.DelayWithReset(clk, steadyAfter), listBackoff.DelayFunc()
	for {
		began := clk.Now()
		from.listedAgain = false
		err := reflector.ListAndWatchWithContext(ctx)
		lw.stop()
		if err != nil && ctx.Err() == nil {
			lw.failed(ctx, err)
		}
		delay := watchDelay()
		switch {
		case clk.Since(began) > shortWatch:
			listDelay = listBackoff.DelayFunc()
		case from.listedAgain:
			delay = listDelay()
		}
		if !retry.Sleep(ctx, clk, delay) {
			return
		}
	}
}

// listWatch lists and watches for a Reflector. The Reflector first asks for a streamed list: a watch that begins with
// all objects, one by one. An API server that cannot stream gets a consistent list, in pages.
type listWatch struct {
	*watchedList
	tried    func(error)
	failures retry.Streak
	unserved bool       // The log says so.
	listing  sync.Mutex // held while a page is read
	last     watch.Interface
}

// list returns one page. It asks for the current state, whatever the options say: they allow an API server to answer
// from its cache, with everything at once, and perhaps with an older state than a watch has already shown.
func (l *listWatch) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	l.listing.Lock()
	defer l.listing.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	options.ResourceVersion, options.ResourceVersionMatch = "", ""
	list, err := l.request(options).Timeout(pageTimeout).Do(ctx).Get()
	if err != nil {
		return nil, err
	}
	return list, l.checkList(list, l.revision)
}

// wait returns when the last list has ended, for the Reflector does not wait for it. ctx has ended, so that a list
// which begins later returns at once.
func (l *listWatch) wait() {
	l.listing.Lock()
	defer l.listing.Unlock()
}

// stop stops the last watch. The Reflector does not, if Replace has failed after a streamed list.
func (l *listWatch) stop() {
	if l.last != nil {
		l.last.Stop()
		l.last = nil
	}
}

// watch begins a watch. While no API server answers it tries again. The Reflector would list everything instead, and
// then nobody knows what was missed; or it would keep waiting after ctx has ended.
func (l *listWatch) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	for backoff := watchBackoff; ; {
		w, err := l.beginWatch(ctx, options)
		if err == nil {
			l.stop()
			l.last = w
			l.failures.Succeeded(ctx, "The resource can be read again")
			// A streamed list is read when it has ended.
			if !ptr.Deref(options.SendInitialEvents, false) {
				l.tried(nil)
			}
			return w, nil
		}
		// An API server may know an earlier state only, perhaps because somebody restored etcd from a backup. No watch can
		// continue there, so the Reflector has to list.
		earlier := errors.Is(err, storageversion.ErrEarlier) ||
			apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge)
		if ctx.Err() != nil || !retry.IsUnanswered(err) || earlier {
			return nil, err
		}
		l.failed(ctx, err)
		if !retry.Sleep(ctx, l.clock, backoff.Step()) {
			return nil, ctx.Err()
		}
	}
}

func (l *listWatch) beginWatch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if err := l.checkRevision(ctx, revisionOf(options.ResourceVersion)); err != nil {
		return nil, err
	}
	options.Watch = true
	request := l.request(options)
	if options.TimeoutSeconds != nil {
		request.Timeout(time.Duration(*options.TimeoutSeconds) * time.Second)
	}
	return request.Watch(ctx)
}

// checkRevision makes sure that etcd still has the revision that was seen before. A watch that begins at a later
// revision than etcd has is accepted, and shows nothing until etcd gets there.
func (l *listWatch) checkRevision(ctx context.Context, seen int64) error {
	if l.restored == nil || seen == 0 {
		return nil
	}
	list, err := l.request(metav1.ListOptions{Limit: 1}).Timeout(pageTimeout).MaxRetries(0).Do(ctx).Get()
	if err != nil {
		return err
	}
	return l.checkList(list, seen)
}

func (l *listWatch) checkList(list runtime.Object, seen int64) error {
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	return l.checkRestored(revisionOf(accessor.GetResourceVersion()), seen)
}

// checkRestored returns ErrEarlier if a list that was read now is of an earlier revision than one that was seen, and
// ErrRestored after all lists of restoredAfter were.
func (w *watchedList) checkRestored(now, seen int64) error {
	if w.restored == nil || now == 0 {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if now >= seen {
		w.earlierLast = time.Time{}
		return nil
	}
	if w.clock.Since(w.earlierLast) > restoredGap {
		w.earlierSince = w.clock.Now()
	}
	w.earlierLast = w.clock.Now()
	kind := storageversion.ErrEarlier
	if w.earlierLast.Sub(w.earlierSince) >= restoredAfter {
		kind = storageversion.ErrRestored
	}
	err := fmt.Errorf("a list of %s has revision %d, and %d was seen before: %w", w.resource(), now, seen, kind)
	w.restored(err, w.revisionSeen)
	return err
}

func (l *listWatch) failed(ctx context.Context, err error) {
	l.tried(err)
	kind := cmp.Or(string(apierrors.ReasonForError(err)), "unknown")
	switch {
	case retry.IsUnanswered(err):
		kind = "unanswered"
	case apierrors.IsNotFound(err):
		// This is no error: the API may be switched off. So it is not logged each hour.
		if !l.unserved {
			l.failures.Failed(ctx, kind, "Waiting for a resource that the API server does not serve")
		}
		l.unserved = true
		return
	}
	l.failures.Failed(ctx, kind, "Cannot read a resource; what is known about it may be out of date", "err", err)
}

// store turns what a Reflector does to it into deltas. It stores names only. A Reflector promises to give it objects of
// type T.
type store[T watchable] struct {
	list  *watchedList
	apply func(delta[T])
}

var _ cache.ReflectorBookmarkStore = &store[*metav1.PartialObjectMetadata]{}

// Replace is called after each list: at the beginning, and whenever a watch could not continue where it broke.
func (s *store[T]) Replace(objects []any, resourceVersion string) error {
	d, first := delta[T]{listed: true, revision: revisionOf(resourceVersion)}, s.list.names == nil
	if err := s.list.checkRestored(d.revision, s.list.revision); err != nil {
		return err
	}
	names := sets.Set[string]{}
	for _, item := range objects {
		typed := item.(T)
		d.set = append(d.set, typed)
		names.Insert(typed.GetObjectMeta().GetName())
	}
	d.gone = sets.List(s.list.names.Difference(names))
	s.list.names, s.list.listedAgain = names, true
	s.emit(d)
	if first {
		close(s.list.listed)
	}
	return nil
}

// Add is called when a watch reports a new object.
func (s *store[T]) Add(item any) error { return s.Update(item) }

// Update is called when a watch reports a change.
func (s *store[T]) Update(item any) error {
	meta := item.(T).GetObjectMeta()
	s.list.names.Insert(meta.GetName())
	s.emit(delta[T]{set: []T{item.(T)}, revision: revisionOf(meta.GetResourceVersion())})
	return nil
}

// Delete is called when a watch reports a deletion.
func (s *store[T]) Delete(item any) error {
	meta := item.(T).GetObjectMeta()
	s.list.names.Delete(meta.GetName())
	s.emit(delta[T]{gone: []string{meta.GetName()}, revision: revisionOf(meta.GetResourceVersion())})
	return nil
}

// Bookmark is called when the API server says that a watch has sent everything up to now.
func (s *store[T]) Bookmark(resourceVersion string) error {
	s.emit(delta[T]{revision: revisionOf(resourceVersion)})
	return nil
}

func (s *store[T]) emit(d delta[T]) {
	if d.revision > s.list.revision {
		s.list.revision = d.revision
		s.list.mu.Lock()
		s.list.revisionSeen, s.list.earlierLast = s.list.clock.Now(), time.Time{}
		s.list.mu.Unlock()
	}
	s.apply(d)
}

// Resync has no meaning, because no objects are stored.
func (s *store[T]) Resync() error { return nil }
