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
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// timelines are Leases by revision, from 1 on: a letter is a process that holds one, a dot is its absence. Both Leases
// have as many revisions. The second one may be empty.
type timelines [2]string

func (l timelines) at(revision int64) leasesAt {
	then := leasesAt{byName: map[string]lease{}, revision: revision}
	for i, identity := range []string{"a", "b"} {
		if revision < 1 || l[i] == "" || l[i][revision-1] == '.' {
			continue
		}
		holder := l[i][revision-1 : revision]
		then.byName[identity] = lease{uid: types.UID(holder), holder: holder}
	}
	return then
}

func (l timelines) last() leasesAt { return l.at(int64(len(l[0]))) }

func (l timelines) identities() sets.Set[string] {
	if l[1] == "" {
		return sets.New("a")
	}
	return sets.New("a", "b")
}

// history answers as etcd does after a compaction, so many times.
func (l timelines) history(t *testing.T, compacted int64, requests int) *history {
	return &history{
		at: func(_ context.Context, revision int64) (leasesAt, error) {
			if revision < 1 || revision > int64(len(l[0])) {
				t.Errorf("asked about revision %d of %q", revision, l)
			}
			if revision < compacted {
				return leasesAt{}, apierrors.NewResourceExpired("compacted")
			}
			return l.at(revision), nil
		},
		identities: l.identities(),
		requests:   historyRequests - requests,
	}
}

// lived are the processes that held Leases at a revision.
func (l timelines) lived(revision int64) []storageversion.Process {
	incarnations := map[string]string{}
	for identity, held := range l.at(revision).byName {
		incarnations[identity] = held.holder
	}
	return processesOf(incarnations)
}

// after is what a history has to find after a revision.
func (l timelines) after(floor int64) []string {
	was, incarnations := l.at(floor), map[string]string{}
	for identity, held := range was.byName {
		incarnations[identity] = held.holder
	}
	var all [][]storageversion.Process
	for revision := floor + 1; revision <= int64(len(l[0])); revision++ {
		came := false
		for identity, held := range l.at(revision).byName {
			if !held.sameProcess(was.byName[identity]) && incarnations[identity] != held.holder {
				incarnations[identity], came = held.holder, true
			}
		}
		if came {
			all = append(all, processesOf(incarnations))
		}
	}
	return inWords(all)
}

// inWords has the incarnations of each set.
func inWords(processes [][]storageversion.Process) []string {
	var all []string
	for _, servers := range processes {
		words := ""
		for _, server := range servers {
			words += server.Incarnation
		}
		all = append(all, words)
	}
	return all
}

func TestWhoLivedBetweenTwoLists(t *testing.T) {
	for name, tc := range map[string]struct {
		timelines       timelines
		from, compacted int64
		requests        int
		want            string
		err             error
	}{
		"a restart of the only server": {
			timelines: timelines{"AAAAAA.BBB"},
			from:      1,
			requests:  5,
			want:      "B",
		},
		"one that lived briefly in between": {
			timelines: timelines{"AAA.B.CCC"},
			from:      2,
			requests:  7,
			want:      "B C",
		},
		"no gap between two Leases": {
			timelines: timelines{"AAABBB"},
			from:      1,
			requests:  4,
			want:      "B",
		},
		"no request if nobody came": {
			timelines: timelines{"AAAAAAA"},
			from:      2,
		},
		"no request about the next revision": {
			timelines: timelines{"AAAAAB"},
			from:      5,
			want:      "B",
		},
		"a server that came and went": {
			timelines: timelines{"AAA.B.."},
			from:      4,
			requests:  2,
			want:      "B",
		},
		"a server that left": {
			timelines: timelines{"AAA..."},
			from:      1,
			requests:  4,
		},
		"two servers, one after the other": {
			timelines: timelines{"AAAA.BB", "XX.YYYY"},
			from:      1,
			requests:  5,
			want:      "AY BY",
		},
		"a server restarts beside one that stays": {
			timelines: timelines{"AAAA.BB", "XXXXXXX"},
			from:      1,
			requests:  4,
			want:      "BX",
		},
		"too long an absence": {
			timelines: timelines{"A........B"},
			from:      1,
			requests:  5,
			err:       errTooLong,
		},
		"compacted since the watch broke": {
			timelines: timelines{"AAAA.BBB"},
			from:      1,
			compacted: 6,
			requests:  9,
			err:       errForgotten,
		},
		"not known up to where the watch came": {
			timelines: timelines{"AAA.B"},
			from:      0,
			requests:  9,
			err:       errContradiction,
		},
		"a state from before what the watch has said": {
			timelines: timelines{"AAA.B"},
			from:      9,
			requests:  9,
			err:       errContradiction,
		},
	} {
		t.Run(name, func(t *testing.T) {
			from := min(tc.from, int64(len(tc.timelines[0]))-1)
			was := leasesAt{byName: tc.timelines.at(from).byName, revision: tc.from}
			h := tc.timelines.history(t, tc.compacted, tc.requests)
			got, err := h.earlier(t.Context(), tc.timelines.lived(from), was, tc.timelines.last())
			if !errors.Is(err, tc.err) {
				t.Fatalf("got error %v, want %v", err, tc.err)
			}
			if diff := cmp.Diff(tc.want, strings.Join(inWords(got), " ")); err == nil && diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestWhoLivedBeforeTheFirstList(t *testing.T) {
	for name, tc := range map[string]struct {
		timelines timelines
		compacted int64
		requests  int
		want      string
	}{
		"a restart of the only server":      {timelines: timelines{"AAAAAA.BBB"}, requests: 10, want: "A B"},
		"one that lived briefly in between": {timelines: timelines{"AAA.B.CCC"}, requests: 10, want: "A B C"},
		"one that nobody preceded":          {timelines: timelines{"....AAA"}, requests: 10, want: "A"},
		"one is forgotten":                  {timelines: timelines{"A.BBB.CC"}, compacted: 4, requests: 10, want: "B C"},
		"all others are forgotten":          {timelines: timelines{"A.BBBBBB"}, compacted: 4, requests: 10, want: "B"},
		"too long an absence":               {timelines: timelines{"AA.........B"}, requests: 5, want: "B"},
		"two servers":                       {timelines: timelines{"AAAA.BBB", "X.YYYYYY"}, requests: 10, want: "AX AY BY"},
	} {
		t.Run(name, func(t *testing.T) {
			h := tc.timelines.history(t, tc.compacted, tc.requests)
			got, err := h.earlier(t.Context(), nil, leasesAt{}, tc.timelines.last())
			if err == nil {
				t.Error("no error, although what was before is never known")
			}
			if diff := cmp.Diff(tc.want, strings.Join(inWords(got), " ")); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestHistoryNeverErrs compares what is found in generated histories with what was at every revision.
func TestHistoryNeverErrs(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	proven, cut := 0, 0
	for range 20_000 {
		l := generate(random)
		last := int64(len(l[0]))
		floor, compacted, requests := 1+random.Int64N(last), random.Int64N(last+1), random.IntN(60)
		if random.IntN(2) == 0 {
			compacted = 0
		}
		got, err := l.history(t, compacted, requests).earlier(t.Context(), l.lived(floor), l.at(floor), l.last())
		if err == nil {
			proven++
			if diff := cmp.Diff(l.after(floor), inWords(got)); diff != "" {
				t.Fatalf("%q after %d, compacted %d: -want +got:\n%s", l, floor, compacted, diff)
			}
		}

		got, _ = l.history(t, compacted, requests).earlier(t.Context(), nil, leasesAt{}, l.last())
		found := slices.DeleteFunc(inWords(got), func(s string) bool { return len(s) < len(l.identities()) })
		want := slices.DeleteFunc(l.after(0), func(s string) bool { return len(s) < len(l.identities()) })
		if len(found) < len(want) {
			cut++
		}
		if len(found) > len(want) || !slices.Equal(found, want[len(want)-len(found):]) {
			t.Fatalf("%q, compacted %d, %d requests: %q is not the end of %q", l, compacted, requests, found, want)
		}
	}
	if proven < 1000 || cut < 1000 {
		t.Errorf("%d proven, %d cut short: the histories are of one kind", proven, cut)
	}
}

func generate(random *rand.Rand) timelines {
	one := func(next byte) string {
		line := ""
		for range 1 + random.IntN(6) {
			if random.IntN(3) > 0 {
				line += strings.Repeat(string(next), 1+random.IntN(25))
				next++
			}
			line += strings.Repeat(".", random.IntN(4))
		}
		return line + "."[:random.IntN(2)]
	}
	l := timelines{"." + one('A'), "." + one('M')}
	shorter := min(len(l[0]), len(l[1]))
	l[0] = l[0][:shorter]
	if l[1] = l[1][:shorter]; random.IntN(2) == 0 {
		l[1] = ""
	}
	return l
}

// TestHistoryOfABusyCluster has few requests for ten minutes with many writes.
func TestHistoryOfABusyCluster(t *testing.T) {
	const compacted, created, last = 1_000_000, 1_500_000, 1_600_000
	at := func(_ context.Context, revision int64) (leasesAt, error) {
		held := lease{holder: "B", uid: "B"}
		switch {
		case revision < compacted:
			return leasesAt{}, apierrors.NewResourceExpired("compacted")
		case revision < created-1:
			held = lease{holder: "A", uid: "A"}
		case revision < created:
			held = lease{}
		}
		return leasesAt{byName: map[string]lease{"a": held}, revision: revision}, nil
	}
	h := &history{at: at, identities: sets.New("a")}
	now, err := at(t.Context(), last)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := h.earlier(t.Context(), nil, leasesAt{}, now)
	if diff := cmp.Diff([]string{"A", "B"}, inWords(got)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if h.requests > 70 {
		t.Errorf("%d requests", h.requests)
	}
}

// TestLeasesAtRevisions serves lists of Leases, shifted by so many revisions.
func TestLeasesAtRevisions(t *testing.T) {
	l := timelines{"AAA.B", "XXXXX"}
	for shift := range int64(2) {
		s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			query := r.URL.Query()
			if query.Get("resourceVersionMatch") != "Exact" || query.Get("labelSelector") != IdentityLabel+"="+kubeAPIServer ||
				r.URL.Path != leasesPath {
				t.Errorf("asked for %s", r.URL)
			}
			revision := revisionOf(query.Get("resourceVersion"))
			items := []object{}
			for name, held := range l.at(revision).byName {
				items = append(items, object{
					"metadata": object{"name": name, "uid": held.uid, "labels": object{IdentityLabel: kubeAPIServer}},
					"spec":     object{"holderIdentity": held.holder},
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
		got, err := clients.leases.leasesOfServers(t.Context(), 3)
		if shift > 0 {
			if err == nil {
				t.Errorf("believed an API server that does not answer from history: %v", got)
			}
			continue
		}
		if diff := cmp.Diff(l.at(3), got, cmp.AllowUnexported(leasesAt{}, lease{})); err != nil || diff != "" {
			t.Errorf("%v: -want +got:\n%s", err, diff)
		}
	}
}
