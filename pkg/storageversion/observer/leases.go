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
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/pkg/retry"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	// IdentityLabel is on the identity Leases of API servers. Its value names the program: kubeAPIServer on those of
	// servers that write built-in resources. Aggregated servers that are built from k8s.io/apiserver have no such Lease.
	IdentityLabel = "apiserver.kubernetes.io/identity"
	kubeAPIServer = "kube-apiserver"

	// goneAfter is how long a server that has no address any more must not have renewed its Lease to count as gone.
	// Servers renew their Leases every ten seconds. The Lease of a server that crashed stays for an hour.
	goneAfter = 90 * time.Second

	// maxEventGap bounds how much of the time since the last event counts as time in which a renewal would have arrived.
	maxEventGap = 15 * time.Second
)

// leaseWatcher reports to the Ledger which server processes live.
type leaseWatcher struct {
	*sharedLedger
	list   *watchedList
	health *watchHealth

	// shown is what the watch has shown. leaseLostAt is when it last showed that a process lost its Lease,
	// leaselessAddresses where such servers may still answer. Guarded by sharedLedger.mu.
	shown              leasesAt
	leaseLostAt        time.Time
	leaselessAddresses sets.Set[string]

	// Only the goroutine of the watch uses these.
	leases serverLeases

	// Only the goroutine that polls uses these. lateSince is when a poll found the watch to be late.
	lateSince time.Time
	checks    retry.Streak
}

// errWatchLate says that the watch has not shown who holds the Leases now.
var errWatchLate = errors.New("the watch of identity Leases is late")

func (w *leaseWatcher) run(ctx context.Context) {
	followWithHealth(ctx, w.health, w.list, func(d delta[*coordinationv1.Lease]) {
		was := w.leases.leasesAt
		w.leases.apply(d, w.clock.Now())
		if d.listed {
			earlier, unbroken := w.livedBefore(ctx, was)
			w.report(ctx, append(earlier, w.leases.mayHaveLived(was, w.readyAddresses(), unbroken)...), unbroken)
			return
		}
		w.report(ctx, nil, true)
	})
}

// livedBefore asks etcd which processes lived before a list: since the watch broke or, if there was none, as far back
// as etcd remembers. After the first list it asks nothing if all Leases are older than that. unbroken says that no
// process is missing since then. After the first list it is true, because nothing was known before.
func (w *leaseWatcher) livedBefore(
	ctx context.Context, was leasesAt,
) (earlier [][]storageversion.Process, unbroken bool) {
	first, young := was.byName == nil, false
	h := &history{at: w.list.leasesOfServers, identities: sets.KeySet(w.leases.lastHeld)}
	living, _ := w.leases.processes(w.readyAddresses())
	for _, server := range living {
		h.identities.Insert(server.Identity)
		young = young || w.leases.byName[server.Identity].young(w.clock.Now())
	}
	if first && !young {
		return nil, true
	}
	earlier, err := h.earlier(ctx, w.living(), was, w.leases.leasesAt)
	klog.FromContext(ctx).V(4).Info("Asked etcd who held identity Leases before", "requests", h.requests,
		"earlier", earlier, "err", err)
	switch {
	case first: // Sets with fewer servers are from before all servers of today were there, so leave them out.
		return slices.DeleteFunc(earlier, func(lived []storageversion.Process) bool { return len(lived) < len(living) }), true
	case err != nil:
		return nil, false
	default:
		return earlier, true
	}
}

// report gives the Ledger which processes lived one after the other, and which live now. unbroken says that it misses
// none of them.
func (w *leaseWatcher) report(ctx context.Context, earlier [][]storageversion.Process, unbroken bool) {
	living, gone := w.leases.processes(w.readyAddresses())
	var before []storageversion.Process
	w.update(func(now time.Time) storageversion.Changes {
		before = w.ledger.Living()
		w.shown, w.leaseLostAt = w.leases.leasesAt, w.leases.leaseLostAt
		w.shown.byName = maps.Clone(w.leases.byName) // This goroutine goes on to change it.
		w.leaselessAddresses = sets.New[string]()
		for _, one := range w.leases.leaseless {
			w.leaselessAddresses.Insert(one.address)
		}
		changes := storageversion.Changes{}
		for _, lived := range earlier {
			maps.Copy(changes, w.ledger.SetServers(now, lived, true))
		}
		maps.Copy(changes, w.ledger.SetServers(now, living, unbroken))
		return changes
	})
	if unbroken && len(earlier) == 0 && slices.Equal(before, living) {
		return // A server renewed its Lease.
	}
	logger := klog.FromContext(ctx)
	logger.V(2).Info("The living API servers are known", "earlier", earlier, "living", living,
		"gone", gone, "unbroken", unbroken)
	if started, ended := identitiesOnlyIn(living, before), identitiesOnlyIn(before, living); len(started)+len(ended) > 0 {
		logger.Info("API servers started or ended", "started", started, "ended", ended)
	}
	w.serversChanged.raise()
}

// identitiesOnlyIn returns the identities of the processes that are not among the others.
func identitiesOnlyIn(processes, others []storageversion.Process) (identities []string) {
	for _, process := range processes {
		if !slices.Contains(others, process) {
			identities = append(identities, process.Identity)
		}
	}
	return identities
}

// check compares what the watch has shown with what etcd has now, and returns the revision of that. It also notices
// that etcd was restored, before the watch does.
func (w *leaseWatcher) check(ctx context.Context) (revision int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	w.mu.Lock()
	shown := w.shown.revision // Later the watch may show what came after the list.
	w.mu.Unlock()
	now, err := w.list.leasesOfServers(ctx, 0)
	if err == nil {
		err = w.list.checkRestored(now.revision, shown)
	}
	if err != nil {
		return 0, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	differ := sets.KeySet(w.shown.byName).Union(sets.KeySet(now.byName))
	maps.DeleteFunc(differ, func(name string, _ sets.Empty) bool {
		before, was := w.shown.byName[name]
		one, is := now.byName[name]
		return is == was && one.holder == before.holder
	})
	if len(differ) > 0 {
		return now.revision, fmt.Errorf("%w: it has not shown who holds %s now. If this lasts, restart the API server that "+
			"the manager uses", errWatchLate, strings.Join(sets.List(differ), ", "))
	}
	return now.revision, nil
}

// isUpToDate reports whether the watch has shown what etcd has now. If it has not at two polls in a row, for example
// because it hangs, the Leases count as unreadable.
func (w *leaseWatcher) isUpToDate(ctx context.Context) bool {
	revision, err := w.check(ctx)
	switch {
	case err == nil:
		w.lateSince = time.Time{}
		w.checks.Succeeded(ctx, "The watch of identity Leases is up to date again")
	case !errors.Is(err, errWatchLate): // This list shows nothing.
		w.checks.Failed(ctx, "failed", "Cannot list identity Leases, will retry", "err", err)
	case w.lateSince.IsZero():
		w.lateSince = w.clock.Now()
	default:
		w.checks.Failed(ctx, "late", "The watch of identity Leases does not show changes", "err", err)
		w.health.late(w.lateSince, revision, err)
	}
	return err == nil
}

// checkNoLeaseLost returns an error for goneAfter after a process lost its Lease, or may have. The process may still
// answer: it stops, or somebody deleted its Lease. Where no server advertises an address, or several share one, its
// answer would be taken for that of a server that has a Lease and does not answer.
func (w *leaseWatcher) checkNoLeaseLost() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if until := w.leaseLostAt.Add(goneAfter); w.clock.Now().Before(until) {
		return fmt.Errorf("until %s, an API server whose identity Lease is gone may still answer, and the manager cannot "+
			"tell it from one that lives", until.UTC().Format(time.RFC3339))
	}
	return nil
}

// leaselessMayAnswer reports whether a server that has lost its Lease may answer at one of these addresses: it
// advertised that address, or none, as servers below Kubernetes 1.36.
func (w *leaseWatcher) leaselessMayAnswer(addresses []string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.leaselessAddresses.Has("") || w.leaselessAddresses.HasAny(addresses...)
}
