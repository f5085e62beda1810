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

package svmigrator

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

var faultSeed = flag.Int64(
	"fault-seed",
	0,
	"the seed of the moments at which the tests break things. 0 stands for the time",
)

// onTheirWay is how many requests of a manager may be on their way.
const onTheirWay = 16

// steadily has a manager rewrite perSecond objects in a second, however busy the machine is with other tests, to which
// it would give way else.
func steadily(perSecond int, args ...string) []string {
	return append(
		[]string{
			"--unpaced-rewrites",
			fmt.Sprintf("--max-concurrent-rewrites=%d", onTheirWay),
			fmt.Sprintf("--max-rewrites-per-second=%d", perSecond),
		},
		args...)
}

// newMoments returns what chooses the moments of faults, and tells how to have the same ones again.
func newMoments(t *testing.T) *rand.Rand {
	t.Helper()
	seed := *faultSeed
	if seed == 0 {
		seed = time.Now().UnixNano()
	}
	t.Logf("the faults come at moments of -fault-seed=%d", seed)
	return rand.New(rand.NewPCG(uint64(seed), 0))
}

// among returns n different numbers of writes from first to last, in order, after each of which something is to happen.
func among(moments *rand.Rand, n, first, last int) []int {
	var chosen []int
	for len(chosen) < n {
		if number := first + moments.IntN(last-first); !slices.Contains(chosen, number) {
			chosen = append(chosen, number)
		}
	}
	slices.Sort(chosen)
	return chosen
}

// scene is a resource in the middle of a change of its storage version: n objects are stored in v1, and v2 is written.
type scene struct {
	*cluster
	custom
	n      int
	judge  *judgement
	writes *writes
}

// stage defines a resource, creates n objects of it, and has the next version stored.
func (c *cluster) stage(t *testing.T, plural, kind string, n int) *scene {
	t.Helper()
	r := newCustom(plural, kind)
	c.define(t, r)
	c.fill(t, r, "object", n)
	c.flip(t, r, "v2")
	return &scene{cluster: c, custom: r, n: n, judge: c.judge(t, r.GroupResource), writes: c.watchWrites(t, r)}
}

// migrate creates the migration, called as the resource.
func (s *scene) migrate(t *testing.T) {
	t.Helper()
	s.cluster.migrate(t, s.Resource, s.WithVersion(""))
}

// succeeded waits for the end, and wants all that a success promises: every object is stored in v2, says what it said,
// was written mostWrites times at most, and is counted once.
func (s *scene) succeeded(
	t *testing.T, within time.Duration, mostWrites int64,
) (*v1alpha1.StorageVersionMigration, controlplane.StoredChanges) {
	t.Helper()
	m := s.ended(t, s.Resource, within)
	mustSucceed(t, m)
	s.judge.stored(t, s.WithVersion("v2").GroupVersion().String())
	changes := s.judge.onlyEncodings(t, mostWrites)
	if len(changes.Encoded) != s.n {
		t.Errorf("%d of %d objects were encoded anew", len(changes.Encoded), s.n)
	}
	if p := m.Status.Progress; p.Processed != int64(s.n) || p.Denied != 0 || p.Gone != 0 {
		t.Errorf("there are %d objects, and %s", s.n, words(m))
	}
	if versions := s.storedVersions(t, s.custom); !sameStrings(versions, "v2") {
		t.Errorf("status.storedVersions is %v", versions)
	}
	return m, changes
}

// patches counts the PATCH requests for objects of the resource that the servers received from the manager since then.
func (s *scene) patches(t *testing.T, since time.Time) int {
	t.Helper()
	counts, err := s.Requests(patchesOfManager(s.GroupResource, since))
	if err != nil {
		t.Fatal(err)
	}
	return counts.Total()
}

// writes are the writes of a resource's objects, seen in etcd as they happen.
type writes struct {
	mu    sync.Mutex
	times []time.Time
}

// watchWrites begins to look. It goes on when etcd was away.
func (c *cluster) watchWrites(t *testing.T, r custom) *writes {
	t.Helper()
	client, prefix := c.Etcd().Client(), "/registry/"+r.Group+"/"+r.Resource+"/"
	now, err := client.Get(t.Context(), prefix)
	if err != nil {
		t.Fatal(err)
	}
	w := &writes{}
	ctx, cancel := context.WithCancel(t.Context())
	changes := client.Watch(
		ctx, prefix, clientv3.WithPrefix(), clientv3.WithFilterDelete(), clientv3.WithRev(now.Header.Revision+1),
	)
	var watching sync.WaitGroup
	watching.Go(func() {
		for answer := range changes {
			if err := answer.Err(); err != nil && ctx.Err() == nil {
				t.Errorf("watching the writes of %s: %v", r.Resource, err)
			}
			w.mu.Lock()
			for range answer.Events {
				w.times = append(w.times, time.Now())
			}
			w.mu.Unlock()
		}
	})
	t.Cleanup(func() {
		cancel()
		watching.Wait()
	})
	return w
}

func (w *writes) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.times)
}

// reach waits until there were so many writes.
func (w *writes) reach(t *testing.T, n int, within time.Duration) {
	t.Helper()
	poll(t, within, func() error {
		if count := w.count(); count < n {
			return fmt.Errorf("only %d objects were written, not %d", count, n)
		}
		return nil
	})
}

// poll is eventually for what is known in this process and soon over.
func poll(t *testing.T, within time.Duration, check func() error) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.Now().Add(within)
	for {
		err := check()
		switch {
		case err == nil:
			return
		case time.Now().After(deadline), t.Context().Err() != nil:
			t.Fatalf("after %v still: %v", within, err)
		}
		<-ticker.C
	}
}

// meanWrites is how often an object was written.
func meanWrites(changes controlplane.StoredChanges) float64 {
	total := int64(0)
	for _, writes := range changes.Writes {
		total += writes
	}
	return float64(total) / float64(len(changes.Writes))
}
