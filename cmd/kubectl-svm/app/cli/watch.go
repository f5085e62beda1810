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

package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// Watched keeps the StorageStates and migrations of a cluster up to date.
type Watched struct {
	states, migrations cache.Store // states is nil if they are not watched.
}

// Watch follows StorageStates and migrations, beginning with what was read, until ctx ends. It returns an error if the
// person may not watch them. It retries later failures.
func (c *Clients) Watch(ctx context.Context, read *Cluster) (*Watched, error) {
	w, err := c.WatchMigrations(ctx, read)
	if err != nil {
		return nil, err
	}
	w.states = cache.NewStore(cache.MetaNamespaceKeyFunc)
	for i := range read.States {
		_ = w.states.Add(&read.States[i]) // The key of an object is its name.
	}
	return w, follow(ctx, "StorageStates", c.Migration.StorageStates(), &migrationv1alpha1.StorageState{}, w.states)
}

// WatchMigrations is Watch without the StorageStates, which remain as they were read.
func (c *Clients) WatchMigrations(ctx context.Context, read *Cluster) (*Watched, error) {
	w := &Watched{migrations: cache.NewStore(cache.MetaNamespaceKeyFunc)}
	for i := range read.Migrations {
		_ = w.migrations.Add(&read.Migrations[i])
	}
	return w, follow(ctx, "StorageVersionMigrations", c.Migration.StorageVersionMigrations(),
		&migrationv1alpha1.StorageVersionMigration{}, w.migrations)
}

// listWatcher is a client of one kind. L is the type of its lists.
type listWatcher[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// follow tries a watch first, because a Reflector would retry a forbidden watch forever.
func follow[L runtime.Object](
	ctx context.Context, what string, client listWatcher[L], object runtime.Object, store cache.Store,
) error {
	tried, err := client.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("watching %s: %w", what, Explain(err))
	}
	tried.Stop()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, o)
		},
		WatchFuncWithContext: client.Watch,
	}
	// The Reflector tries again, and Follow says that the API server cannot be read.
	go cache.NewReflector(lw, object, store, 0).RunWithContext(klog.NewContext(ctx, logr.Discard()))
	return nil
}

const (
	// lookInterval is how often a command looks at what has changed. Migrations save their progress about as often.
	lookInterval = time.Second
	// unreadAfter is for how long the API server may not be read before a command says so. It also bounds each try.
	unreadAfter = 5 * time.Second
	// refusedAfter is for how long the API server may refuse the credentials before a command ends. They may have expired,
	// and nobody may be there to log in. A server that has just started may refuse what it accepts a moment later.
	refusedAfter = time.Minute
)

// Follow looks once a second until look says that nothing is left, ctx ends, or the API server refuses the credentials
// for a minute. It does not look while the API server is lost, because nothing changes that is known. In the end the
// line of Overwrite goes. UnreadSince says of the error whether the API server was lost at the end.
func (o *NamedOptions) Follow(ctx context.Context, look func() (done bool, err error)) error {
	defer o.Overwrite("")
	reached := reach{read: o.Clock.Now()}
	for {
		select {
		case <-ctx.Done():
			return reached.end(o.Clock.Now(), ctx.Err())
		case <-o.Clock.After(lookInterval):
		}
		if err := o.tryReach(ctx, &reached); err != nil {
			return err
		}
		if reached.lost {
			continue
		}
		began := o.Clock.Now()
		if done, err := look(); done || err != nil {
			return err
		}
		reached.read = reached.read.Add(o.Clock.Since(began)) // Nobody has tried to reach it meanwhile.
	}
}

// reach is when the API server was last read, and whether the person was told that it cannot be read.
type reach struct {
	read time.Time
	lost bool
	// refused is since when it has refused the credentials. It is zero if it does not.
	refused time.Time
}

// unread is why Follow ended, while the API server could not be read.
type unread struct {
	error
	since time.Time
}

func (u *unread) Unwrap() error { return u.error }

// end returns the error of a context that has ended.
func (r *reach) end(now time.Time, err error) error {
	if r.lost || now.Sub(r.read) >= unreadAfter {
		return &unread{err, r.read}
	}
	return err
}

// Refused reports whether the API server refuses the credentials, or what is asked.
func Refused(err error) bool { return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err) }

// UnreadSince returns a sentence, with a space before it, if Follow ended while the API server could not be read.
func UnreadSince(err error) string {
	lost, is := errors.AsType[*unread](err)
	if !is {
		return ""
	}
	return " That is of " + lost.since.Format(time.TimeOnly) + ": the API server could not be read since."
}

// tryReach reads something that is in etcd. It says once that the API server cannot be read, after unreadAfter, and
// once that it can again. The watches say nothing: they try again until the API server is back. It returns an error if
// the API server has refused the credentials for long.
func (o *NamedOptions) tryReach(ctx context.Context, r *reach) error {
	reading, cancel := context.WithTimeout(ctx, unreadAfter)
	defer cancel()
	_, err := o.Clients.Migration.StorageVersionMigrations().List(reading, metav1.ListOptions{Limit: 1})
	now := o.Clock.Now()
	switch {
	case !Refused(err):
		r.refused = time.Time{}
	case r.refused.IsZero():
		r.refused = now
	case now.Sub(r.refused) >= refusedAfter:
		return r.end(now, Explain(err))
	}
	switch {
	case err == nil:
		if r.lost {
			o.Notef("%s The API server can be read again.", now.Format(time.TimeOnly))
		}
		*r = reach{read: now}
	case !r.lost && now.Sub(r.read) >= unreadAfter && ctx.Err() == nil:
		r.lost = true
		o.Notef("%s The API server cannot be read since %s, and what is shown is of that time. The command goes on when it "+
			"is back: %v", now.Format(time.TimeOnly), r.read.Format(time.TimeOnly), Explain(err))
	}
	return nil
}

// Update brings a Cluster up to date.
func (w *Watched) Update(cluster *Cluster) {
	if w.states != nil {
		cluster.States = nil
		for _, object := range w.states.List() {
			cluster.States = append(cluster.States, *object.(*migrationv1alpha1.StorageState))
		}
	}
	cluster.Migrations = nil
	for _, object := range w.migrations.List() {
		cluster.Migrations = append(cluster.Migrations, *object.(*migrationv1alpha1.StorageVersionMigration))
	}
	cluster.AddNamed()
}
