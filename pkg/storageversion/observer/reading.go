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
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// reading tells the Ledger that a source cannot be read, when attempts have failed for a poll interval. Until
// then, what was read last counts, as it does between two polls.
type reading struct {
	*facts
	// tell tells the Ledger.
	tell func(now time.Time, failing storageversion.Unreadable) storageversion.Changes
	// failingSince is when attempts began to fail, zero if the last one did not. unreadable says that the Ledger knows of
	// it. Guarded by facts.mu.
	failingSince time.Time
	unreadable   bool
	// lateUntil is the revision of etcd that a watch has to show before it is not late any more. Guarded by facts.mu.
	lateUntil int64
}

// followRead follows a source as follow does, and tells whether it can be read.
func followRead[T watchable](ctx context.Context, r *reading, from *source, apply func(delta[T])) {
	follow(ctx, r.clock, from, func(d delta[T]) {
		apply(d)
		r.applied(d.revision) // Not earlier: until then, what is known is out of date.
	}, r.tried)
}

func (f *facts) readingOf(class storageversion.Class) *reading {
	return &reading{facts: f, tell: func(now time.Time, failing storageversion.Unreadable) storageversion.Changes {
		return f.ledger.SetUnreadable(class, failing)
	}}
}

// applied records that everything is known up to a revision. A watch that hangs may still show earlier ones: an API
// server whose cache hears nothing of etcd goes on sending bookmarks.
func (r *reading) applied(revision int64) {
	r.update(func(now time.Time) storageversion.Changes {
		if revision < r.lateUntil {
			return nil
		}
		r.lateUntil = 0
		r.failingSince, r.unreadable = time.Time{}, false
		return r.tell(now, storageversion.Unreadable{})
	})
}

// tried records an attempt to read the source. Normally the failures end when a watch begins. Once the Ledger knows
// that the source cannot be read, they end only when a change was applied. Until then what was missed has not come,
// and the API server may still answer that it has forgotten it.
func (r *reading) tried(err error) {
	r.update(func(now time.Time) storageversion.Changes {
		switch {
		case err == nil && r.unreadable:
			return nil
		case err == nil:
			r.failingSince = time.Time{}
			return nil
		case r.failingSince.IsZero():
			r.failingSince = now
		}
		r.unreadable = r.unreadable || now.Sub(r.failingSince) >= r.pollInterval
		if !r.unreadable {
			return nil
		}
		if status := (*apierrors.StatusError)(nil); errors.As(err, &status) {
			err = status // without what the Reflector says of Go types
		}
		return r.tell(now, storageversion.Unreadable{Failure: err.Error(), Since: r.failingSince})
	})
}

// late records that a watch is open, and has not shown since a time what etcd had at a revision.
func (r *reading) late(since time.Time, revision int64, err error) {
	r.update(func(now time.Time) storageversion.Changes {
		r.failingSince, r.unreadable, r.lateUntil = since, true, revision
		return r.tell(now, storageversion.Unreadable{Failure: err.Error(), Since: since})
	})
}
