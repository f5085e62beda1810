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
	"errors"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-api/client/clientset/versioned/fake"
	"sigs.k8s.io/svm-api/client/informers/externalversions"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

func TestOrder(t *testing.T) {
	stored := func(persisted, versions []string) *migrationv1alpha1.StorageState {
		state := stateAt(3, v2, metav1.ConditionTrue)
		state.Status.PersistedStorageVersionHashes = persisted
		state.Status.Evidence.CustomResourceDefinition.StoredVersions = versions
		return state
	}
	unknown := stored([]string{v2, storageversion.Unknown}, []string{"v2"})
	type waiter struct {
		age     time.Duration
		begun   bool
		byHand  bool
		stuck   bool
		hadTurn bool
		ended   time.Duration // ago: the last run
		state   *migrationv1alpha1.StorageState
		deleted bool
	}
	waiters := map[string]waiter{
		"deleted":                 {deleted: true},
		"begun":                   {age: 1, begun: true, state: unknown},
		"begun before":            {age: 2, begun: true, state: unknown},
		"by hand":                 {age: 3, byHand: true, state: unknown},
		"several stored versions": {age: 2, state: stored([]string{v1, v2}, []string{"v1", "v2"})},
		"new encoding":            {age: 1, state: stored([]string{v1, v2}, []string{"v2"})},
		"old":                     {age: 9, state: unknown},
		"old, without a state":    {age: 8},
		"had a turn":              {age: 12, begun: true, hadTurn: true, ended: 3, state: unknown},
		"had a turn before":       {age: 11, begun: true, hadTurn: true, ended: 4, state: unknown},
		"stuck":                   {age: 10, begun: true, stuck: true, ended: 6, state: unknown},
		"stuck before":            {age: 9, stuck: true, ended: 7, state: stored([]string{v1, v2}, []string{"v1", "v2"})},
	}
	queue := &readyOrder{rank: func(name string) rank {
		w := waiters[name]
		if w.deleted {
			return rank{name: name}
		}
		return rankOf(made(func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Name, m.CreationTimestamp = name, metav1.NewTime(noon.Add(-w.age*time.Minute))
			if !w.byHand {
				m.Spec.Target = boundTo(3)
			}
			if w.begun {
				m.Status.StartTime, m.Status.Target = ptr.To(m.CreationTimestamp), boundTo(3)
			}
		}), w.state, runMemory{stuck: w.stuck, hadTurn: w.hadTurn, notBefore: noon.Add(-w.ended * time.Minute)})
	}}
	for name := range waiters {
		queue.Push(name)
	}
	var order []string
	for queue.Len() > 0 {
		order = append(order, queue.Pop())
	}
	want := []string{
		// Each third is the one that has waited longest.
		"deleted", "begun before", "old",
		"begun", "by hand", "old, without a state",
		"several stored versions", "new encoding", "had a turn before",
		"had a turn", "stuck before", "stuck",
	}
	if !slices.Equal(order, want) {
		t.Errorf("migrations run in the order %q, want %q", order, want)
	}
}

// TestRunThatFailedTakesTurns wants a migration whose run has just failed to come after one that has waited for longer.
func TestRunThatFailedTakesTurns(t *testing.T) {
	m := made(func(*migrationv1alpha1.StorageVersionMigration) {})
	s, ctx := newStage(t, m)
	run := s.run(m)
	s.runs.claimResource(run)
	run.hadTurn = true
	_ = s.runEnded(ctx, run, errors.New("away"))
	other := runMemory{hadTurn: true, notBefore: s.env.clock.Now().Add(-time.Minute)}
	if failed := rankOf(m, nil, s.runs.memoryOf(m)); failed.compare(rankOf(m, nil, other)) <= 0 {
		t.Errorf("the migration whose run failed comes first, with the rank %+v", failed)
	}
}

// TestStuckInAnEarlierProcess has another process become the leader. What made no progress must not come first there.
func TestStuckInAnEarlierProcess(t *testing.T) {
	m := made(func(m *migrationv1alpha1.StorageVersionMigration) {
		m.Status.StartTime, m.Status.Target = new(metav1.NewTime(noon)), boundTo(3)
		running(m.Status.Target, rewrite.Report{Phase: rewrite.Stuck})(&m.Status, noon)
	})
	s, ctx := newStage(t, m)
	wantStuck := func() {
		t.Helper()
		if got := rankOf(m, nil, s.runs.memoryOf(m)); got.priority != stuck {
			t.Errorf("the rank is %+v", got)
		}
		if _, says, _ := s.readiness(m); says != nil {
			t.Error("the status does not say any more that there was no progress")
		}
	}
	s.ready = controller.NewQueue(controller.QueueOptions[string]{Name: t.Name() + "-ready", Clock: s.env.clock})
	wantStuck()
	run := s.run(m)
	s.runs.claimResource(run)
	_ = s.runEnded(ctx, run, errStopped) // It has not come to its objects.
	wantStuck()
	s.runs.claimResource(run)
	run.prepareTask(ctx, Decision{})
	_ = s.runEnded(ctx, run, errStopped) // It has made no progress.
	wantStuck()
}

// silent is an Observer that tells of no change.
type silent struct{ Observer }

func (silent) Subscribe(func(schema.GroupResource)) {}

// TestSyncsEnd wants a limit for syncs: requests that nobody answers must not hold up all workers for ever. A run may
// take days.
func TestSyncsEnd(t *testing.T) {
	client := fake.NewClientset()
	c, err := New(t.Context(), Clients{Migrations: client.MigrationV1alpha1(), Objects: &rest.Config{}},
		externalversions.NewSharedInformerFactory(client, 0).Migration().V1alpha1(), silent{}, record.NewFakeRecorder(1),
		Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, queue := range []controller.AnyQueue{c.queue, c.ready, c.env.followers.queue} {
		t.Cleanup(queue.ShutDown)
	}
	if c.queue.Timeout != controller.SyncTimeout || c.ready.Timeout != 0 {
		t.Errorf("a sync ends after %v and a run after %v, want %v and never", c.queue.Timeout, c.ready.Timeout,
			controller.SyncTimeout)
	}
}

// TestPostponedAfterSuspension suspends a migration that was postponed, and resumes it. Then it waits for what it was
// postponed for, and its status says so.
func TestPostponedAfterSuspension(t *testing.T) {
	m := made(func(m *migrationv1alpha1.StorageVersionMigration) {
		waiting(waitDecision(migrationv1alpha1.MigrationReasonSuspended, "it is suspended"))(&m.Status, noon)
	})
	s, ctx := newStage(t, m)
	run := s.run(m)
	s.runs.claimResource(run)
	until := s.env.clock.Now().Add(10 * time.Minute)
	decision := ObjectsExpire()
	_ = s.runEnded(ctx, run, &postponed{decision, until})
	if ready, says, again := s.readiness(m); ready || says == nil || *says != decision || !again.Equal(until) {
		t.Errorf("at %v it says %+v, want %+v at %v", again, says, decision, until)
	}
}
