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

	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/utils/clock"
)

var (
	errLeaseLost    = errors.New("lost the leader lease; the process ends so that a new one starts from what is true now")
	errStillRunning = errors.New("controllers did not end in time")
)

// lead waits for the lease and then calls run. The context of run ends when the lease is lost or when ctx ends. lead
// returns after run has returned.
//
// It gives the lease back only after run has returned without an error, because the next leader starts the moment the
// lease is free. If run does not return in time, or if the lease was lost, it leaves the lease to expire; the term then
// refuses the writes of whatever still runs. The library would give the lease back after a failed renewal as well.
func (m *manager) lead(ctx context.Context, leaseName string, run func(context.Context, *leaderTerm) error) error {
	election := m.Generic.LeaderElection
	// After a signal the lease has to be renewed until the controllers have ended, so election has a context of its own.
	electionCtx, stopElection := context.WithCancel(context.WithoutCancel(ctx))
	defer stopElection()
	term := newLeaderTerm(clock.RealClock{}, election.RenewDeadline.Duration)
	lock, err := m.newTermLock(leaseName, term, stopElection)
	if err != nil {
		return err
	}

	started := make(chan struct{})
	runEnded := make(chan error, 1)
	elector, err := m.newElector(leaseName, lock, func(leading context.Context) {
		close(started)
		leading, cancel := context.WithCancel(leading)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		runEnded <- run(leading, term)
	})
	if err != nil {
		return err
	}
	defer m.health.watchLease(elector)()
	electionEnded := make(chan struct{})
	go func() {
		defer close(electionEnded)
		elector.Run(electionCtx)
	}()

	select {
	case <-started:
	case <-ctx.Done():
		stopElection()
		<-electionEnded
		if !term.everHeld() {
			return nil
		}
		// The lease was won in this very moment. The library calls run, with a context that has ended already.
	}
	err = <-runEnded // The loss of the lease ends run as well.
	stopElection()
	<-electionEnded
	switch {
	case errors.Is(err, errStillRunning):
		return err
	case term.over() || err == nil && ctx.Err() == nil:
		// If nobody asked the process to stop and there is no error, only the loss of the lease can have ended run.
		return errors.Join(errLeaseLost, err)
	default:
		return errors.Join(err, lock.release(context.WithoutCancel(ctx), election.RenewDeadline.Duration))
	}
}

func (m *manager) newElector(
	name string, lock *termLock, lead func(context.Context),
) (*leaderelection.LeaderElector, error) {
	election := m.Generic.LeaderElection
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name:          name,
		Lock:          lock,
		LeaseDuration: election.LeaseDuration.Duration,
		RenewDeadline: election.RenewDeadline.Duration,
		RetryPeriod:   election.RetryPeriod.Duration,
		Callbacks:     leaderelection.LeaderCallbacks{OnStartedLeading: lead, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return nil, fmt.Errorf("setting up leader election: %w", err)
	}
	return elector, nil
}
