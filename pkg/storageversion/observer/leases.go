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
	"maps"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	// identityLabel is on the Leases of all servers that are built from k8s.io/apiserver. Its value is kubeAPIServer on
	// the Leases of those that write built-in resources.
	identityLabel = "apiserver.kubernetes.io/identity"
	kubeAPIServer = "kube-apiserver"
)

// leaseWatcher tells the Ledger which server processes live.
type leaseWatcher struct {
	*facts
	source         *source
	serversChanged signal
	aggregated     *aggregatedReader

	// Only the goroutine of the watch uses these.
	leases   serverLeases
	reported bool
	others   map[string]string // the holders of the Leases of other servers, by name

	living []storageversion.Server // guarded by facts.mu
}

func (w *leaseWatcher) run(ctx context.Context) {
	follow(ctx, w.clock, w.source, func(n news[*coordinationv1.Lease]) {
		before := w.leases.remember(w.clock.Now())
		w.leases.hear(n, w.clock.Now())
		if n.listed {
			earlier, unbroken := w.lookBack(ctx, n.first, before)
			w.report(ctx, earlier, unbroken)
			return
		}
		w.report(ctx, nil, true)
	}, nil)
}

// lookBack asks etcd who held the Leases before a list: before the first one, or since the watch broke. unbroken says
// that no process is missing since then.
func (w *leaseWatcher) lookBack(
	ctx context.Context, first bool, before leasesAt,
) (earlier [][]storageversion.Server, unbroken bool) {
	living, _ := w.leases.living()
	h := &history{client: w.source.client}
	if first {
		return h.beforeList(ctx, living, w.leases.byName, w.clock.Now()), true
	}
	reported := w.processes()
	earlier, err := h.betweenLists(ctx, reported, before, w.leases.leasesAt)
	klog.FromContext(ctx).V(4).Info("Asked etcd who held identity Leases while the watch was broken",
		"requests", h.requests, "earlier", earlier, "err", err)
	// If nothing has changed, a server with an unknown identity may still have come and gone.
	return earlier, err == nil && (len(earlier) > 0 || !slices.Equal(reported, living))
}

// report tells the Ledger which processes lived one after the other, and which live now. unbroken says that it misses
// none of them.
func (w *leaseWatcher) report(ctx context.Context, earlier [][]storageversion.Server, unbroken bool) {
	living, others := w.leases.living()
	if !maps.Equal(others, w.others) {
		w.others = others
		w.aggregated.wake.raise()
	}
	if unbroken && len(earlier) == 0 && w.reported && slices.Equal(w.processes(), living) {
		return // A server renewed its Lease.
	}
	w.reported = true
	klog.FromContext(ctx).V(2).Info("API servers started or stopped", "earlier", earlier, "living", living,
		"unbroken", unbroken)
	w.update(func(now time.Time) storageversion.Changes {
		changes := storageversion.Changes{}
		for _, lived := range earlier {
			maps.Copy(changes, w.ledger.SetServers(now, lived, true))
		}
		w.living = living
		maps.Copy(changes, w.ledger.SetServers(now, living, unbroken))
		return changes
	})
	w.serversChanged.raise()
}

// processes returns the living processes that the Ledger knows.
func (w *leaseWatcher) processes() []storageversion.Server {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.living
}

// leasesAt is all identity Leases at a revision of etcd.
type leasesAt struct {
	byName   map[string]lease
	revision int64
}

// serverLeases is what lists and watches have told about identity Leases.
type serverLeases struct {
	leasesAt
	// lastHeld is when each server held a Lease last.
	lastHeld map[string]time.Time
	// heardUntil is the time up to which the state of Leases is known: the time of the last news, not the time on the
	// clock. An observer that is cut off from the API hears of no renewal, and must not conclude that all servers stopped.
	heardUntil time.Time
}

func newServerLeases() serverLeases {
	return serverLeases{leasesAt: leasesAt{byName: map[string]lease{}}, lastHeld: map[string]time.Time{}}
}

func (l *serverLeases) hear(n news[*coordinationv1.Lease], now time.Time) {
	if n.listed {
		l.leasesAt = leasesAt{byName: map[string]lease{}}
	}
	for _, object := range n.set {
		l.set(object)
	}
	for _, name := range n.gone {
		delete(l.byName, name)
	}
	l.revision = max(l.revision, n.revision)
	if n.upToDate() {
		l.reached(now)
	}
}

func (l *serverLeases) set(object *coordinationv1.Lease) {
	l.byName[object.Name] = leaseFrom(object)
	if renewed := object.Spec.RenewTime; renewed != nil {
		l.reached(renewed.Time)
	}
}

func (l *serverLeases) reached(now time.Time) {
	if now.After(l.heardUntil) {
		l.heardUntil = now
	}
}

// remember returns the Leases that are known, and empty ones of servers that held one not long ago. These servers may
// come and go unseen while the watch is broken.
func (l *serverLeases) remember(now time.Time) leasesAt {
	for name, known := range l.byName {
		if known.server {
			l.lastHeld[name] = now
		}
	}
	all := leasesAt{byName: map[string]lease{}, revision: l.revision}
	for name, last := range l.lastHeld {
		if now.Sub(last) > historyKept {
			delete(l.lastHeld, name)
			continue
		}
		all.byName[name] = lease{server: true}
	}
	maps.Copy(all.byName, l.byName)
	return all
}

// living returns the processes of kube-apiserver in order, and the holders of the Leases of other servers by name.
func (l *serverLeases) living() (servers []storageversion.Server, others map[string]string) {
	others = map[string]string{}
	for name, known := range l.byName {
		switch {
		case !known.expires.IsZero() && known.expires.Before(l.heardUntil):
		case known.server:
			servers = append(servers, storageversion.Server{Identity: name, Incarnation: known.holder})
		default:
			others[name] = known.holder
		}
	}
	slices.SortFunc(servers, func(a, b storageversion.Server) int { return cmp.Compare(a.Identity, b.Identity) })
	return servers, others
}
