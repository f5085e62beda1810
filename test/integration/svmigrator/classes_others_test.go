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
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilwait "k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	ledgerCount = 180
	changers    = 2
	// changed is how many of the first objects others change.
	changed = 60
	// restBetweenWrites leaves the API server some time for the migration.
	restBetweenWrites = 100 * time.Millisecond
)

// testOthersWrite migrates objects that others create, change and delete all the time.
func testOthersWrite(t *testing.T, c *cluster) {
	ledgers := newCustom("ledgers", "Ledger")
	c.define(t, ledgers)
	c.fill(t, ledgers, "ledger", ledgerCount)
	// The rate is bounded so that others have the time to do something.
	c.startManager(t, "manager", "--max-rewrites-per-second=4", "--migration-chunk-size=50")
	o := startOthers(t, c, ledgers)
	c.flip(t, ledgers, "v2")
	judge := c.judge(t, ledgers.GroupResource)
	c.migrate(t, "ledgers", ledgers.WithVersion(""))
	c.processed(t, "ledgers", 1)
	close(o.mayDelete)
	m := c.ended(t, "ledgers", 2*soon)
	mustSucceed(t, m)
	c.atSuccess(t, m, ledgers)
	o.stop()
	o.check(t, judge)
	t.Logf("%s", words(m))
	if p := m.Status.Progress; p.Gone == 0 || p.WrittenByOthers == 0 {
		t.Errorf("nobody was in the way of %s", words(m))
	}
}

// atSuccess wants every object in the target encoding as of the revision at which the migration was written as
// Succeeded.
func (c *cluster) atSuccess(t *testing.T, m *v1alpha1.StorageVersionMigration, r custom) {
	t.Helper()
	counts := c.encodingsAsOf(t, m, r)
	t.Logf("when it succeeded there were %v", counts)
	if len(counts) != 1 || counts[m.Status.Target.EncodingVersion] == 0 {
		t.Errorf("when %s succeeded objects were stored in %v", m.Name, counts)
	}
}

// encodingsAsOf counts the objects by encoding as of the revision at which the migration was written last.
func (c *cluster) encodingsAsOf(t *testing.T, m *v1alpha1.StorageVersionMigration, r custom) map[string]int {
	t.Helper()
	revision, err := strconv.ParseInt(m.ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := c.StoredUnder(t.Context(), "/registry/"+r.Group+"/"+r.Resource+"/", revision)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, object := range stored {
		counts[object.Encoding]++
	}
	return counts
}

// others create, change and delete objects, and know what must be there in the end.
type others struct {
	*cluster
	custom
	cancel  context.CancelFunc
	running sync.WaitGroup
	// mayDelete is closed when they may delete objects that were there from the start.
	mayDelete chan struct{}

	mu      sync.Mutex
	counted map[string]int64 // by name: what the counter of an object was set to last
	created map[string]bool  // and not deleted
	deleted map[string]bool
	errs    []error
}

func startOthers(t *testing.T, c *cluster, r custom) *others {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	o := &others{
		cluster:   c,
		custom:    r,
		cancel:    cancel,
		mayDelete: make(chan struct{}),
		counted:   map[string]int64{},
		created:   map[string]bool{},
		deleted:   map[string]bool{},
	}
	for i := range changers {
		o.running.Go(func() {
			for n := i; ctx.Err() == nil; n += changers {
				// Spread over all objects: the list is in the order of the names.
				o.note(o.count(ctx, fmt.Sprintf("ledger-%05d", (n%changed)*(ledgerCount/changed))))
				pauseFor(ctx, restBetweenWrites)
			}
		})
	}
	o.running.Go(func() {
		for n := 0; ctx.Err() == nil; n++ {
			o.note(o.create(ctx, fmt.Sprintf("new-%05d", n)))
			if n%2 == 1 {
				o.note(o.remove(ctx, fmt.Sprintf("new-%05d", n)))
			}
			pauseFor(ctx, restBetweenWrites)
		}
	})
	o.running.Go(func() {
		select {
		case <-o.mayDelete:
		case <-ctx.Done():
		}
		// Towards the migration, which begins at the other end. None of them is one that is changed.
		for n := ledgerCount - 1; ctx.Err() == nil && n >= 0; n -= ledgerCount / changed {
			o.note(o.remove(ctx, fmt.Sprintf("ledger-%05d", n)))
			pauseFor(ctx, 2*restBetweenWrites)
		}
	})
	t.Cleanup(o.stop)
	return o
}

func (o *others) stop() {
	o.cancel()
	o.running.Wait()
}

func (o *others) note(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if err != nil {
		o.errs = append(o.errs, err)
	}
}

// count adds one to the counter of an object, as those do who read, change and write.
func (o *others) count(ctx context.Context, name string) error {
	o.mu.Lock()
	last := o.counted[name]
	o.mu.Unlock()
	client, lost := o.at(o.custom, "v1"), false
	err := untilAnswered(ctx, func(ctx context.Context) (done bool, err error) {
		object, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			_, err = answered(err)
			return false, err
		}
		now, _, err := unstructured.NestedInt64(object.Object, "spec", "counter")
		switch {
		case err == nil && lost && now == last+1:
			return true, nil
		case err != nil || now != last:
			return false, fmt.Errorf("the counter of %s was set to %d and is %d (%v)", name, last, now, err)
		}
		if err := unstructured.SetNestedField(object.Object, last+1, "spec", "counter"); err != nil {
			return false, err
		}
		_, err = client.Update(ctx, object, metav1.UpdateOptions{FieldManager: "counter"})
		if apierrors.IsConflict(err) {
			return false, nil
		}
		done, err = answered(err)
		lost = !done
		return done, err
	})
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counted[name] = last + 1
	return nil
}

// untilAnswered repeats what somebody does until it is done, also if ctx has ended: a write that nobody waits for would
// not be known to have been done.
func untilAnswered(ctx context.Context, do utilwait.ConditionWithContextFunc) error {
	return utilwait.PollUntilContextTimeout(context.WithoutCancel(ctx), restBetweenWrites, soon, true, do)
}

// answered reports whether the API server has answered a request, and returns its refusal. After any other error the
// request may have been done.
func answered(err error) (bool, error) {
	if err == nil {
		return true, nil
	}
	refusal, is := errors.AsType[*apierrors.StatusError](err)
	if is && refusal.ErrStatus.Code < http.StatusInternalServerError {
		return true, err
	}
	return false, nil
}

// write sends a write until it is answered. If an answer was lost, doneBefore tells whether the next one says that the
// write was done.
func write(ctx context.Context, send func(ctx context.Context) error, doneBefore func(error) bool) error {
	lost := false
	return untilAnswered(ctx, func(ctx context.Context) (done bool, err error) {
		err = send(ctx)
		if lost && doneBefore(err) {
			return true, nil
		}
		done, err = answered(err)
		lost = !done
		return done, err
	})
}

func (o *others) create(ctx context.Context, name string) error {
	err := write(ctx, func(ctx context.Context) error {
		_, err := o.at(o.custom, "v1").Create(ctx, o.object(name), metav1.CreateOptions{})
		return err
	}, apierrors.IsAlreadyExists)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.created[name] = err == nil
	return err
}

func (o *others) remove(ctx context.Context, name string) error {
	err := write(ctx, func(ctx context.Context) error {
		return o.at(o.custom, "v1").Delete(ctx, name, metav1.DeleteOptions{})
	}, apierrors.IsNotFound)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.deleted[name] = err == nil
	delete(o.created, name)
	return err
}

// check compares what is stored with what was there at first, and what others did.
func (o *others) check(t *testing.T, judge *judgement) {
	t.Helper()
	if err := errors.Join(o.errs...); err != nil {
		t.Fatal(err)
	}
	list, err := o.at(o.custom, "v2").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for i := range list.Items {
		name := list.Items[i].GetName()
		found[name] = true
		counter, _, _ := unstructured.NestedInt64(list.Items[i].Object, "spec", "counter")
		payload, _, _ := unstructured.NestedString(list.Items[i].Object, "spec", "payload")
		if counter != o.counted[name] || payload != "of "+name {
			t.Errorf("%s has payload %q and counter %d, which was set to %d", name, payload, counter, o.counted[name])
		}
		if list.Items[i].GetManagedFields()[0].Manager == "storage-version-migrator" {
			t.Errorf("the migrator owns fields of %s", name)
		}
	}
	expected := maps.Clone(o.created)
	for n := range ledgerCount {
		if name := fmt.Sprintf("ledger-%05d", n); !o.deleted[name] {
			expected[name] = true
		}
	}
	if !maps.Equal(found, expected) {
		t.Errorf("there are %d objects, want %d", len(found), len(expected))
	}
	changes := judge.onlyDone(t)
	t.Logf(
		"others set %d counters, created %d objects that are still there, and deleted %d",
		len(o.counted),
		len(o.created),
		len(o.deleted),
	)
	for _, key := range changes.Changed {
		if name := key[strings.LastIndex(key, "/")+1:]; o.counted[name] == 0 {
			t.Errorf("%s was changed, and not by the others", name)
		}
	}
	for key, writes := range changes.Writes {
		name := key[strings.LastIndex(key, "/")+1:]
		// One of the writes of the others may have been before the judge looked at first.
		if most := o.counted[name] + 1; writes > most {
			t.Errorf("%s was written %d times, want %d at most", name, writes, most)
		}
	}
}

// onlyDone is what happened to the stored objects.
func (j *judgement) onlyDone(t *testing.T) controlplane.StoredChanges {
	t.Helper()
	after, err := j.c.Stored(t.Context(), j.resource)
	if err != nil {
		t.Fatal(err)
	}
	return controlplane.CompareStored(j.before, after)
}

// pauseFor returns after d, or when ctx ends.
func pauseFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
