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
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// testAsked is what people may ask for: to suspend a migration, many migrations of one resource, one of objects that
// expire.
func testAsked(t *testing.T, c *cluster) {
	t.Run("suspend", func(t *testing.T) { testSuspend(t, c) })
	t.Run("many migrations of one resource", func(t *testing.T) { testManyOfOneResource(t, c) })
	t.Run("a small migration beside a big one", func(t *testing.T) { testSmallBesideBig(t, c) })
	t.Run("events", func(t *testing.T) { testEventsExpire(t, c) })
}

// suspend sets spec.suspend of a migration.
func (c *cluster) suspend(t *testing.T, name string, suspend bool) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"suspend":%t}}`, suspend)
	_, err := c.Migrations().Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// testSuspend suspends a migration in the middle, and wants it to go on where it stopped, also in another process.
func testSuspend(t *testing.T, c *cluster) {
	const n = 200
	s, other := c.stage(t, "hammocks", "Hammock", n), c.stage(t, "swings", "Swing", 20)
	manager := c.startManager(t, "suspend", steadily(4, "--migration-chunk-size=50")...)
	s.migrate(t)
	s.writes.reach(t, n/5, soon)
	c.suspend(t, s.Resource, true)
	c.reports(t, s.Resource, v1alpha1.MigrationWaiting, corev1.ConditionTrue, v1alpha1.MigrationReasonSuspended, soon)
	suspended := time.Now() // The manager says so when its run has ended.
	s.stopped(t, suspended)
	m, err := c.fetch(t.Context(), s.Resource)
	if err != nil {
		t.Fatal(err)
	}
	if condition(m, v1alpha1.MigrationRunning) != nil {
		t.Errorf("%s is suspended and runs", words(m))
	}

	framework.StopManager(t, manager)
	manager = c.startManager(t, "suspend-2")
	other.migrate(t)
	other.succeeded(t, soon, 1) // It waits for longer than one that has begun.
	if late := s.patches(t, suspended); late > 0 {
		t.Errorf("another process sent %d PATCH requests for a migration that is suspended", late)
	}
	c.suspend(t, s.Resource, false)
	s.succeeded(t, soon, 1)
	framework.StopManager(t, manager)
}

// stopped wants that the API server receives no PATCH after the event. At the rate of this migration there would be
// twenty.
func (s *scene) stopped(t *testing.T, event time.Time) {
	t.Helper()
	before := s.patches(t, time.Time{})
	time.Sleep(5 * time.Second)
	if late := s.patches(t, event); late > 0 {
		t.Errorf("%d PATCH requests came before the event, %d after", before, late)
	}
	if count := s.writes.count(); before == 0 || count >= s.n {
		t.Errorf("the event came when %d of %d objects were written", count, s.n)
	}
}

// testManyOfOneResource wants several migrations of one resource to run one after the other, and each object to be
// written once.
func testManyOfOneResource(t *testing.T, c *cluster) {
	const n, others = 40, 3
	s := c.stage(t, "crowds", "Crowd", n)
	for i := range others {
		c.migrate(t, fmt.Sprintf("crowd-%d", i), s.WithVersion(""))
	}
	s.migrate(t)
	manager := c.startManager(t, "many", steadily(1)...) // so that all others can say that they wait
	framework.Eventually(t, soon, func(ctx context.Context) error { return s.allButOneWait(ctx, others) })
	framework.StopManager(t, manager)
	manager = c.startManager(t, "many-quickly", steadily(20)...)
	s.judgeOfMany(t, others)
	framework.StopManager(t, manager)
}

// allButOneWait complains unless all other migrations of the resource than one wait, have not begun, and say so.
func (s *scene) allButOneWait(ctx context.Context, others int) error {
	all, err := s.Migrations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	queued := 0
	for i := range all.Items {
		m := &all.Items[i]
		waiting := condition(m, v1alpha1.MigrationWaiting)
		switch {
		case m.GroupResource() != s.GroupResource:
		case m.Finished():
			return fmt.Errorf("%s ended while %d others said that they were queued", m.Name, queued)
		case waiting != nil && waiting.Reason == v1alpha1.MigrationReasonQueued && m.Status.StartTime == nil:
			queued++
		}
	}
	if queued < others {
		return fmt.Errorf("%d migrations say that they are queued, want %d", queued, others)
	}
	return nil
}

// judgeOfMany wants all migrations to succeed and each object to be written once: by the one that ran first, and maybe
// by the one that the second manager began with. The others find nothing to do.
func (s *scene) judgeOfMany(t *testing.T, others int) {
	t.Helper()
	names := []string{s.Resource}
	for i := range others {
		names = append(names, fmt.Sprintf("crowd-%d", i))
	}
	idle := 0
	for _, name := range names {
		m := s.ended(t, name, soon)
		mustSucceed(t, m)
		if m.Status.Target == nil || m.Status.StartTime == nil {
			t.Errorf("%s has no target, or no start", words(m))
		}
		if m.Status.Progress.AlreadyCurrent == int64(s.n) {
			idle++
		}
	}
	if idle < others-1 {
		t.Errorf("%d of %d migrations found nothing to do", idle, others+1)
	}
	s.judge.stored(t, s.WithVersion("v2").GroupVersion().String())
	s.judge.onlyEncodings(t, 1)
	if count := s.writes.count(); count != s.n {
		t.Errorf("%d objects were written %d times", s.n, count)
	}
}

// testSmallBesideBig has a single place, and wants two big migrations of one resource to give it to a small one.
func testSmallBesideBig(t *testing.T, c *cluster) {
	big, small := c.stage(t, "whales", "Whale", 250), c.stage(t, "shrimps", "Shrimp", 20)
	big.migrate(t)
	c.migrate(t, "whales-again", big.WithVersion(""))
	manager := c.startManager(t, "turns", steadily(8, "--concurrent-migrations=1", "--migration-turn=1s",
		"--migration-chunk-size=50")...)
	big.writes.reach(t, 10, soon)
	small.migrate(t)
	ended, _ := small.succeeded(t, soon, 1)
	if count := c.encodingsAsOf(t, ended, big.custom)[big.encoding("v2")]; count >= big.n {
		t.Errorf("all %d objects of the big one were written before the end of the small one", count)
	}
	for _, name := range []string{big.Resource, "whales-again"} {
		mustSucceed(t, c.ended(t, name, soon))
	}
	big.judge.stored(t, big.encoding("v2"))
	big.judge.onlyEncodings(t, 1)
	if requests, most := big.patches(t, time.Time{}), 2*(big.n+big.n/20); requests > most { // Some are dry runs.
		t.Errorf("%d requests for %d objects, want %d at most", requests, big.n, most)
	}
	framework.StopManager(t, manager)
}

// testEventsExpire wants the migration of events to end when the old ones are gone, and none to be rewritten. The API
// server takes more than a minute to delete one, so the test does that.
func testEventsExpire(t *testing.T, c *cluster) {
	events := schema.GroupResource{Resource: "events"}
	c.event(t, "old")
	began := time.Now()
	manager := c.startManager(t, "events")
	c.migrate(t, "events", events.WithVersion("v1"))
	c.migrate(t, "other-name", schema.GroupVersionResource{Group: "events.k8s.io", Version: "v1", Resource: "events"})
	c.reports(t, "events", v1alpha1.MigrationWaiting, corev1.ConditionTrue, v1alpha1.MigrationReasonObjectsExpire, soon)
	lists := func() int {
		count, err := c.Requests(controlplane.RequestFilter{
			Since: began, Users: []string{framework.ManagerUser}, Verbs: []string{"list"},
			Resources: []schema.GroupResource{events},
		})
		if err != nil {
			t.Fatal(err)
		}
		return count.Total()
	}
	framework.Eventually(t, soon, func(context.Context) error {
		if got := lists(); got < 2 {
			return fmt.Errorf("the events were listed %d times", got)
		}
		return nil
	})
	for _, name := range []string{"events", "other-name"} {
		if m, err := c.fetch(t.Context(), name); err != nil || m.Finished() {
			t.Fatalf("%s ended while an old event exists (%v)", words(m), err)
		}
	}
	all := c.Kube.CoreV1().Events("default")
	if err := all.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	c.event(t, "new")
	mustSucceed(t, c.ended(t, "events", soon))
	mustSucceed(t, c.ended(t, "other-name", soon))
	const interval = 15 * time.Second // at least
	if got, took := lists(), time.Since(began); got > 4+int(took/interval) {
		t.Errorf("the events were listed %d times in %v", got, took)
	}
	patches, err := c.Requests(patchesOfManager(events, began))
	if err != nil {
		t.Fatal(err)
	}
	if patches.Total() > 0 {
		t.Errorf("%d events were rewritten, which prolongs their life", patches.Total())
	}
	framework.StopManager(t, manager)
}

// event creates an event.
func (c *cluster) event(t *testing.T, name string) {
	t.Helper()
	_, err := c.Kube.CoreV1().Events("default").Create(t.Context(), &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name},
		InvolvedObject: corev1.ObjectReference{Namespace: "default", Name: "somebody", Kind: "Pod"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating event %q: %v", name, err)
	}
}
