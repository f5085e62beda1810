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
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	// historyKept is how long etcd keeps earlier revisions: API servers compact it every five minutes, up to where it was
	// five minutes before.
	historyKept = 10 * time.Minute

	// A restart of the only API server takes some 50 requests of 2 ms; a busy server may need 300 ms for each. If other
	// servers write while a Lease is absent, that time has too many revisions to ask about.
	historyRequests = 200
	historyTimeout  = 15 * time.Second
)

var (
	errTooLong       = errors.New("too much has happened since")
	errForgotten     = errors.New("etcd has forgotten it")
	errContradiction = errors.New("the revisions contradict each other")
)

// lease is an identity Lease of a kube-apiserver. The zero value means that there was none. From Kubernetes 1.35 on
// each process creates its own Lease. keptconnections.go notices when earlier servers restart.
type lease struct {
	uid      types.UID
	holder   string
	address  string // that the server advertises; empty before Kubernetes 1.36
	created  time.Time
	renewed  time.Time
	duration time.Duration // for ever if zero
	// heardAtRenewal is the value of serverLeases.heardFor when the observer last received a renewal.
	heardAtRenewal time.Duration
}

func leaseFrom(object *coordinationv1.Lease) lease {
	l := lease{
		uid:     object.UID,
		holder:  ptr.Deref(object.Spec.HolderIdentity, ""),
		address: object.Annotations[corev1.AnnotationPeerAdvertiseAddress],
		created: object.CreationTimestamp.Time,
		renewed: ptr.Deref(object.Spec.RenewTime, metav1.MicroTime{}).Time,
	}
	l.duration = time.Duration(ptr.Deref(object.Spec.LeaseDurationSeconds, 0)) * time.Second
	return l
}

// young reports whether etcd may remember what was before the Lease, by the clock of this host or by those of the
// servers. Either may have been set.
func (l lease) young(now time.Time) bool {
	return min(now.Sub(l.created), l.renewed.Sub(l.created)) <= historyKept
}

func (l lease) absent() bool { return l.uid == "" }

func (l lease) sameProcess(other lease) bool { return l.uid == other.uid && l.holder == other.holder }

// leasesAt is all identity Leases at a revision of etcd. Without a map it is not known which there were.
type leasesAt struct {
	byName   map[string]lease
	revision int64
}

// history finds out which processes held the identity Leases of some servers.
type history struct {
	at         func(ctx context.Context, revision int64) (leasesAt, error)
	identities sets.Set[string]
	requests   int
}

// earlier returns the sets of processes that lived one after the other since an earlier revision. lived is the set at
// that revision, which is not returned. If the revision is too long ago, it returns the sets that are known, and an
// error. It does not find a server of another identity that came and went.
//
// A process leaves when another one takes its identity, or at the end. When exactly it left makes no difference.
func (h *history) earlier(
	ctx context.Context, lived []storageversion.Process, from, to leasesAt,
) (processes [][]storageversion.Process, err error) {
	ctx, cancel := context.WithTimeout(ctx, historyTimeout)
	defer cancel()
	between, err := h.between(ctx, from, to)
	incarnations := map[string]string{}
	for _, server := range lived {
		incarnations[server.Identity] = server.Incarnation
	}
	for _, then := range append(between, to) {
		before := maps.Clone(incarnations)
		for identity := range h.identities {
			if l := then.byName[identity]; !l.absent() && !l.sameProcess(from.byName[identity]) {
				incarnations[identity] = l.holder
			}
		}
		if !maps.Equal(before, incarnations) {
			processes = append(processes, processesOf(incarnations))
		}
	}
	return processes, err
}

// between returns the Leases at some revisions between older and newer, oldest first. It splits the time in halves
// until no process can have come and left unseen in any of them. While a Lease is absent, nothing tells since when, so
// another Lease may have existed at any revision. If an error ends the search before it reaches older, between returns
// what it has found, and the error.
func (h *history) between(ctx context.Context, older, newer leasesAt) ([]leasesAt, error) {
	known := older.byName != nil
	switch revisions := newer.revision - older.revision; {
	case h.unchanged(older, newer):
		return nil, nil
	case revisions < 0, known && older.revision <= 0:
		return nil, errContradiction
	case revisions <= 1 && !known:
		return nil, errForgotten
	case revisions <= 1:
		return nil, nil
	case h.requests == historyRequests:
		return nil, errTooLong
	}
	h.requests++
	revision := older.revision + (newer.revision-older.revision)/2
	middle, err := h.at(ctx, revision)
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return h.between(ctx, leasesAt{revision: revision}, newer)
	}
	if err != nil {
		return nil, err
	}
	later, err := h.between(ctx, middle, newer)
	if err != nil {
		return later, err
	}
	sooner, err := h.between(ctx, older, middle)
	return slices.Concat(sooner, []leasesAt{middle}, later), err
}

// unchanged says that the same processes held all Leases at two revisions. Then they held them in between as well.
func (h *history) unchanged(older, newer leasesAt) bool {
	for identity := range h.identities {
		if l := newer.byName[identity]; l.absent() || !l.sameProcess(older.byName[identity]) {
			return false
		}
	}
	return true
}

// leasesOfServers asks for the identity Leases of kube-apiserver as they were at a revision, or as they are now if it
// is zero.
func (w *watchedList) leasesOfServers(ctx context.Context, revision int64) (leasesAt, error) {
	var options metav1.ListOptions
	if revision != 0 {
		options.ResourceVersion = strconv.FormatInt(revision, 10)
		options.ResourceVersionMatch = metav1.ResourceVersionMatchExact
	}
	list := &coordinationv1.LeaseList{}
	if err := w.request(options).MaxRetries(0).Do(ctx).Into(list); err != nil {
		return leasesAt{}, fmt.Errorf("listing identity Leases at revision %d: %w", revision, err)
	}
	if revision != 0 && list.ResourceVersion != options.ResourceVersion {
		return leasesAt{}, fmt.Errorf("listing identity Leases at revision %d: the API server answered with revision %q",
			revision, list.ResourceVersion)
	}
	then := leasesAt{byName: map[string]lease{}, revision: revisionOf(list.ResourceVersion)}
	for i := range list.Items {
		then.byName[list.Items[i].Name] = leaseFrom(&list.Items[i])
	}
	return then, nil
}

func processesOf(incarnations map[string]string) []storageversion.Process {
	var processes []storageversion.Process
	for _, identity := range slices.Sorted(maps.Keys(incarnations)) {
		processes = append(processes, storageversion.Process{Identity: identity, Incarnation: incarnations[identity]})
	}
	return processes
}

// revisionOf is zero if the resource version is not a revision of etcd.
func revisionOf(resourceVersion string) int64 {
	revision, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return revision
}
