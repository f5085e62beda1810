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
	"maps"
	"slices"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	// historyKept is how long etcd keeps earlier revisions: API servers compact it every five minutes, up to where it was
	// five minutes before.
	historyKept = 10 * time.Minute

	// A restart of the only API server takes some 20 requests of 2 ms. If other servers write while a Lease is absent,
	// that time has too many revisions to ask about.
	historyRequests = 200
	historyTimeout  = 3 * time.Second

	// maxEarlier bounds how many earlier processes the observer looks for.
	maxEarlier = 8
)

var (
	errTooLong       = errors.New("too much has happened since")
	errContradiction = errors.New("the answers contradict each other")
)

// lease is an identity Lease at one revision. The zero value means that there was none. As long as one Lease object
// lives, it is about one process, because every process creates its own.
type lease struct {
	name    string
	uid     types.UID
	holder  string
	server  bool // of kube-apiserver
	created time.Time
	expires time.Time // never if zero
	// revision is that of the last change.
	revision int64
}

func leaseFrom(object *coordinationv1.Lease) lease {
	l := lease{
		name:     object.Name,
		uid:      object.UID,
		holder:   ptr.Deref(object.Spec.HolderIdentity, ""),
		server:   object.Labels[identityLabel] == kubeAPIServer,
		created:  object.CreationTimestamp.Time,
		revision: revisionOf(object.ResourceVersion),
	}
	if renewed, seconds := object.Spec.RenewTime, object.Spec.LeaseDurationSeconds; renewed != nil && seconds != nil {
		l.expires = renewed.Add(time.Duration(*seconds) * time.Second)
	}
	return l
}

func (l lease) absent() bool { return l.uid == "" }

func (l lease) sameProcess(other lease) bool { return l.uid == other.uid && l.holder == other.holder }

// stateAt returns a Lease as it was at a revision.
type stateAt func(revision int64) (lease, error)

// walkBack returns who held a Lease, newest first, starting with its state now at a revision. It ends at the first
// holder that is enough, or at the revision floor, about which it does not ask. Together with an error it returns an
// unbroken row of holders that does not reach back that far. The revision of each is the first at which it is known to
// have held the Lease.
func walkBack(at stateAt, now lease, revision, floor int64, enough func(lease) bool) ([]lease, error) {
	var held []lease
	for current := now; ; {
		if !current.absent() {
			held = append(held, current)
			if enough(current) {
				return held, nil
			}
			created, err := creation(at, current, floor)
			held[len(held)-1].revision = created
			if err == nil && len(held) == maxEarlier {
				err = errTooLong
			}
			if err != nil {
				return held, err
			}
			revision = created
		}
		// No object tells since when a Lease is absent. Another one may have existed between any two revisions.
		if revision--; revision <= floor {
			return held, nil
		}
		var err error
		if current, err = at(revision); err != nil {
			return held, err
		}
	}
}

// creation returns the first revision at which the Lease existed, or any up to floor if it existed at floor. It need
// not follow renewals one by one: from its creation on a Lease has the same uid.
func creation(at stateAt, held lease, floor int64) (int64, error) {
	first, before := held.revision, floor
	absent := int64(0)
	for stride := int64(1); first-before > 1; {
		probe := max(first-stride, before+(first-before)/2)
		earlier, err := at(probe)
		switch {
		case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
			before = probe // If it matters, the caller gets the same answer at its next step.
		case err != nil:
			return first, err
		case earlier.uid != held.uid:
			before, absent = probe, probe
		case earlier.holder != held.holder, earlier.revision > probe, earlier.revision <= absent:
			return first, errContradiction
		default:
			first, stride = earlier.revision, min(2*stride, first)
		}
	}
	return first, nil
}

// history asks for identity Leases at earlier revisions.
type history struct {
	client   rest.Interface
	requests int
}

func (h *history) of(ctx context.Context, name string) stateAt {
	return func(revision int64) (lease, error) {
		if h.requests == historyRequests {
			return lease{}, errTooLong
		}
		h.requests++
		state, err := h.read(ctx, name, revision)
		if err != nil {
			return lease{}, fmt.Errorf("listing lease %q at revision %d: %w", name, revision, err)
		}
		return state, nil
	}
}

func (h *history) read(ctx context.Context, name string, revision int64) (lease, error) {
	options := metav1.ListOptions{
		FieldSelector:        fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
		ResourceVersion:      strconv.FormatInt(revision, 10),
		ResourceVersionMatch: metav1.ResourceVersionMatchExact,
	}
	list := &coordinationv1.LeaseList{}
	err := h.client.Get().Namespace(metav1.NamespaceSystem).Resource("leases").
		SpecificallyVersionedParams(&options, metav1.ParameterCodec, metav1.SchemeGroupVersion).
		MaxRetries(0).Do(ctx).Into(list)
	switch {
	case err != nil:
		return lease{}, err
	case list.ResourceVersion != options.ResourceVersion:
		return lease{}, fmt.Errorf("the API server answered with revision %q", list.ResourceVersion)
	case len(list.Items) == 0:
		return lease{}, nil
	}
	found := leaseFrom(&list.Items[0])
	if len(list.Items) > 1 || found.name != name || found.absent() || found.revision <= 0 || found.revision > revision {
		return lease{}, errContradiction
	}
	return found, nil
}

// beforeList returns the sets of processes that lived one after the other before those of the first list, as far as
// etcd remembers. It begins with the first set that has a process of every identity. A process that lived throughout
// takes no request.
func (h *history) beforeList(
	ctx context.Context, living []storageversion.Server, leases map[string]lease, now time.Time,
) [][]storageversion.Server {
	ctx, cancel := context.WithTimeout(ctx, historyTimeout)
	defer cancel()
	old := func(s lease) bool { return now.Sub(s.created) > historyKept }
	first := map[string]string{}
	var later []lease
	for _, server := range living {
		present := leases[server.Identity]
		held, err := walkBack(h.of(ctx, server.Identity), present, present.revision, 0, old)
		klog.FromContext(ctx).V(4).Info("Asked etcd for earlier processes of an API server", "identity", server.Identity,
			"found", len(held)-1, "requests", h.requests, "err", err)
		last := len(held) - 1
		first[server.Identity] = held[last].holder
		later = append(later, held[:last]...)
	}
	if len(later) == 0 {
		return nil
	}
	return append([][]storageversion.Server{serversOf(first)}, replay(first, later)...)
}

// betweenLists returns the sets of processes that lived one after the other from was to is, after those that the
// Ledger knows. It returns an error if it cannot know all of them. It does not find a server that came and went if
// its identity is in neither list.
func (h *history) betweenLists(
	ctx context.Context, known []storageversion.Server, was, is leasesAt,
) ([][]storageversion.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, historyTimeout)
	defer cancel()
	names := maps.Clone(was.byName)
	maps.Copy(names, is.byName)
	var came []lease
	for _, name := range slices.Sorted(maps.Keys(names)) {
		before, after := was.byName[name], is.byName[name]
		if !before.server && !after.server || before.sameProcess(after) && !after.absent() {
			continue
		}
		if was.revision <= 0 || is.revision < was.revision {
			return nil, errContradiction
		}
		old := func(s lease) bool { return s.sameProcess(before) }
		held, err := walkBack(h.of(ctx, name), after, is.revision, was.revision, old)
		if err != nil {
			return nil, err
		}
		came = append(came, slices.DeleteFunc(held, old)...)
	}
	first := map[string]string{}
	for _, server := range known {
		first[server.Identity] = server.Incarnation
	}
	return replay(first, came), nil
}

// replay returns the set of processes after each of them came. A process leaves when another one takes its identity,
// or at the end. When exactly it left makes no difference.
func replay(first map[string]string, came []lease) [][]storageversion.Server {
	slices.SortStableFunc(came, func(a, b lease) int { return cmp.Compare(a.revision, b.revision) })
	lived := maps.Clone(first)
	var sets [][]storageversion.Server
	for _, t := range came {
		lived[t.name] = t.holder
		sets = append(sets, serversOf(lived))
	}
	return sets
}

func serversOf(incarnations map[string]string) []storageversion.Server {
	var servers []storageversion.Server
	for _, identity := range slices.Sorted(maps.Keys(incarnations)) {
		servers = append(servers, storageversion.Server{Identity: identity, Incarnation: incarnations[identity]})
	}
	return servers
}

// revisionOf is zero if the resource version is not a revision of etcd.
func revisionOf(resourceVersion string) int64 {
	revision, err := strconv.ParseInt(resourceVersion, 10, 64)
	if err != nil {
		return 0
	}
	return revision
}
