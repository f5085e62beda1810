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
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// timeline is one Lease by revision, from 1 on: a letter is a process that holds it, a dot is its absence, and a
// capital letter is a revision at which it was written.
type timeline string

func (l timeline) at(revision int64) lease {
	if revision < 1 || l[revision-1] == '.' {
		return lease{}
	}
	c := lease{name: "server", server: true, revision: revision}
	for l[c.revision-1] >= 'a' {
		c.revision--
	}
	c.holder = string(l[c.revision-1])
	c.uid = types.UID(c.holder)
	return c
}

// reader answers as etcd does after a compaction, limit times.
func (l timeline) reader(compacted int64, limit int) stateAt {
	return func(revision int64) (lease, error) {
		if limit--; limit < 0 {
			return lease{}, errTooLong
		}
		if revision < compacted {
			return lease{}, apierrors.NewResourceExpired("compacted")
		}
		if revision < 1 || revision > int64(len(l)) {
			return lease{}, fmt.Errorf("asked about revision %d", revision)
		}
		return l.at(revision), nil
	}
}

// held are the processes that held the Lease after floor, newest first, each with the revision it began at.
func (l timeline) held(floor int64) string {
	all := ""
	for revision := int64(len(l)); revision > floor; revision-- {
		now, before := l.at(revision), l.at(revision-1)
		if !now.absent() && (revision == floor+1 || !now.sameProcess(before)) {
			all += now.holder
		}
	}
	return all
}

func holders(leases []lease) string {
	all := ""
	for _, t := range leases {
		all += t.holder
	}
	return all
}

func TestWalk(t *testing.T) {
	for name, tc := range map[string]struct {
		timeline         timeline
		floor, compacted int64
		requests         int
		enough           string
		want             string
		err              error
	}{
		"a restart of the only server":      {timeline: "AaAaaA.BbB", requests: 10, enough: "A", want: "BA"},
		"one that lived briefly in between": {timeline: "AaA.B.CcCc", requests: 12, enough: "A", want: "CBA"},
		"no request about what is enough":   {timeline: "AaAaAaA", requests: 0, enough: "A", want: "A"},
		"no Lease before":                   {timeline: "....AaA", requests: 10, want: "A"},
		"a Lease that is gone":              {timeline: "AaA..", requests: 10, enough: "A", want: "A"},
		"two that are gone":                 {timeline: "AaA.B..", requests: 10, enough: "A", want: "BA"},
		"nothing at all":                    {timeline: ".....", requests: 10},
		"what was at the floor is no news":  {timeline: "AaA.B", floor: 3, requests: 10, want: "B"},
		"one that holds since the floor":    {timeline: "AaAaAa", floor: 3, requests: 10, want: "A"},
		"compacted during the last": {
			timeline: "A.BbBbB", compacted: 4, requests: 9, enough: "A", want: "B", err: errExpired},
		"compacted before the last": {
			timeline: "A...BbB", compacted: 4, requests: 9, enough: "A", want: "B", err: errExpired},
		"too long an absence":       {timeline: "A........B", requests: 5, enough: "A", want: "B", err: errTooLong},
		"too many processes":        {timeline: "ABCDEFGHIJKL", requests: 99, want: "LKJIHGFE", err: errTooLong},
		"no gap between two Leases": {timeline: "AaABbB", requests: 10, enough: "A", want: "BA"},
	} {
		t.Run(name, func(t *testing.T) {
			last := int64(len(tc.timeline))
			enough := func(s lease) bool { return s.holder == tc.enough }
			got, err := walkBack(tc.timeline.reader(tc.compacted, tc.requests), tc.timeline.at(last), last, tc.floor, enough)
			if diff := cmp.Diff(tc.want, holders(got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if tc.err == errExpired && apierrors.IsResourceExpired(err) {
				return
			}
			if !errors.Is(err, tc.err) {
				t.Errorf("got error %v, want %v", err, tc.err)
			}
		})
	}
}

var errExpired = errors.New("any error that says so")

// TestWalkNeverErrs compares walks through generated histories with what was at every revision.
func TestWalkNeverErrs(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	proven, cut := 0, 0
	for range 20_000 {
		l := generate(random)
		last := int64(len(l))
		floor, compacted := random.Int64N(last+1), random.Int64N(last+1)
		if random.IntN(2) == 0 {
			compacted = 0
		}
		known := l.at(floor)
		enough := func(s lease) bool { return s.sameProcess(known) && !known.absent() }
		got, err := walkBack(l.reader(compacted, random.IntN(60)), l.at(last), last, floor, enough)
		got = slices.DeleteFunc(got, enough)
		want := l.held(floor)
		if !known.absent() {
			want = strings.ReplaceAll(want, known.holder, "")
		}
		switch {
		case err == nil:
			proven++
		case len(got) > len(want):
			t.Fatalf("%q after %d: %q, want no more than %q", l, floor, holders(got), want)
		default:
			cut++
			want = want[:len(got)] // In a row, beginning with the present one.
		}
		if diff := cmp.Diff(want, holders(got)); diff != "" {
			t.Fatalf("%q after %d, compacted %d, %v: -want +got:\n%s", l, floor, compacted, err, diff)
		}
		for _, claimed := range got {
			if !l.at(claimed.revision).sameProcess(claimed) && claimed.revision > floor {
				t.Fatalf("%q after %d: %q does not hold at %d", l, floor, claimed.holder, claimed.revision)
			}
		}
	}
	if proven < 1000 || cut < 1000 {
		t.Errorf("%d proven, %d cut short: the histories are of one kind", proven, cut)
	}
}

func generate(random *rand.Rand) timeline {
	var l []byte
	next := byte('A')
	for phases := 1 + random.IntN(6); phases > 0; phases-- {
		if random.IntN(3) > 0 {
			l = append(l, next)
			for renewals := random.IntN(25); renewals > 0; renewals-- {
				l = append(l, [2]byte{next, next + 'a' - 'A'}[random.IntN(2)])
			}
			next++
		}
		l = append(l, slices.Repeat([]byte{'.'}, random.IntN(4))...)
	}
	return timeline(append(l, '.'))[:max(1, len(l)-random.IntN(2))]
}

// TestWalkSkipsRenewals: ten minutes of a busy cluster take few requests.
func TestWalkSkipsRenewals(t *testing.T) {
	const created, last, renewal = 1_000, 600_000, 1_000
	requests := 0
	at := func(revision int64) (lease, error) {
		requests++
		switch {
		case revision < created-1:
			return lease{holder: "A", uid: "A", revision: 1}, nil
		case revision < created:
			return lease{}, nil
		}
		return lease{holder: "B", uid: "B", revision: revision - revision%renewal}, nil
	}
	now := lease{holder: "B", uid: "B", revision: last}
	got, err := walkBack(at, now, last, 0, func(s lease) bool { return s.holder == "A" })
	if diff := cmp.Diff("BA", holders(got)); diff != "" || err != nil {
		t.Errorf("%v: -want +got:\n%s", err, diff)
	}
	if got[0].revision != created || requests > 45 {
		t.Errorf("since %d, with %d requests", got[0].revision, requests)
	}
}

func TestWalkDoesNotBelieveContradictions(t *testing.T) {
	now := lease{holder: "B", uid: "1", revision: 9}
	for name, at := range map[string]stateAt{
		"another process holds the same Lease": func(int64) (lease, error) {
			return lease{holder: "A", uid: "1", revision: 3}, nil
		},
		"what was written later": func(int64) (lease, error) {
			return lease{holder: "B", uid: "1", revision: 9}, nil
		},
		"unchanged since before it was there": func(revision int64) (lease, error) {
			return map[int64]lease{
				8: {holder: "B", uid: "1", revision: 8}, 7: {holder: "B", uid: "1", revision: 5}}[revision], nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := walkBack(at, now, 9, 0, func(s lease) bool { return s.holder == "Y" })
			if err == nil {
				t.Errorf("proven: %q", holders(got))
			}
		})
	}
}

func TestSuccession(t *testing.T) {
	of := func(name, holder string, since int64) lease {
		return lease{name: name, holder: holder, revision: since}
	}
	got := replay(map[string]string{"a": "a0", "b": "b0"}, []lease{of("a", "a2", 9), of("a", "a1", 3), of("b", "b1", 5)})
	set := func(a, b string) []storageversion.Server {
		return []storageversion.Server{{Identity: "a", Incarnation: a}, {Identity: "b", Incarnation: b}}
	}
	want := [][]storageversion.Server{set("a1", "b0"), set("a1", "b1"), set("a2", "b1")}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// serveHistory answers lists of the Lease named server from the timeline, shifted by so many revisions.
func serveHistory(t *testing.T, l timeline, shift int64) *history {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if query.Get("resourceVersionMatch") != "Exact" || query.Get("fieldSelector") != "metadata.name=server" ||
			r.URL.Path != leasesPath {
			t.Errorf("asked for %s", r.URL)
		}
		revision := revisionOf(query.Get("resourceVersion"))
		items := []object{}
		if c := l.at(revision); !c.absent() {
			items = append(items, object{
				"metadata": object{"name": c.name, "uid": c.uid, "resourceVersion": strconv.FormatInt(c.revision, 10)},
				"spec":     object{"holderIdentity": c.holder},
			})
		}
		answerWith(w, http.StatusOK, object{"kind": "LeaseList", "apiVersion": "coordination.k8s.io/v1", "items": items,
			"metadata": object{"resourceVersion": strconv.FormatInt(revision+shift, 10)}})
	}))
	t.Cleanup(s.Close)
	clients, err := newClients(&rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(clients.closeIdleConnections)
	return &history{client: clients.leases.client}
}

func TestBetweenTwoLists(t *testing.T) {
	for name, tc := range map[string]struct {
		timeline timeline
		from     int64
		shift    int64
		want     []string
		fails    bool
	}{
		"another process":                                 {timeline: "AaA.B", from: 3, want: []string{"B"}},
		"the same process":                                {timeline: "AaAaA", from: 3},
		"a server that came and went":                     {timeline: "AaA.B..", from: 4, want: []string{"B"}},
		"a server that is still away":                     {timeline: "AaA....", from: 4},
		"not known up to where the watch came":            {timeline: "AaA.B", from: 0, fails: true},
		"a state from before what was known":              {timeline: "AaA.B", from: 9, fails: true},
		"an API server that does not answer from history": {timeline: "AaA.B", from: 3, shift: 1, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			last := int64(len(tc.timeline))
			was, is := map[string]lease{"server": {server: true}}, map[string]lease{}
			if before := tc.timeline.at(min(tc.from, last-1)); !before.absent() {
				was["server"] = before
			}
			if now := tc.timeline.at(last); !now.absent() {
				is["server"] = now
			}
			h := serveHistory(t, tc.timeline, tc.shift)
			sets, err := h.betweenLists(t.Context(), nil, leasesAt{was, tc.from}, leasesAt{is, last})
			if (err != nil) != tc.fails {
				t.Errorf("got error %v, want one: %t", err, tc.fails)
			}
			var got []string
			for _, set := range sets {
				got = append(got, set[0].Incarnation)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
