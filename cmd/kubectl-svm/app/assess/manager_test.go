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

package assess

import (
	"errors"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/pkg/fence"
)

func TestManagerOf(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	lease := func(holder string, renewed time.Duration) *coordinationv1.Lease {
		return &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "kube-system", Name: "svm-controller-manager", Labels: map[string]string{fence.Label: "Standing"},
			},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: ptr.To(holder), LeaseDurationSeconds: ptr.To[int32](15),
				RenewTime: &metav1.MicroTime{Time: now.Add(-renewed)},
			},
		}
	}
	written := func(ago time.Duration) []migrationv1alpha1.StorageState {
		state := migrationv1alpha1.StorageState{}
		state.Status.LastHeartbeatTime = metav1.NewTime(now.Add(-ago))
		return []migrationv1alpha1.StorageState{{}, state}
	}
	leases := coordinationv1.Resource("leases")
	observer := lease("cp-1", time.Second)
	observer.Labels = map[string]string{fence.Label: ""}
	released := lease("cp-1", time.Second)
	released.Labels[names.VersionLabel] = "v0.2.0"
	for _, test := range []struct {
		name    string
		lease   *coordinationv1.Lease
		unread  error
		states  []migrationv1alpha1.StorageState
		running bool
		message string
	}{
		{"one leads", lease("cp-1", time.Second), nil, nil, true, "The manager cp-1 leads."},
		{"one leads, and runs no migrator", observer, nil, nil, true, "The manager cp-1 leads, and only observes"},
		{"one of a release leads", released, nil, nil, true, "The manager cp-1 (v0.2.0) leads."},
		{"clocks differ, or the leader died", lease("cp-1", 70*time.Second), nil, nil, true,
			"The manager cp-1 leads. It renewed the lease 70s ago, so it may have ended."},
		{"the clock of the leader is a little ahead", lease("cp-1", -50*time.Second), nil, nil, true,
			"The manager cp-1 leads."},
		{"clocks differ too much", lease("cp-1", -2*time.Hour), nil, written(time.Minute), false,
			"It is not known whether a manager runs: cp-1 renewed the lease kube-system/svm-controller-manager 120m in the " +
				"future, so clocks differ: set the clocks of this machine and of the managers"},
		{"clocks differ too much without leader election", nil, cli.ErrNoLease, written(-2 * time.Hour), false,
			"a StorageState was written 120m in the future, so clocks differ: set the clocks"},
		{"the leader is gone", lease("cp-1", 5*time.Minute), nil, written(time.Minute), false,
			"cp-1 led last, and has not renewed the lease kube-system/svm-controller-manager for 5m."},
		{"the lease was given back", lease("", time.Minute), nil, written(time.Minute), false, "No manager leads"},
		{"never installed", nil, nil, nil, false, "No manager seems to run: none holds its lease."},
		{"uninstalled a minute ago", nil, nil, written(time.Minute), false, "No manager seems to run: none holds its lease."},
		{"without leader election", nil, cli.ErrNoLease, written(time.Minute), true,
			"A manager seems to run: no lease was read (--manager-lease is empty), but a StorageState was written 60s ago"},
		{"without leader election, and gone", nil, cli.ErrNoLease, written(3 * time.Hour), false,
			"no StorageState was written for 3h"},
		{"nobody may say", nil, apierrors.NewForbidden(leases, "svm-controller-manager", errors.New("no role")),
			written(time.Minute), false, "It is not known whether a manager runs: its lease could not be read " +
				"(leases.coordination.k8s.io \"svm-controller-manager\" is forbidden: no role): ask an administrator"},
		{"no answer", nil, errors.New("timeout"), written(time.Minute), false,
			"It is not known whether a manager runs: its lease could not be read (timeout): run the command again."},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := ManagerOf(test.lease, test.unread, test.states, now)
			if got.Running != test.running || !strings.Contains(got.Message, test.message) {
				t.Errorf("got %+v, want %t and %q", got, test.running, test.message)
			}
			if unknown := strings.Contains(got.Message, "It is not known"); unknown != got.Unknown ||
				unknown != (got.Help != "") {
				t.Errorf("got %+v, and that is wrong about what is known, or the help", got)
			}
			if got.ObservesOnly != (test.lease == observer) {
				t.Errorf("got %+v, and that is wrong about the migrator", got)
			}
		})
	}
}

// The label is the manager's. This program does not import it, because that package brings the metrics of the manager.
func TestFence(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	for state, says := range map[fence.State]string{
		fence.Standing: "The fence stood at the last hourly check",
		fence.Missing:  "The fence was missing at the last check, which is repeated every few minutes",
		fence.Unknown:  "It is not known",
		"":             "",
	} {
		lease := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{fence.Label: string(state)}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("cp-1"), RenewTime: &metav1.MicroTime{Time: now}},
		}
		if got := ManagerOf(lease, nil, nil, now).Fence; !strings.Contains(got, says) || says == "" && got != "" {
			t.Errorf("the label is %q, and it says %q", state, got)
		}
	}
}
