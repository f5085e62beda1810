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

package storageversiongc

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// history is a second, dumber way to know what may go: the readings of each Lease, one after the other.
type history struct {
	readings map[string][]reading
}

// presence says whether a Lease exists. The zero value, unknown, is for a Lease that was not read.
type presence int

const (
	unknown presence = iota
	absent
	present
)

type reading struct {
	presence   presence
	began, now time.Time
}

// provenGone wants the last readings to say absent, close to each other, for at least the grace.
func (h *history) provenGone(serverID string) bool {
	rs := h.readings[serverID]
	last := len(rs) - 1
	for i := last; i >= 0 && rs[i].presence == absent; i-- {
		if i < last && rs[i+1].began.Sub(rs[i].now) > maxGap {
			return false
		}
		if rs[last].began.Sub(rs[i].now) >= grace {
			return true
		}
	}
	return false
}

// TestNoLivingServerLosesItsEntry walks random clusters through random time. Leases come and go, are out of reach,
// syncs are late, objects change, and after each step what is decided is held against the history.
func TestNoLivingServerLosesItsEntry(t *testing.T) {
	const walks, steps = 400, 60
	removals := 0
	for walk := range walks {
		seed := rand.Uint64()
		t.Run(fmt.Sprintf("walk %d", walk), func(t *testing.T) {
			removals += randomWalk(t, seed, steps)
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
		})
	}
	if removals == 0 {
		t.Errorf("nothing was ever removed in %d walks: they prove nothing", walks)
	}
}

func randomWalk(t *testing.T, seed uint64, steps int) (removals int) {
	rng := rand.New(rand.NewPCG(seed, seed))
	servers := []string{"a", "b", "c", "d"}
	lives := map[string]presence{}
	for _, id := range servers {
		lives[id] = absent
	}
	h := history{readings: map[string][]reading{}}
	var remembered memory
	now := epoch
	for range steps {
		now = now.Add(time.Duration(rng.Int64N(int64(4 * time.Second))))
		obs := observation{
			storageVersions: randomObjects(rng, now, servers),
			absent:          sets.New[string](),
			began:           now,
			now:             now.Add(time.Duration(rng.Int64N(int64(readTimeout)))),
			remembered:      remembered,
		}
		now = obs.now
		for _, id := range servers {
			if rng.IntN(20) == 0 {
				lives[id] = presence(rng.IntN(3))
			} else if lives[id] == unknown {
				lives[id] = absent
			}
		}
		complete := true
		mentioned := serverIDs(obs.storageVersions...)
		for _, id := range servers {
			seen := lives[id]
			switch {
			case !slices.Contains(mentioned, id):
				seen = unknown // A Lease nobody asked for is not read, which ends the row of its readings.
			case seen == unknown:
				complete = false
			case seen == absent:
				obs.absent.Insert(id)
			}
			h.readings[id] = append(h.readings[id], reading{presence: seen, began: obs.began, now: obs.now})
		}
		if remembered = (memory{}); !complete {
			continue // The sync ends with an error.
		}
		d := decide(obs)
		remembered = d.memory
		for _, e := range d.effects {
			removals += checkEffect(t, obs, h, e)
		}
	}
	return removals
}

func checkEffect(t *testing.T, obs observation, h history, e effect) (removed int) {
	t.Helper()
	entries := e.object.Status.StorageVersions
	for _, id := range e.serverIDs {
		if !h.provenGone(id) {
			t.Errorf("%s of %s for server %s, readings of its lease are %v", e.action, e.object.Name, id, h.readings[id])
		}
	}
	switch e.action {
	case removeEntries, deleteObject:
		if len(entries) > 0 && !marked(e.object) {
			t.Errorf("%s of %s without a marker", e.action, e.object.Name)
		}
	}
	kept := withoutServers(entries, e.serverIDs)
	switch {
	case len(entries) == 0 && obs.now.Sub(e.object.CreationTimestamp.Time) < grace:
		t.Errorf("%s is deleted, although a server may be about to fill it", e.object.Name)
	case e.action == deleteObject && len(kept) > 0:
		t.Errorf("%s has entries that stay, %v, and is deleted", e.object.Name, kept)
	case e.action == removeEntries && len(kept) == 0:
		t.Errorf("%s would be left without entries", e.object.Name)
	}
	// What stays is the same entries in the same order.
	want := slices.DeleteFunc(slices.Clone(entries), func(entry apiserverinternalv1alpha1.ServerStorageVersion) bool {
		return strings.Contains(strings.Join(e.serverIDs, " "), entry.APIServerID)
	})
	if diff := cmp.Diff(len(want), len(kept)); diff != "" || (len(want) > 0 && !cmp.Equal(want, kept)) {
		t.Errorf("entries of %s that stay (-want +got):\n%s", e.object.Name, cmp.Diff(want, kept))
	}
	return len(e.serverIDs)
}

func randomObjects(rng *rand.Rand, now time.Time, servers []string) []*apiserverinternalv1alpha1.StorageVersion {
	var all []*apiserverinternalv1alpha1.StorageVersion
	for i := range 1 + rng.IntN(4) {
		var entries []apiserverinternalv1alpha1.ServerStorageVersion
		for _, j := range rng.Perm(len(servers)) {
			// Nearly always there, so that rows of readings become long enough.
			if rng.IntN(10) > 0 {
				entries = append(entries, entry(servers[j], []string{"v1", "v1beta1"}[rng.IntN(2)]))
			}
		}
		object := published(fmt.Sprintf("apps.r%d", i), entries...)
		object.CreationTimestamp = metav1.NewTime(now.Add(-time.Duration(rng.Int64N(int64(2 * grace)))))
		if rng.IntN(2) == 0 {
			object = withMarker(object)
		}
		all = append(all, object)
	}
	return all
}
