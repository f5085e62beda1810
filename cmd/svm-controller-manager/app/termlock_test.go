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

package app

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"
	testingclock "k8s.io/utils/clock/testing"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// TestLeaseThatWasRestored puts back an earlier state of the lease that this process holds.
func TestLeaseThatWasRestored(t *testing.T) {
	client := fake.NewClientset()
	leases := client.CoordinationV1().Leases("kube-system")
	now := time.Date(2026, 1, 1, 0, 0, 0, 123456789, time.UTC)
	lock, election := lockOf(t, client)
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "me", RenewTime: metav1.NewTime(now)}
	if err := lock.Create(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	backup, err := leases.Get(t.Context(), "lease", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	record.RenewTime = metav1.NewTime(now.Add(2 * time.Second))
	if err := lock.Update(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	written, err := leases.Get(t.Context(), "lease", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	store := func(lease *coordinationv1.Lease) {
		t.Helper()
		if _, err := leases.Update(t.Context(), asStored(lease), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	store(written)
	if _, _, err := lock.Get(t.Context()); err != nil {
		t.Errorf("the lease as it was written: %v", err)
	}
	store(backup)
	if _, _, err := lock.Get(t.Context()); !errors.Is(err, errTermOver) || election.Err() == nil {
		t.Errorf("the lease of the backup: %v", err)
	}
	if err := lock.afterRun(t.Context(), nil); !errors.Is(err, storageversion.ErrRestored) {
		t.Errorf("the process ends with %v", err)
	}
}

// TestControllersEndDuringARead has controllers that end while the election reads the lease of a backup. By the clock
// the term is over before the election knows why. Only the race detector sees whether they exchange that safely.
func TestControllersEndDuringARead(t *testing.T) {
	client := fake.NewClientset()
	lock, _ := lockOf(t, client)
	now := testingclock.NewFakeClock(time.Now())
	lock.term = newLeaderTerm(now, time.Minute)
	record := resourcelock.LeaderElectionRecord{HolderIdentity: "me", RenewTime: metav1.NewTime(now.Now())}
	if err := lock.Create(t.Context(), record); err != nil {
		t.Fatal(err)
	}
	lock.renewedAt = lock.renewedAt.Add(time.Hour)
	var ended sync.WaitGroup
	client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		now.Step(time.Minute)
		ended.Go(func() {
			if err := lock.afterRun(t.Context(), nil); err == nil {
				t.Error("the process ends without an error")
			}
		})
		time.Sleep(10 * time.Millisecond) // A channel would order what the race detector has to find without an order.
		return false, nil, nil
	})
	if _, _, err := lock.Get(t.Context()); !errors.Is(err, errTermOver) {
		t.Errorf("the lease of the backup: %v", err)
	}
	ended.Wait()
}

// TestLeaseThatIsGone deletes the lease that this process holds. Another process may have held it meanwhile.
func TestLeaseThatIsGone(t *testing.T) {
	client := fake.NewClientset()
	lock, election := lockOf(t, client)
	if _, _, err := lock.Get(t.Context()); !apierrors.IsNotFound(err) || election.Err() != nil {
		t.Errorf("before anybody led: %v", err)
	}
	if err := lock.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: "me"}); err != nil {
		t.Fatal(err)
	}
	page := apierrors.NewGenericServerResponse(http.StatusNotFound, "GET", schema.GroupResource{}, "", "no", 0, true)
	answered := false
	client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		defer func() { answered = true }()
		return !answered, nil, page
	})
	if _, _, err := lock.Get(t.Context()); !apierrors.IsNotFound(err) || election.Err() != nil {
		t.Errorf("the page of a proxy: %v", err)
	}
	leases := client.CoordinationV1().Leases("kube-system")
	if err := leases.Delete(t.Context(), "lease", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := lock.Get(t.Context()); !errors.Is(err, errTermOver) || election.Err() == nil {
		t.Errorf("after it was deleted: %v", err)
	}
}

// TestLeaseThatCannotBeRead wants the log to say once what is refused: a missing permission and a certificate that has
// expired are mended in different ways.
func TestLeaseThatCannotBeRead(t *testing.T) {
	leases := coordinationv1.Resource("leases")
	failures := []error{
		apierrors.NewForbidden(leases, "lease", nil), apierrors.NewForbidden(leases, "lease", nil),
		apierrors.NewUnauthorized("expired"), errors.New("connection refused"), nil,
	}
	client := fake.NewClientset(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "lease"},
	})
	client.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
		err := failures[0]
		failures = failures[1:]
		return err != nil, nil, err
	})
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
	lock, _ := lockOf(t, client)
	if _, _, err := lock.Get(klog.NewContext(t.Context(), logger)); err != nil {
		t.Fatal(err)
	}
	want := []string{"Check the permissions", "refuses the credentials", "does not answer", "works again"}
	entries := logger.GetSink().(ktesting.Underlier).GetBuffer().Data()
	if len(entries) != len(want) {
		t.Fatalf("the log has %d entries, want %d: %v", len(entries), len(want), entries)
	}
	for i, entry := range entries {
		if !strings.Contains(entry.Message, want[i]) {
			t.Errorf("the log says %q, want %q", entry.Message, want[i])
		}
	}
}

// lockOf returns the lock of this process, and the context of its election.
func lockOf(t *testing.T, client *fake.Clientset) (*termLock, context.Context) {
	t.Helper()
	election, stopElection := context.WithCancel(t.Context())
	return &termLock{
		LeaseLock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "lease"}, Client: client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: "me"},
		},
		term: newLeaderTerm(clock.RealClock{}, time.Minute), stopElection: stopElection,
		fenceLabel: func() string { return "" },
	}, election
}

// asStored returns a lease with times as the API stores them.
func asStored(lease *coordinationv1.Lease) *coordinationv1.Lease {
	lease.Spec.RenewTime.Time = lease.Spec.RenewTime.Truncate(time.Microsecond)
	return lease
}

// TestVersionLabel wants a value that the API server accepts: otherwise it refuses the Lease, and nobody leads.
func TestVersionLabel(t *testing.T) {
	for release, want := range map[string]string{
		"v0.2.0":                            "v0.2.0",
		"v0.1.0-dev+0123456789ab":           "v0.1.0-dev_0123456789ab",
		"v0.0.0-master+$Format:%H$":         "", // what a program says that was built without a version
		"v0.2.0-" + strings.Repeat("a", 60): "",
	} {
		if got := versionLabel(release); got != want {
			t.Errorf("the label of %s is %q, want %q", release, got, want)
		}
	}
}
