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
	// historyKept is how long etcd keeps what was: API servers compact it every five minutes, up to where it was five
	// minutes before.
	historyKept = 10 * time.Minute

	// A restart of the only API server takes some 20 requests of 2 ms. While other servers write, the time in which a Lease
	// was absent has too many revisions.
	historyRequests = 200
	historyTimeout  = 3 * time.Second

	// maxTenures is how many processes before the present one are looked for.
	maxTenures = 8
)

var (
	errTooLong       = errors.New("too much happened since")
	errContradiction = errors.New("the answers contradict each other")
)

// claim is an identity Lease as it was at one revision; the zero value is its absence.
type claim struct {
	name    string
	uid     types.UID
	holder  string
	created time.Time
	// revision is that of the last change.
	revision int64
}

func claimOf(object *coordinationv1.Lease) claim {
	return claim{
		name:     object.Name,
		uid:      object.UID,
		holder:   ptr.Deref(object.Spec.HolderIdentity, ""),
		created:  object.CreationTimestamp.Time,
		revision: revisionOf(object.ResourceVersion),
	}
}

func (c claim) absent() bool { return c.uid == "" }

func (c claim) of(other claim) bool { return c.uid == other.uid && c.holder == other.holder }

// tenure is the life of one Lease object, which is that of one process: every process makes its own.
type tenure struct {
	claim
	// since is the first revision at which it is known to be.
	since int64
}

// past says what a Lease was at a revision.
type past func(revision int64) (claim, error)

// walk returns who held a Lease that was now at revision, newest first, back to the first that is enough, or to the
// revision floor, which is not asked about. Whatever comes with an error is in an unbroken row as well, but does not
// reach back that far.
func walk(at past, now claim, revision, floor int64, enough func(claim) bool) ([]tenure, error) {
	var tenures []tenure
	for current := now; ; {
		if !current.absent() {
			tenures = append(tenures, tenure{claim: current, since: current.revision})
			if enough(current) {
				return tenures, nil
			}
			began, err := beginning(at, current, floor)
			tenures[len(tenures)-1].since = began
			if err == nil && len(tenures) == maxTenures {
				err = errTooLong
			}
			if err != nil {
				return tenures, err
			}
			revision = began
		}
		// Where there is no Lease, nothing tells since when. One may have come and gone between any two revisions.
		if revision--; revision <= floor {
			return tenures, nil
		}
		var err error
		if current, err = at(revision); err != nil {
			return tenures, err
		}
	}
}

// beginning returns the first revision at which the Lease was there, or any up to floor if it was there at floor. From its
// creation on a Lease is there with its uid, so that renewals need not be followed one by one.
func beginning(at past, held claim, floor int64) (int64, error) {
	first, before := held.revision, floor
	absent := int64(0)
	for stride := int64(1); first-before > 1; {
		probe := max(first-stride, before+(first-before)/2)
		earlier, err := at(probe)
		switch {
		case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
			before = probe // Whoever goes on from there finds out.
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

// history asks for identity Leases as they were.
type history struct {
	client   rest.Interface
	requests int
}

func (h *history) of(ctx context.Context, name string) past {
	return func(revision int64) (claim, error) {
		if h.requests == historyRequests {
			return claim{}, errTooLong
		}
		h.requests++
		options := metav1.ListOptions{
			FieldSelector:        fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
			ResourceVersion:      strconv.FormatInt(revision, 10),
			ResourceVersionMatch: metav1.ResourceVersionMatchExact,
		}
		list := &coordinationv1.LeaseList{}
		err := h.client.Get().Namespace(metav1.NamespaceSystem).Resource("leases").
			SpecificallyVersionedParams(&options, metav1.ParameterCodec, metav1.SchemeGroupVersion).MaxRetries(0).Do(ctx).Into(list)
		switch {
		case err != nil:
			return claim{}, fmt.Errorf("listing lease %q at revision %d: %w", name, revision, err)
		case list.ResourceVersion != options.ResourceVersion:
			return claim{}, fmt.Errorf("listing lease %q at revision %d: the answer is of %q", name, revision, list.ResourceVersion)
		case len(list.Items) == 0:
			return claim{}, nil
		}
		found := claimOf(&list.Items[0])
		if len(list.Items) > 1 || list.Items[0].Name != name || found.absent() || found.revision <= 0 || found.revision > revision {
			return claim{}, errContradiction
		}
		return found, nil
	}
}

// before returns the sets of processes that lived one after the other before those that the first list shows, as far as
// etcd remembers, beginning with one that has a process of every identity. A process that was there throughout takes no request.
func (h *history) before(ctx context.Context, living []storageversion.Server, leases map[string]lease, now time.Time) [][]storageversion.Server {
	ctx, cancel := context.WithTimeout(ctx, historyTimeout)
	defer cancel()
	old := func(c claim) bool { return now.Sub(c.created) > historyKept }
	first := map[string]string{}
	var later []tenure
	for _, server := range living {
		present := leases[server.Identity].claim
		tenures, err := walk(h.of(ctx, server.Identity), present, present.revision, 0, old)
		klog.FromContext(ctx).V(4).Info("Looked for earlier processes of an API server", "identity", server.Identity,
			"found", len(tenures)-1, "requests", h.requests, "end", err)
		last := len(tenures) - 1
		first[server.Identity] = tenures[last].holder
		later = append(later, tenures[:last]...)
	}
	if len(later) == 0 {
		return nil
	}
	return append([][]storageversion.Server{serversOf(first)}, succession(first, later)...)
}

// between returns the sets of processes that lived one after the other since the Leases were was, which was at revision
// from, until they are is, at revision to. An error says that not all is known. An identity that is in neither may have
// come and gone.
func (h *history) between(ctx context.Context, living []storageversion.Server, was map[string]lease, from int64, is map[string]lease, to int64) ([][]storageversion.Server, error) {
	ctx, cancel := context.WithTimeout(ctx, historyTimeout)
	defer cancel()
	names := maps.Clone(was)
	maps.Copy(names, is)
	var news []tenure
	for _, name := range slices.Sorted(maps.Keys(names)) {
		before, after := was[name].claim, is[name].claim
		if !was[name].server && !is[name].server || before.of(after) && !after.absent() {
			continue
		}
		if from <= 0 || to < from {
			return nil, errContradiction
		}
		known := func(c claim) bool { return c.of(before) }
		tenures, err := walk(h.of(ctx, name), after, to, from, known)
		if err != nil {
			return nil, err
		}
		news = append(news, slices.DeleteFunc(tenures, func(t tenure) bool { return known(t.claim) })...)
	}
	first := map[string]string{}
	for _, server := range living {
		first[server.Identity] = server.Incarnation
	}
	return succession(first, news), nil
}

// succession replays what happened to the first processes. Processes that left are replaced or, at the end, missing; that
// they left earlier makes no difference.
func succession(first map[string]string, news []tenure) [][]storageversion.Server {
	slices.SortStableFunc(news, func(a, b tenure) int { return cmp.Compare(a.since, b.since) })
	lived := maps.Clone(first)
	var sets [][]storageversion.Server
	for _, t := range news {
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
