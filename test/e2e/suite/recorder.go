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

package suite

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/onsi/ginkgo/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	watchtools "k8s.io/client-go/tools/watch"
)

// Recorder watches the objects of a resource, and counts writes that change nothing and writes that change something.
// API servers announce each write that was stored, so nothing escapes it.
type Recorder struct {
	c *Case
	r Resource

	// written is how often etcd says that each object was written when the recorder began; nil without access to etcd.
	written map[string]int64

	mu   sync.Mutex
	seen map[types.UID]*history
	err  error
}

// history is what happened to one object.
type history struct {
	name            string
	resourceVersion string
	content         string
	rewrites        int
	changes         []string
	deleted         bool
}

// isProbe tells whether the object is that of the suite itself, which follows a definition.
func (h *history) isProbe() bool { return strings.HasSuffix(h.name, "/"+probe) }

// Record begins to watch the objects of a resource.
func (c *Case) Record(ctx context.Context, r Resource) *Recorder {
	ginkgo.GinkgoHelper()
	// A server refuses a watch from before its watch cache began, which is when somebody first watches the resource.
	c.Everywhere(ctx, func(ctx context.Context, config *rest.Config) error {
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			return err
		}
		watcher, err := client.Resource(r.At()).Watch(ctx, metav1.ListOptions{})
		if err == nil {
			watcher.Stop()
		}
		return err
	})
	list, err := c.listAll(ctx, r)
	c.Must(err)
	recorder := &Recorder{c: c, r: r, seen: map[types.UID]*history{}}
	recorder.written, err = c.writes(ctx, r)
	c.Must(err)
	for i := range list.Items {
		recorder.note(watch.Added, &list.Items[i])
	}
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		if err := recorder.run(ctx, list.GetResourceVersion()); err != nil {
			recorder.mu.Lock()
			recorder.err = err
			recorder.mu.Unlock()
		}
	})
	ginkgo.DeferCleanup(func() {
		cancel()
		running.Wait()
	})
	return recorder
}

// run watches until its context ends. A server whose watch cache is younger than what was seen last refuses to go on
// there; a change of a definition makes it begin anew. Then it lists again.
func (r *Recorder) run(ctx context.Context, from string) error {
	for {
		// It goes on where it was when a connection ends.
		watcher, err := watchtools.NewRetryWatcherWithContext(ctx, from, source{r.c.own(r.r)})
		if err != nil {
			return fmt.Errorf("watching %s: %w", r.r, err)
		}
		for event := range watcher.ResultChan() {
			switch object := event.Object.(type) {
			case *unstructured.Unstructured:
				r.note(event.Type, object)
			default:
				err = apierrors.FromObject(object)
			}
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err):
			return fmt.Errorf("watching %s: %w", r.r, err)
		}
		if from, err = r.relist(ctx); err != nil {
			return err
		}
	}
}

// relist notes what happened between two watches. Several writes of one object look like one; etcd knows better.
func (r *Recorder) relist(ctx context.Context) (from string, err error) {
	list, err := r.c.listAll(ctx, r.r)
	if err != nil {
		return "", err
	}
	present := map[types.UID]bool{}
	for i := range list.Items {
		object := &list.Items[i]
		present[object.GetUID()] = true
		if r.versionOf(object.GetUID()) != object.GetResourceVersion() {
			r.note(watch.Modified, object)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid, known := range r.seen {
		known.deleted = known.deleted || !present[uid]
	}
	return list.GetResourceVersion(), nil
}

func (r *Recorder) versionOf(uid types.UID) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if known := r.seen[uid]; known != nil {
		return known.resourceVersion
	}
	return ""
}

func (r *Recorder) note(event watch.EventType, object *unstructured.Unstructured) {
	content := contentOf(object)
	r.mu.Lock()
	defer r.mu.Unlock()
	known := r.seen[object.GetUID()]
	if known == nil {
		if event == watch.Modified {
			event = watch.Added
		}
		known = &history{name: nameOfObject(object), content: content}
		r.seen[object.GetUID()] = known
	}
	known.resourceVersion = object.GetResourceVersion()
	switch {
	case event == watch.Deleted:
		known.deleted = true
	case event == watch.Modified && content == known.content:
		known.rewrites++
	case event == watch.Modified:
		known.changes = append(known.changes, difference(known.content, content))
		known.content = content
	}
}

func nameOfObject(object *unstructured.Unstructured) string {
	return object.GetNamespace() + "/" + object.GetName()
}

// contentOf is all that an object says but its resourceVersion.
func contentOf(object *unstructured.Unstructured) string {
	plain := object.DeepCopy()
	plain.SetResourceVersion("")
	text, err := json.Marshal(plain.Object)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// difference shows where two texts begin to differ.
func difference(was, is string) string {
	const around = 40
	at := 0
	for at < min(len(was), len(is)) && was[at] == is[at] {
		at++
	}
	from := max(0, at-around)
	return fmt.Sprintf("from …%s… to …%s…", was[from:min(len(was), at+around)], is[from:min(len(is), at+around)])
}

// catchUp waits until the recorder has seen the present state of all objects.
func (r *Recorder) catchUp(ctx context.Context) {
	ginkgo.GinkgoHelper()
	list, err := r.c.listAll(ctx, r.r)
	r.c.Must(err)
	present := map[types.UID]*unstructured.Unstructured{}
	for i := range list.Items {
		if object := &list.Items[i]; object.GetName() != probe {
			present[object.GetUID()] = object
		}
	}
	r.c.Eventually(ctx, func(context.Context) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.err != nil {
			return Stop(r.err)
		}
		for uid, object := range present {
			version := object.GetResourceVersion()
			if known := r.seen[uid]; known == nil || known.resourceVersion != version {
				return fmt.Errorf("the watch has not told of resourceVersion %s of %s", version, nameOfObject(object))
			}
		}
		for uid, known := range r.seen {
			if _, exists := present[uid]; !exists && !known.deleted && !known.isProbe() {
				return fmt.Errorf("the watch has not told that %s was deleted", known.name)
			}
		}
		return nil
	})
}

// askEtcd counts rewrites by what etcd says about each object, which no broken watch hides.
func (r *Recorder) askEtcd(ctx context.Context) {
	ginkgo.GinkgoHelper()
	written, err := r.c.writes(ctx, r.r)
	r.c.Must(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, known := range r.seen {
		name := strings.TrimPrefix(known.name, "/")
		if before, existed := r.written[name]; existed && !known.deleted {
			known.rewrites = int(written[name]-before) - len(known.changes)
		}
	}
}

// Unchanged wants no object to have been changed or deleted since the recorder began, and no object to have
// been rewritten more than once. Objects that the suite itself created meanwhile to follow a definition do not count.
func (r *Recorder) Unchanged(ctx context.Context) {
	ginkgo.GinkgoHelper()
	r.catchUp(ctx)
	r.askEtcd(ctx)
	r.none(func(known history) string {
		switch {
		case known.deleted:
			return "was deleted"
		case len(known.changes) > 0:
			return "was changed " + known.changes[0]
		case known.rewrites > 1:
			return fmt.Sprintf("was rewritten %d times", known.rewrites)
		}
		return ""
	})
}

// RewrittenOnce wants each object to have been rewritten exactly once and not changed.
func (r *Recorder) RewrittenOnce(ctx context.Context) {
	ginkgo.GinkgoHelper()
	r.Unchanged(ctx)
	r.none(func(known history) string {
		if known.rewrites != 1 {
			return fmt.Sprintf("was rewritten %d times, want once", known.rewrites)
		}
		return ""
	})
}

// NotWritten wants no object to have been written at all.
func (r *Recorder) NotWritten(ctx context.Context) {
	ginkgo.GinkgoHelper()
	r.Unchanged(ctx)
	r.none(func(known history) string {
		if known.rewrites != 0 {
			return fmt.Sprintf("was written %d times, want not at all", known.rewrites)
		}
		return ""
	})
}

// none fails the spec if something is wrong with an object other than the probe. It names some of these objects.
func (r *Recorder) none(wrong func(known history) string) {
	ginkgo.GinkgoHelper()
	var complaints []string
	total := 0
	for _, known := range r.histories() {
		if known.isProbe() {
			continue
		}
		total++
		if complaint := wrong(known); complaint != "" {
			complaints = append(complaints, known.name+" "+complaint)
		}
	}
	if found := len(complaints); found > 0 {
		slices.Sort(complaints)
		r.c.Fail("%d of %d objects, for example:\n%s",
			found, total, strings.Join(complaints[:min(found, mostNames)], "\n"))
	}
}

// Rewrites is how many objects have been rewritten so far, besides the probe.
func (r *Recorder) Rewrites() int {
	count := 0
	for _, known := range r.histories() {
		if known.rewrites > 0 && !known.isProbe() {
			count++
		}
	}
	return count
}

// WasRewritten tells whether the object of that name in the spec's namespace has been rewritten so far.
func (r *Recorder) WasRewritten(name string) bool {
	return slices.ContainsFunc(r.histories(), func(known history) bool {
		return known.name == r.c.Namespace+"/"+name && known.rewrites > 0
	})
}

func (r *Recorder) histories() []history {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []history
	for known := range maps.Values(r.seen) {
		all = append(all, *known)
	}
	return all
}

// Content is what each object of the resource says now, by its name, without the resourceVersion.
func (c *Case) Content(ctx context.Context, r Resource) map[string]string {
	ginkgo.GinkgoHelper()
	list, err := c.listAll(ctx, r)
	c.Must(err)
	content := map[string]string{}
	for i := range list.Items {
		content[nameOfObject(&list.Items[i])] = contentOf(&list.Items[i])
	}
	return content
}

// source lets a RetryWatcher watch.
type source struct{ client dynamic.ResourceInterface }

func (s source) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return s.client.Watch(ctx, options)
}
