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

package svmtrigger

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	judgeInterval = 2 * time.Second
	// usualGrace is twice as long as the documents of a server that came may be missing before the manager doubts a
	// state. On a busy machine the manager may be slower than the judge.
	usualGrace = 60
)

// judge compares all the time what is stored in etcd with what the states say of it.
//
//   - What was read in etcd is in the state, or covered by Unknown, within the grace.
//   - What left the state was not in etcd any more when it left: looked up at the very revision of that write.
//   - What left the state left after a migration that succeeded, of this target, epoch and state, and that began a
//     settle period after the epoch did.
//   - The epoch of a state never goes down.
//
// A state begins with an empty list, which means Unknown, because the API server drops the status at creation.
type judge struct {
	court   court
	cluster *cluster
	judged  []*judgedResource
	// grace is at how many looks in a row the judge may find an encoding in etcd that the state does not cover. It counts
	// looks, not seconds: on a machine on which the controller is slow, the judge is slow too.
	grace int
}

// court hears the judge: a test, or in the judge's own test whoever wants to know.
type court interface {
	Errorf(format string, args ...any)
	Logf(format string, args ...any)
}

// judgedResource is what the judge remembers of a resource.
type judgedResource struct {
	resource
	seen    int64 // the last write of the state that was looked at
	last    *v1alpha1.StorageState
	missing map[string]int  // encodings in etcd that the state does not cover, and at how many looks in a row
	told    map[string]bool // those of them that were complained about
	// compared counts stored objects that were compared with a state, sharp those where the state excluded something.
	compared, sharp int
}

// startJudge judges until the end of the test.
func startJudge(t *testing.T, c *cluster, resources ...resource) {
	t.Helper()
	startJudgeFor(t, t, usualGrace, c, resources...)
}

// startJudgeFor judges with this grace until the end of the test, and tells the court.
func startJudgeFor(t *testing.T, hearing court, grace int, c *cluster, resources ...resource) {
	t.Helper()
	j := &judge{court: hearing, cluster: c, grace: grace}
	for _, r := range resources {
		one := &judgedResource{resource: r, missing: map[string]int{}, told: map[string]bool{}}
		// What parts before this one wrote was judged, and etcd may have forgotten what was stored then.
		for _, write := range c.stateWrites(r.String(), 0) {
			one.seen, one.last = write.revision, write.state
		}
		j.judged = append(j.judged, one)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(judgeInterval)
		defer ticker.Stop()
		for {
			j.look(ctx)
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
		j.look(context.Background())
		j.report()
	})
}

// report fails a test whose judge saw nothing to judge.
func (j *judge) report() {
	for _, r := range j.judged {
		j.court.Logf("judge: %s: %d objects compared, %d of them with a state that excludes something", r, r.compared,
			r.sharp)
		if r.compared == 0 {
			j.court.Errorf("judge: no object of %s was ever compared with a state", r)
		}
	}
}

func (j *judge) violated(format string, args ...any) {
	j.court.Errorf("P1 is broken at %s: %s", time.Now().Format(clockFormat), fmt.Sprintf(format, args...))
}

func (j *judge) look(ctx context.Context) {
	for _, r := range j.judged {
		j.lookAtWrites(ctx, r)
		if err := j.compare(ctx, r); err != nil && ctx.Err() == nil {
			j.court.Errorf("the judge cannot see: %v", err)
		}
	}
}

// lookAtWrites judges every write of the state since the last look.
func (j *judge) lookAtWrites(ctx context.Context, r *judgedResource) {
	for _, write := range j.cluster.stateWrites(r.String(), r.seen) {
		before := r.last
		r.seen, r.last = write.revision, write.state
		if write.state == nil {
			continue
		}
		if before != nil && before.UID == write.state.UID {
			j.lookAtWrite(ctx, r, before, write)
		}
	}
}

func (j *judge) lookAtWrite(ctx context.Context, r *judgedResource, before *v1alpha1.StorageState, write stateWrite) {
	if write.state.Status.Epoch < before.Status.Epoch {
		j.violated("the epoch goes down: from %s to %s", words(before), words(write.state))
	}
	var left []string
	for _, hash := range persisted(before) {
		if !slices.Contains(persisted(write.state), hash) {
			left = append(left, hash)
		}
	}
	if len(left) == 0 || !certain(write.state) {
		return
	}
	if err := j.proven(r, before, write); err != nil {
		j.violated("%v left %s without a proof: %v; before: %s", left, words(write.state), err, words(before))
	}
	objects, err := j.cluster.StoredUnder(ctx, r.prefix, write.revision)
	if err != nil {
		if ctx.Err() == nil {
			j.court.Errorf("the judge cannot see: %v", err)
		}
		return
	}
	for _, o := range objects {
		if hash := hashOfStored(o.Encoding, o.Kind); slices.Contains(left, hash) {
			j.violated("at revision %d %s is stored as %s %s, which leaves %s; before: %s",
				write.revision, o.Key, o.Encoding, hash, words(write.state), words(before))
			return
		}
	}
}

// proven returns nil if a migration justifies the write.
func (j *judge) proven(r *judgedResource, before *v1alpha1.StorageState, write stateWrite) error {
	lives := j.cluster.migrationsOf(r.GroupResource, 0)
	var reasons []string
	for _, life := range lives {
		for _, w := range life.writes {
			if w.revision >= write.revision || !hasCondition(w.migration, v1alpha1.MigrationSucceeded) {
				continue
			}
			reason := proves(w.migration, before)
			if reason == "" {
				return nil
			}
			reasons = append(reasons, w.migration.Name+": "+reason)
		}
	}
	return fmt.Errorf("none of %d migrations proves it: %v", len(lives), reasons)
}

// proves tells why a success does not justify that the state's current encoding alone remains; nothing if it does.
func proves(m *v1alpha1.StorageVersionMigration, state *v1alpha1.StorageState) string {
	target := m.Status.Target
	switch {
	case target == nil:
		return "it has no target"
	case target.StorageVersionHash != state.Status.CurrentStorageVersionHash:
		return "its target is " + target.StorageVersionHash
	case target.StorageStateUID != state.UID:
		return "it is of another state"
	case target.Epoch == nil || *target.Epoch != state.Status.Epoch:
		return "it is of another epoch"
	case m.Status.StartTime == nil:
		return "it has no start"
	}
	began := state.Status.EpochStartTime
	if began == nil {
		return "the epoch has no beginning"
	}
	if settled := began.Add(settle); m.Status.StartTime.Time.Before(settled) {
		return fmt.Sprintf("it began at %v, the epoch settled at %v", m.Status.StartTime, settled)
	}
	return ""
}

// compare reads etcd first and the state afterwards: what it read is to be in the state.
func (j *judge) compare(ctx context.Context, r *judgedResource) error {
	objects, err := j.cluster.StoredUnder(ctx, r.prefix, 0)
	if err != nil {
		return err
	}
	state := j.cluster.state(r.String())
	if state == nil {
		clear(r.missing)
		return nil
	}
	stored := map[string]controlplane.StoredObject{}
	for _, o := range objects {
		stored[hashOfStored(o.Encoding, o.Kind)] = o
		r.compared++
		if certain(state) {
			r.sharp++
		}
	}
	for hash := range r.missing {
		if _, still := stored[hash]; !still || covers(state, hash) {
			delete(r.missing, hash)
			delete(r.told, hash)
		}
	}
	for hash, o := range stored {
		if covers(state, hash) {
			continue
		}
		if r.missing[hash]++; r.missing[hash] > j.grace && !r.told[hash] {
			r.told[hash] = true
			j.violated("%s is stored as %s %s, which %d looks in a row found missing in %s",
				o.Key, o.Encoding, hash, r.missing[hash], words(state))
		}
	}
	return nil
}
