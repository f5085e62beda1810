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
	"k8s.io/apimachinery/pkg/util/sets"
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
	source     *source
	aggregated *aggregatedReader

	// Only the goroutine of the watch uses these.
	leases   serverLeases
	reported bool
	others   map[string]string // the holders of the Leases of other servers, by name
}

func (w *leaseWatcher) run(ctx context.Context) {
	follow(ctx, w.clock, w.source, func(n news[*coordinationv1.Lease]) {
		was := w.leases.leasesAt
		w.leases.hear(n, w.clock.Now())
		if n.listed {
			earlier, unbroken := w.lookBack(ctx, was)
			w.report(ctx, earlier, unbroken)
			return
		}
		w.report(ctx, nil, true)
	}, nil)
}

// lookBack asks etcd which processes lived before a list: since the watch broke or, if there was none, as far back as
// etcd remembers. It asks nothing before the first list if all servers are older than that. unbroken says that no
// process is missing since then. Servers that held a Lease not long ago may have come and gone unseen.
func (w *leaseWatcher) lookBack(
	ctx context.Context, was leasesAt,
) (earlier [][]storageversion.Server, unbroken bool) {
	first, young := was.byName == nil, false
	h := &history{at: w.source.leasesOfServers, identities: sets.KeySet(w.leases.lastHeld)}
	living, _ := w.leases.living()
	for _, server := range living {
		h.identities.Insert(server.Identity)
		young = young || w.clock.Since(w.leases.byName[server.Identity].created) <= historyKept
	}
	if first && !young {
		return nil, true
	}
	earlier, err := h.earlier(ctx, w.living(), was, w.leases.leasesAt)
	klog.FromContext(ctx).V(4).Info("Asked etcd who held identity Leases before", "requests", h.requests,
		"earlier", earlier, "err", err)
	switch {
	case first: // The first set that counts has a process of every identity.
		return slices.DeleteFunc(earlier, func(lived []storageversion.Server) bool { return len(lived) < len(living) }), true
	case err != nil:
		return nil, false
	default:
		return earlier, true
	}
}

// report tells the Ledger which processes lived one after the other, and which live now. unbroken says that it misses
// none of them.
func (w *leaseWatcher) report(ctx context.Context, earlier [][]storageversion.Server, unbroken bool) {
	living, others := w.leases.living()
	if !maps.Equal(others, w.others) {
		w.others = others
		w.aggregated.wake.raise()
	}
	if unbroken && len(earlier) == 0 && w.reported && slices.Equal(w.living(), living) {
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
		maps.Copy(changes, w.ledger.SetServers(now, living, unbroken))
		return changes
	})
	w.serversChanged.raise()
}

// serverLeases is what lists and watches have told about identity Leases.
type serverLeases struct {
	leasesAt
	// lastHeld is when each server held a Lease last, if etcd may remember it.
	lastHeld map[string]time.Time
	// heardUntil is the time up to which the state of Leases is known: the time of the last news, not the time on the
	// clock. An observer that is cut off from the API hears of no renewal, and must not conclude that all servers stopped.
	heardUntil time.Time
}

func (l *serverLeases) hear(n news[*coordinationv1.Lease], now time.Time) {
	l.noteHeld(now)
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

func (l *serverLeases) noteHeld(now time.Time) {
	for name, known := range l.byName {
		if known.server {
			l.lastHeld[name] = now
		}
	}
	maps.DeleteFunc(l.lastHeld, func(_ string, last time.Time) bool { return now.Sub(last) > historyKept })
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
