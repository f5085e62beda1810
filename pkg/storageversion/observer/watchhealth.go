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

// watchHealth tells the Ledger that a watched list cannot be read, when attempts have failed for a poll interval. Until
// then, what was read last counts, as it does between two polls.
type watchHealth struct {
	*sharedLedger
	// report tells the Ledger.
	report func(now time.Time, failing storageversion.Unreadable) storageversion.Changes
	// failingSince is when attempts began to fail, zero if the last one did not. unreadable says that the Ledger knows of
	// it. Guarded by sharedLedger.mu.
	failingSince time.Time
	unreadable   bool
	// lateUntil is the revision of etcd that a watch has to show before it is not late any more. Guarded by
	// sharedLedger.mu.
	lateUntil int64
}

// followWithHealth follows a watched list as follow does, and tells whether it can be read.
func followWithHealth[T watchable](ctx context.Context, h *watchHealth, from *watchedList, apply func(delta[T])) {
	follow(ctx, from, func(d delta[T]) {
		apply(d)
		h.applied(d.revision) // Not earlier: until then, what is known is out of date.
	}, h.tried)
}

func (s *sharedLedger) healthOf(class storageversion.Class) *watchHealth {
	report := func(now time.Time, failing storageversion.Unreadable) storageversion.Changes {
		return s.ledger.SetUnreadable(class, failing)
	}
	return &watchHealth{sharedLedger: s, report: report}
}

// applied records that everything is known up to a revision. A watch that hangs may still show earlier ones: an API
// server whose cache hears nothing of etcd goes on sending bookmarks.
func (h *watchHealth) applied(revision int64) {
	h.update(func(now time.Time) storageversion.Changes {
		if revision < h.lateUntil {
			return nil
		}
		h.lateUntil = 0
		h.failingSince, h.unreadable = time.Time{}, false
		return h.report(now, storageversion.Unreadable{})
	})
}

// tried records an attempt to read the list. Normally the failures end when a watch begins. Once the Ledger knows
// that the list cannot be read, they end only when a change was applied. Until then what was missed has not come,
// and the API server may still answer that it has forgotten it.
func (h *watchHealth) tried(err error) {
	h.update(func(now time.Time) storageversion.Changes {
		switch {
		case err == nil && h.unreadable:
			return nil
		case err == nil:
			h.failingSince = time.Time{}
			return nil
		case h.failingSince.IsZero():
			h.failingSince = now
		}
		h.unreadable = h.unreadable || now.Sub(h.failingSince) >= h.pollInterval
		if !h.unreadable {
			return nil
		}
		if status, is := errors.AsType[*apierrors.StatusError](err); is {
			err = status // without what the Reflector says of Go types
		}
		return h.report(now, storageversion.Unreadable{Failure: err.Error(), Since: h.failingSince})
	})
}

// late records that a watch is open, and has not shown since a time what etcd had at a revision.
func (h *watchHealth) late(since time.Time, revision int64, err error) {
	h.update(func(now time.Time) storageversion.Changes {
		h.failingSince, h.unreadable, h.lateUntil = since, true, revision
		return h.report(now, storageversion.Unreadable{Failure: err.Error(), Since: since})
	})
}
