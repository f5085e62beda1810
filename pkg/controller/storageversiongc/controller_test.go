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
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
)

// fixture is a controller whose caches are filled by hand and whose clock stands still.
type fixture struct {
	*Controller
	ctx     context.Context
	client  *fake.Clientset
	clock   *clocktesting.FakeClock
	factory informers.SharedInformerFactory
}

func newFixture(t *testing.T, stored ...runtime.Object) *fixture {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	f := &fixture{ctx: ctx, client: fake.NewClientset(stored...), clock: clocktesting.NewFakeClock(epoch)}
	f.factory = informers.NewSharedInformerFactory(f.client, 0)
	var err error
	f.Controller, err = New(ctx, f.client, f.factory.Coordination().V1().Leases(),
		f.factory.Internal().V1alpha1().StorageVersions(), f.clock)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.queue.ShutDown)
	return f
}

// never is the time until the next sync if only an event can make one necessary.
const never = time.Duration(math.MaxInt64)

// look syncs, and returns the time until the next sync.
func (f *fixture) look() (time.Duration, error) {
	again, err := f.sync(f.ctx, everything)
	if again.IsZero() {
		return never, err
	}
	return again.Sub(f.clock.Now()), err
}

// watching receives something for each watch that has started. The client tells a watch nothing of what happened before
// it, also not after the list.
func (f *fixture) watching() <-chan struct{} {
	started := make(chan struct{}, 10)
	f.client.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		w, err := f.client.Tracker().Watch(action.GetResource(), action.GetNamespace())
		started <- struct{}{}
		return true, w, err
	})
	return started
}

func (f *fixture) cache(t *testing.T, cached ...runtime.Object) {
	t.Helper()
	for _, object := range cached {
		indexer := f.factory.Internal().V1alpha1().StorageVersions().Informer().GetIndexer()
		if _, isLease := object.(*coordinationv1.Lease); isLease {
			indexer = f.factory.Coordination().V1().Leases().Informer().GetIndexer()
		}
		if err := indexer.Add(object); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSyncsEnd wants a limit for syncs: a request that nobody answers must not hold up the only worker for ever.
func TestSyncsEnd(t *testing.T) {
	if f := newFixture(t); f.queue.Timeout != controller.SyncTimeout {
		t.Errorf("a sync ends after %v, want %v", f.queue.Timeout, controller.SyncTimeout)
	}
}

func leaseOf(serverID string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: serverID}}
}

func TestNothingSuspiciousCostsNoRequest(t *testing.T) {
	f := newFixture(t)
	f.cache(t, published("apps.deployments", entry("living", "v1")), leaseOf("living"))
	next, err := f.look()
	if err != nil || next != never {
		t.Errorf("next look in %v, error %v", next, err)
	}
	if actions := f.client.Actions(); len(actions) > 0 {
		t.Errorf("requests: %v", actions)
	}
}

func TestLeaseElsewhereIsNoIdentity(t *testing.T) {
	f := newFixture(t)
	other := leaseOf("gone")
	other.Namespace = "default"
	f.cache(t, published("apps.deployments", entry("gone", "v1")), other)
	if !f.suspicious() {
		t.Error("it is not suspicious")
	}
}

func TestWhatALeaseReadingProves(t *testing.T) {
	leases := schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}
	tests := []struct {
		name   string
		answer error
		want   string
	}{
		{"it is there, though not cached", nil, "present"},
		{"it does not exist", apierrors.NewNotFound(leases, "server"), "absent"},
		{"another lease does not exist", apierrors.NewNotFound(leases, "other"), "unknown"},
		{"something else does not exist",
			apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "kube-system"), "unknown"},
		{"404 from somebody who is no API server",
			apierrors.NewGenericServerResponse(404, "get", leases, "server", "404 page not found", 0, true), "unknown"},
		{"forbidden", apierrors.NewForbidden(leases, "server", nil), "unknown"},
		{"too many requests", apierrors.NewTooManyRequests("later", 1), "unknown"},
		{"internal error", apierrors.NewInternalError(errors.New("etcd")), "unknown"},
		{"unauthorized", apierrors.NewUnauthorized("who?"), "unknown"},
		{"gone", apierrors.NewResourceExpired("compacted"), "unknown"},
		{"timeout", context.DeadlineExceeded, "unknown"},
		{"connection refused", errors.New("connection refused"), "unknown"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := newFixture(t, published("apps.deployments", entry("server", "v1")))
			f.client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, leaseOf("server"), test.answer
			})
			obs, err := f.observe(f.ctx, memory{})
			got := "present"
			switch {
			case err != nil:
				got = "unknown"
			case obs.absent.Has("server"):
				got = "absent"
			}
			if got != test.want {
				t.Errorf("the lease is %s, want %s, and the error is %v", got, test.want, err)
			}
		})
	}
}

func TestOneFailedReadingIsTheLast(t *testing.T) {
	object := published("apps.deployments", entry("a", "v1"), entry("b", "v1"), entry("c", "v1"))
	f := newFixture(t, object)
	f.cache(t, object)
	readings := 0
	f.client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		readings++
		return true, nil, apierrors.NewInternalError(errors.New("etcd"))
	})
	f.memory = memory{at: epoch, absentSince: missedSince(epoch, "a")}
	if _, err := f.look(); err == nil {
		t.Error("the failed reading is not told of")
	}
	if readings != 1 {
		t.Errorf("%d leases were read", readings)
	}
	if len(f.memory.absentSince) > 0 {
		t.Errorf("still remembered: %v", f.memory.absentSince)
	}
}

func TestVanishedAPIIsQuiet(t *testing.T) {
	f := newFixture(t)
	f.cache(t, published("apps.deployments", entry("gone", "v1")))
	f.client.PrependReactor("list", "storageversions", func(clienttesting.Action) (bool, runtime.Object, error) {
		err := apierrors.NewGenericServerResponse(404, "list", schema.GroupResource{}, "", "404 page not found", 0, true)
		return true, nil, err
	})
	next, err := f.look()
	if err != nil || next != recheckInterval {
		t.Errorf("next look in %v, error %v", next, err)
	}
}

// TestLifeOfGarbage goes through everything that happens to an entry and to an object, and what is counted of it.
func TestLifeOfGarbage(t *testing.T) {
	mixed := published("apps.mixed", entry("living", "v1"), entry("gone", "v1beta1"))
	empty, stale := published("apps.empty"), published("apps.stale", entry("gone", "v1"), entry("gone2", "v1"))
	f := newFixture(t, mixed, empty, stale)
	f.cache(t, mixed, empty, stale, leaseOf("living"))
	before := counters(t)

	var looks []time.Duration
	for range 20 {
		next, err := f.look()
		if err != nil {
			t.Fatal(err)
		}
		looks = append(looks, next)
		if next == recheckInterval {
			break
		}
		f.clock.Step(next)
	}

	var want []time.Duration
	for range 15 {
		want = append(want, probeInterval)
	}
	want = append(want, 0, recheckInterval)
	if diff := cmp.Diff(want, looks); diff != "" {
		t.Errorf("when it looks again (-want +got):\n%s", diff)
	}
	type write struct{ Verb, Name, UID, ResourceVersion, Reason string }
	var writes []write
	for _, action := range f.client.Actions() {
		switch a := action.(type) {
		case clienttesting.UpdateAction:
			object := a.GetObject().(*apiserverinternalv1alpha1.StorageVersion)
			writes = append(writes, write{
				a.GetVerb() + " " + a.GetSubresource(), object.Name, string(object.UID), object.ResourceVersion,
				object.Status.Conditions[0].Reason})
		case clienttesting.DeleteAction:
			p := a.GetDeleteOptions().Preconditions
			writes = append(writes, write{"delete", a.GetName(), string(*p.UID), *p.ResourceVersion, ""})
		}
	}
	wantWrites := []write{
		{"delete", "apps.empty", "uid-apps.empty", "7", ""},
		{"update status", "apps.mixed", "uid-apps.mixed", "7", markerReason},
		{"update status", "apps.stale", "uid-apps.stale", "7", markerReason},
		{"update status", "apps.mixed", "uid-apps.mixed", "7", "CommonEncodingVersionSet"},
		{"delete", "apps.stale", "uid-apps.stale", "7", ""},
	}
	if diff := cmp.Diff(wantWrites, writes); diff != "" {
		t.Errorf("writes (-want +got):\n%s", diff)
	}
	wantCounters := map[string]float64{
		"entries_removed_total": 3, "objects_deleted_total no_entries": 1, "objects_deleted_total stale_entries": 1,
		"syncs_held_back_total grace": 15,
	}
	if diff := cmp.Diff(wantCounters, since(before, counters(t))); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
}

func TestLostRaceIsDecidedAnew(t *testing.T) {
	object := withMarker(published("apps.deployments", entry("living", "v1"), entry("gone", "v1")))
	f := newFixture(t, object)
	f.cache(t, object, leaseOf("living"))
	f.memory = memory{at: epoch, absentSince: missedSince(epoch.Add(-grace), "gone")}
	f.client.PrependReactor("update", "storageversions", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewConflict(schema.GroupResource{}, object.Name, errors.New("moved"))
	})
	before := counters(t)
	next, err := f.look()
	if err != nil || next != probeInterval {
		t.Errorf("next look in %v, error %v", next, err)
	}
	if diff := cmp.Diff(map[string]float64{"syncs_held_back_total conflict": 1}, since(before, counters(t))); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
}

// TestEventsLeadToALook runs the controller on what informers deliver.
func TestEventsLeadToALook(t *testing.T) {
	events := map[string]func(f *fixture) error{
		"a lease is deleted": func(f *fixture) error {
			return f.client.CoordinationV1().Leases(metav1.NamespaceSystem).Delete(f.ctx, "living", metav1.DeleteOptions{})
		},
		"an entry is put in": func(f *fixture) error {
			_, err := f.client.InternalV1alpha1().StorageVersions().UpdateStatus(f.ctx,
				published("apps.deployments", entry("living", "v1"), entry("gone", "v1")), metav1.UpdateOptions{})
			return err
		},
		"an object is created": func(f *fixture) error {
			storageVersions := f.client.InternalV1alpha1().StorageVersions()
			_, err := storageVersions.Create(f.ctx, published("apps.empty"), metav1.CreateOptions{})
			return err
		},
	}
	for name, event := range events {
		t.Run(name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			f := newFixture(t, leaseOf("living"), published("apps.deployments", entry("living", "v1")))
			watching := f.watching()
			ctx, cancel := context.WithCancel(f.ctx)
			f.factory.Start(ctx.Done())
			done := make(chan struct{})
			go func() { defer close(done); _ = f.Run(ctx) }()
			for range 2 { // Leases and StorageVersions.
				<-watching
			}
			if err := event(f); err != nil {
				t.Fatal(err)
			}
			limit := wait.ForeverTestTimeout
			err := wait.PollUntilContextTimeout(ctx, 10*time.Millisecond, limit, true, func(context.Context) (bool, error) {
				f.clock.Step(burst)
				for _, action := range f.client.Actions() {
					deleted := name == "an object is created" && action.Matches("delete", "storageversions")
					if deleted || action.Matches("get", "leases") {
						return true, nil
					}
				}
				return false, nil
			})
			if err != nil {
				t.Errorf("nothing was looked at: %v", err)
			}
			cancel()
			<-done
			f.factory.Shutdown()
			goleak.VerifyNone(t, before)
		})
	}
}

func TestRunEndsWhileCachesNeverSync(t *testing.T) {
	before := goleak.IgnoreCurrent()
	f := newFixture(t)
	f.synced = append(f.synced, func() bool { return false })
	ctx, cancel := context.WithCancel(f.ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	cancel()
	<-done
	goleak.VerifyNone(t, before)
}

// counters gathers what the registry would show: name and label values, and the value.
func counters(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	const prefix = subsystem + "_"
	for _, family := range families {
		name := family.GetName()
		if len(name) < len(prefix) || name[:len(prefix)] != prefix {
			continue
		}
		for _, m := range family.GetMetric() {
			key := name[len(prefix):]
			for _, label := range m.GetLabel() {
				key += " " + label.GetValue()
			}
			all[key] = m.GetCounter().GetValue()
		}
	}
	return all
}

func since(before, after map[string]float64) map[string]float64 {
	changed := map[string]float64{}
	for key, value := range after {
		if value != before[key] {
			changed[key] = value - before[key]
		}
	}
	return changed
}
