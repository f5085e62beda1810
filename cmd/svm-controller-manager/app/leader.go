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
	errLeaseLost    = errors.New("lost the leader lease: ending, so that a new process starts from what is true now")
	errStillRunning = errors.New("controllers did not end in time")
)

// lead waits for the lease, calls run with a context that ends when the lease is lost or ctx ends, and returns when run
// has returned.
//
// The lease is given back only after run has returned, for the next leader starts the moment it is free; the library would
// give it back while controllers end, and also after it failed to renew. If run does not return in time, or the lease was
// lost, it is left to expire: whatever still runs is then cut off by its term.
func (m *manager) lead(ctx context.Context, leaseName string, run func(context.Context, *leaderTerm) error) error {
	election := m.Generic.LeaderElection
	// Election goes on while controllers end after a signal, hence a context of its own.
	electing, stopElecting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopElecting()
	term := newLeaderTerm(clock.RealClock{}, election.RenewDeadline.Duration)
	lock, err := m.newTermLock(leaseName, term, stopElecting)
	if err != nil {
		return err
	}

	started := make(chan struct{})
	finished := make(chan error, 1)
	elector, err := m.newElector(leaseName, lock, func(leading context.Context) {
		close(started)
		leading, cancel := context.WithCancel(leading)
		defer cancel()
		defer context.AfterFunc(ctx, cancel)()
		finished <- run(leading, term)
	})
	if err != nil {
		return err
	}
	defer m.state.watchLease(elector)()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		elector.Run(electing)
	}()

	select {
	case <-started:
	case <-ctx.Done():
		stopElecting()
		<-stopped
		if !term.everHeld() {
			return nil
		}
		// Won in this very moment: run is called with a context that has ended already.
	}
	// A lost lease ends run as well.
	err = <-finished
	stopElecting()
	<-stopped
	switch {
	case errors.Is(err, errStillRunning):
		return err
	case term.over() || err == nil && ctx.Err() == nil:
		// Nothing but the loss of the lease ends a run without an error that nobody asked to end.
		return errors.Join(errLeaseLost, err)
	default:
		return errors.Join(err, lock.release(context.WithoutCancel(ctx), election.RenewDeadline.Duration))
	}
}

func (m *manager) newElector(name string, lock *termLock, lead func(context.Context)) (*leaderelection.LeaderElector, error) {
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
