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
	"time"

	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

var (
	errLeaseLost    = errors.New("lost the leader lease: ending, so that a new process starts from what is true now")
	errStillRunning = errors.New("controllers did not end in time")
)

// lead waits for the lease, calls run with a context that ends when the lease is lost or ctx ends, and returns when run
// has returned.
//
// The lease is given back only after run has returned, for the next leader starts the moment it is free. If run does not
// return in time, the lease is kept until it expires: whatever still runs is then cut off by its term.
func (m *manager) lead(ctx context.Context, leaseName string, run func(context.Context, *leaderTerm) error) error {
	election := m.Generic.LeaderElection
	term := newLeaderTerm(clock.RealClock{}, election.RenewDeadline.Duration)
	lock, err := m.newLock(leaseName, term)
	if err != nil {
		return err
	}

	// Election goes on while controllers end after a signal, hence a context of its own.
	electing, stopElecting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopElecting()
	started := make(chan struct{})
	finished := make(chan error, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name:            leaseName,
		Lock:            lock,
		LeaseDuration:   election.LeaseDuration.Duration,
		RenewDeadline:   election.RenewDeadline.Duration,
		RetryPeriod:     election.RetryPeriod.Duration,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				close(started)
				leading, cancel := context.WithCancel(leading)
				defer cancel()
				defer context.AfterFunc(ctx, cancel)()
				finished <- run(leading, term)
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("setting up leader election: %w", err)
	}
	remove := m.state.watchLease(elector)
	defer remove()

	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		elector.Run(electing)
	}()
	return m.follow(ctx, started, stopped, finished, stopElecting)
}

// follow brings an election to its end: a stop while waiting, a stop while leading, a lost lease, or the end of run.
func (m *manager) follow(ctx context.Context, started, stopped <-chan struct{}, finished <-chan error, stopElecting func()) error {
	select {
	case <-ctx.Done():
		select {
		case <-started:
		default:
			// Not leading. Should the lease be won in this very moment, run gets a context that has ended already.
			stopElecting()
			<-stopped
			return nil
		}
	case <-started:
	}

	select {
	case err := <-finished:
		if errors.Is(err, errStillRunning) {
			return err
		}
		stopElecting()
		<-stopped
		return err
	case <-stopped:
		err := <-finished
		return errors.Join(errLeaseLost, err)
	}
}

func (m *manager) newLock(leaseName string, term *leaderTerm) (resourcelock.Interface, error) {
	election := m.Generic.LeaderElection
	lock, err := resourcelock.NewFromKubeconfig(election.ResourceLock, election.ResourceNamespace, leaseName,
		resourcelock.ResourceLockConfig{Identity: m.id, EventRecorder: m.events}, m.Kubeconfig, election.RenewDeadline.Duration)
	if err != nil {
		return nil, fmt.Errorf("setting up the lease %s/%s: %w", election.ResourceNamespace, leaseName, err)
	}
	return &patientLock{Interface: lock, term: term, retry: election.RetryPeriod.Duration}, nil
}

// patientLock keeps the election quiet while the API server is away, and tells the term of each renewal.
type patientLock struct {
	resourcelock.Interface
	term  *leaderTerm
	retry time.Duration
}

// Get waits for an API server that cannot be reached: it logs that once, where the election would log an error at every
// try. It does not wait once a term is over: then the lease is to be given up, and somebody is to start anew.
func (l *patientLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	var waiting onceLogger
	for {
		record, raw, err := l.Interface.Get(ctx)
		if err == nil || !unreachable(err) || l.term.began() && l.term.over() {
			waiting.done(ctx, "Reading the leader lease works again")
			return record, raw, err
		}
		waiting.log(ctx, "Waiting for the API server to read the leader lease", "lock", l.Describe(), "err", err)
		if err := pause(ctx, l.retry); err != nil {
			return nil, nil, err
		}
	}
}

// Create takes a lease that does not exist.
func (l *patientLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	began := l.term.clock.Now()
	err := l.Interface.Create(ctx, record)
	l.term.renewed(began, record.HolderIdentity == l.Identity() && err == nil)
	return err
}

// Update takes, renews or releases the lease.
func (l *patientLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	began := l.term.clock.Now()
	if record.HolderIdentity != l.Identity() {
		l.term.end()
	}
	err := l.Interface.Update(ctx, record)
	l.term.renewed(began, record.HolderIdentity == l.Identity() && err == nil)
	return err
}

// onceLogger logs the first of a row of equal events and the end of the row.
type onceLogger struct{ logged bool }

func (o *onceLogger) log(ctx context.Context, message string, keysAndValues ...any) {
	if !o.logged {
		klog.FromContext(ctx).WithCallDepth(1).Info(message, keysAndValues...)
	}
	o.logged = true
}

func (o *onceLogger) done(ctx context.Context, message string, keysAndValues ...any) {
	if o.logged {
		klog.FromContext(ctx).WithCallDepth(1).Info(message, keysAndValues...)
	}
	o.logged = false
}
