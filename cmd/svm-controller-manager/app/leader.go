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
	"fmt"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/utils/clock"
)

var (
	errLeaseLost    = errors.New("lost the leader lease; the process ends, and the next one reads everything anew")
	errStillRunning = errors.New("controllers did not end in time")
)

// fenceLabel is the state of the fence. If no controller needs the fence, it is empty, and replaces the label of a
// leader that had such controllers.
func (m *manager) fenceLabel() string {
	if !slices.ContainsFunc(m.selected, isFenced) {
		return ""
	}
	return string(m.fence.State())
}

// lead waits for the lease, calls leads and runs the controllers, until the lease is lost or ctx ends.
//
// It gives the lease back only after the controllers have ended, because the next leader starts the moment the lease is
// free. If they do not end in time, or if the lease was lost, or acquired in the moment in which ctx ended, it leaves
// the lease to expire. The term then refuses the writes of whatever still runs.
func (m *manager) lead(ctx context.Context, leads func()) error {
	election := m.config.Generic.LeaderElection
	hostname, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("making an identity for leader election: %w", err)
	}
	// The random part keeps two processes on one host from holding each other's lease.
	id := hostname + "_" + string(uuid.NewUUID())
	// After a signal the lease has to be renewed until the controllers have ended, so election has a context of its own.
	electionCtx, stopElection := context.WithCancel(context.WithoutCancel(ctx))
	defer stopElection()
	term := newLeaderTerm(clock.RealClock{}, election.RenewDeadline.Duration)
	defer term.end()
	lease, err := resourcelock.NewFromKubeconfig(election.ResourceLock, election.ResourceNamespace, election.ResourceName,
		resourcelock.ResourceLockConfig{Identity: id, EventRecorder: m.events}, m.config.Kubeconfig,
		election.RenewDeadline.Duration)
	if err != nil {
		return fmt.Errorf("setting up the lease %s/%s: %w", election.ResourceNamespace, election.ResourceName, err)
	}
	lock := &termLock{
		LeaseLock: lease.(*resourcelock.LeaseLock), // Validation allows no other type of lock.
		term:      term, retryPeriod: election.RetryPeriod.Duration, stopElection: stopElection, fenceLabel: m.fenceLabel,
	}
	runEnded := make(chan error, 1)
	onStartedLeading := func(leading context.Context) {
		leading, cancel := context.WithCancel(leading)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		leads()
		runEnded <- lock.afterRun(ctx, m.runControllers(leading, term))
		stopElection()
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name:            election.ResourceName,
		Lock:            lock,
		LeaseDuration:   election.LeaseDuration.Duration,
		RenewDeadline:   election.RenewDeadline.Duration,
		RetryPeriod:     election.RetryPeriod.Duration,
		ReleaseOnCancel: true, // termLock refuses a release that comes too early.
		Callbacks:       leaderelection.LeaderCallbacks{OnStartedLeading: onStartedLeading, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return fmt.Errorf("setting up leader election: %w", err)
	}
	m.health.lease.SetLeaderElection(elector)
	defer context.AfterFunc(ctx, func() {
		if !term.begun() {
			stopElection()
		}
	})()
	elector.Run(electionCtx)
	if !term.begun() {
		return nil
	}
	err = <-runEnded // The loss of the lease ends runControllers as well.
	if lock.mayRelease.Load() && elector.IsLeader() {
		err = errors.Join(err, fmt.Errorf("could not give the lease %s back; it expires by itself", lock.Describe()))
	}
	return err
}
