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
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/pkg/fence"
	"sigs.k8s.io/svm-controller-manager/pkg/retry"
)

const (
	// clockTolerance is by how much the clock of this machine may differ from those of the managers.
	clockTolerance = time.Minute
	// longestSilence is how long the trigger writes nothing when nothing changes: an hour, and some time for a restart.
	longestSilence = 65 * time.Minute
	// firstRecords is how long a new leader may take to write the first StorageStates.
	firstRecords = 2 * time.Minute
)

// Manager is whether a manager runs.
type Manager struct {
	// Running is whether one seems to run. It is false if that is not known.
	Running bool `json:"running"`
	// Unknown is whether it is not known whether one runs.
	Unknown bool `json:"unknown"`
	// ObservesOnly is whether the leader runs no migrator, so that no migration begins.
	ObservesOnly bool `json:"observesOnly,omitempty"`
	// Established is whether one has led for so long that it should have written the StorageStates of built-in resources.
	Established bool `json:"-"`
	// Help is what to do if it is not known whether one runs, else empty.
	Help string `json:"-"`
	// Message says whether a manager runs, and why.
	Message string `json:"message"`
	// Fence is whether the fence stands, in a sentence. It is empty if the leader does not say.
	Fence string `json:"fence,omitempty"`
	// expired is whether a manager holds the lease, and did not renew it in time by the clock of this machine.
	expired bool
}

// Migrates reports whether a manager runs that migrates.
func (m *Manager) Migrates() bool { return m.Running && !m.ObservesOnly }

// Stopped reports whether none that migrates seems to run, so that starting one helps.
func (m *Manager) Stopped() bool { return !m.Migrates() && m.Help == "" }

// fences has a sentence for each state of the fence.
var fences = map[fence.State]string{
	fence.Standing: "The fence stood at the last hourly check: the API server refuses writes of the manager that " +
		"change an object.",
	fence.Missing: "The fence was missing at the last check, which is repeated every few minutes: the API server let " +
		"the manager change objects. If you have applied it since, wait. Otherwise apply it in the way in which it was " +
		"installed: docs/install.md, The fence.",
	fence.Unknown: "It is not known whether the fence stands: the leader has not checked it yet, or its log says why.",
}

// FindManager reads the lease of the managers, and concludes whether one runs. It reads a lease that has expired once
// more: if only the clock of the leader is behind, the leader has renewed the lease meanwhile.
func FindManager(
	ctx context.Context, env *cli.Env, clients *cli.Clients, name cli.ManagerLease,
	states []migrationv1alpha1.StorageState,
) Manager {
	first, err := clients.Lease(ctx, name)
	manager := ManagerOf(first, err, states, env.Clock.Now())
	if !manager.expired {
		return manager
	}
	// By default a leader renews a lease of 15 s every two seconds.
	retry.Sleep(ctx, env.Clock, time.Duration(ptr.Deref(first.Spec.LeaseDurationSeconds, 15))*time.Second/5)
	lease, err := clients.Lease(ctx, name)
	manager = ManagerOf(lease, err, states, env.Clock.Now())
	if manager.expired && !lease.Spec.RenewTime.Equal(first.Spec.RenewTime) {
		return unknown(SetClocks, "%s renews the lease %s, but with a time that is %s old, so clocks differ",
			*lease.Spec.HolderIdentity, name.String(), duration.HumanDuration(env.Clock.Since(lease.Spec.RenewTime.Time)))
	}
	return manager
}

// ManagerOf concludes from the lease of the managers whether one runs. The lease is nil if there is none, or if it was
// not read; unread says why not. Where managers have no lease, the StorageStates say when one wrote last. They are no
// answer if the lease could not be read: a manager that has just ended wrote them too.
func ManagerOf(
	lease *coordinationv1.Lease, unread error, states []migrationv1alpha1.StorageState, now time.Time,
) Manager {
	switch {
	case errors.Is(unread, cli.ErrNoLease):
		return managerByStates(states, now)
	case apierrors.IsForbidden(unread):
		return unknown("ask an administrator of the cluster for this permission, and run the command again",
			"its lease could not be read (%v)", unread)
	case unread != nil:
		return unknown("run the command again", "its lease could not be read (%v)", unread)
	case lease == nil:
		return Manager{Message: "No manager seems to run: none holds its lease. If managers use another lease, name it " +
			"with --manager-lease. If they run without leader election, set --manager-lease to an empty value."}
	case ptr.Deref(lease.Spec.HolderIdentity, "") == "" || lease.Spec.RenewTime == nil:
		return Manager{Message: fmt.Sprintf("No manager leads: the last one released the lease %s/%s, and no other has "+
			"acquired it.", lease.Namespace, lease.Name)}
	}
	term := time.Duration(ptr.Deref(lease.Spec.LeaseDurationSeconds, 0)) * time.Second
	silent := now.Sub(lease.Spec.RenewTime.Time)
	switch {
	case silent < -clockTolerance:
		return unknown(SetClocks, "%s renewed the lease %s/%s %s in the future, so clocks differ",
			*lease.Spec.HolderIdentity, lease.Namespace, lease.Name, duration.HumanDuration(-silent))
	case silent > term+clockTolerance:
		return Manager{expired: true, Message: fmt.Sprintf(
			"No manager seems to run: %s led last, and has not renewed the lease %s/%s for %s.",
			*lease.Spec.HolderIdentity, lease.Namespace, lease.Name, duration.HumanDuration(silent))}
	}
	state := lease.Labels[fence.Label] // Leaders that only observe have none, or an empty one.
	leader := *lease.Spec.HolderIdentity
	if release := lease.Labels[names.VersionLabel]; release != "" {
		leader += " (" + release + ")"
	}
	message := fmt.Sprintf("The manager %s leads.", leader)
	if state == "" {
		message = fmt.Sprintf("The manager %s leads, and only observes: it runs no migrator (--controllers).", leader)
	}
	if silent > term {
		message += fmt.Sprintf(" It renewed the lease %s ago, so it may have ended.", duration.HumanDuration(silent))
	}
	acquired := lease.Spec.AcquireTime
	return Manager{
		Running: true, ObservesOnly: state == "", Message: message, Fence: fences[fence.State(state)],
		Established: acquired != nil && now.Sub(acquired.Time) > firstRecords,
	}
}

// managerByStates concludes from when StorageStates were written last.
func managerByStates(states []migrationv1alpha1.StorageState, now time.Time) Manager {
	var last time.Time
	for i := range states {
		if heartbeat := states[i].Status.LastHeartbeatTime.Time; heartbeat.After(last) {
			last = heartbeat
		}
	}
	const why = "no lease was read (--manager-lease is empty)"
	switch {
	case last.IsZero():
		return Manager{Message: "No manager seems to run: " + why + ", and there are no StorageStates."}
	case now.Sub(last) < -clockTolerance:
		return unknown(SetClocks, "%s, and a StorageState was written %s in the future, so clocks differ", why,
			duration.HumanDuration(last.Sub(now)))
	case now.Sub(last) > longestSilence:
		return Manager{Message: fmt.Sprintf("No manager seems to run: %s, and no StorageState was written for %s.",
			why, duration.HumanDuration(now.Sub(last)))}
	default:
		return Manager{Running: true, Message: fmt.Sprintf(
			"A manager seems to run: %s, but a StorageState was written %s ago.", why, duration.HumanDuration(now.Sub(last)))}
	}
}

// SetClocks is what helps if a time is in the future.
const SetClocks = "set the clocks of this machine and of the managers, for example with NTP, and run the command again"

// unknown is the answer if it is not known whether a manager runs.
func unknown(help, format string, args ...any) Manager {
	return Manager{Unknown: true, Help: help, Message: fmt.Sprintf(
		"It is not known whether a manager runs: "+format+": %s.", append(args, help)...)}
}
