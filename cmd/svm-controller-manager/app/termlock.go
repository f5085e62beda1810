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
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	utilretry "k8s.io/client-go/util/retry"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-controller-manager/pkg/retry"
)

// termLock is the lease of an election. It restarts the term at each renewal and ends it for good when another process
// has held the lease since. It also keeps the election from logging an error every few seconds while the API server is
// down.
type termLock struct {
	resourcelock.Interface
	term         *leaderTerm
	retryPeriod  time.Duration
	stopElection func()
}

func (m *manager) newTermLock(leaseName string, term *leaderTerm, stopElection func()) (*termLock, error) {
	election := m.Generic.LeaderElection
	identity := resourcelock.ResourceLockConfig{Identity: m.id, EventRecorder: m.events}
	lock, err := resourcelock.NewFromKubeconfig(election.ResourceLock, election.ResourceNamespace, leaseName, identity,
		m.Kubeconfig, election.RenewDeadline.Duration)
	if err != nil {
		return nil, fmt.Errorf("setting up the lease %s/%s: %w", election.ResourceNamespace, leaseName, err)
	}
	return &termLock{lock, term, election.RetryPeriod.Duration, stopElection}, nil
}

// Get reads the lease.
//
// It waits while the API server does not answer, unless this process led and its term is over. Then the process has to
// end, so that a new one starts.
//
// If this process held the lease and does not hold it now, another leader has been at work. The election would take the
// lease again as soon as it is free, and the controllers would continue with what they knew before. So Get ends the
// term for good.
func (l *termLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	var failures retry.Streak
	for {
		record, raw, err := l.Interface.Get(ctx)
		if err == nil {
			failures.Succeeded(ctx, "Reading the leader lease works again")
			if l.term.everHeld() && record.HolderIdentity != l.Identity() {
				l.term.end()
				l.stopElection()
			}
			return record, raw, nil
		}
		if !retry.Unanswered(err) || l.term.everHeld() && l.term.over() {
			return nil, nil, err
		}
		failures.Failed(ctx, "unanswered", "Waiting for the API server to read the leader lease",
			"lock", l.Describe(), "err", err)
		if !retry.Pause(ctx, clock.RealClock{}, l.retryPeriod) {
			return nil, nil, ctx.Err()
		}
	}
}

// Create takes a lease that does not exist.
func (l *termLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.renew(func() error { return l.Interface.Create(ctx, record) })
}

// Update takes or renews the lease.
func (l *termLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.renew(func() error { return l.Interface.Update(ctx, record) })
}

func (l *termLock) renew(write func() error) error {
	if l.term.ended() {
		return errTermOver
	}
	sent := l.term.clock.Now()
	if err := write(); err != nil {
		return err
	}
	l.term.renewed(sent)
	return nil
}

// release ends the term and gives the lease back, unless another process holds it. It tries again after a conflict with
// a renewal that was under way when the election stopped.
func (l *termLock) release(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	l.term.end()
	err := utilretry.RetryOnConflict(utilretry.DefaultRetry, func() error {
		record, _, err := l.Interface.Get(ctx)
		if err != nil || record.HolderIdentity != l.Identity() {
			return err
		}
		now := metav1.Now()
		record.HolderIdentity, record.LeaseDurationSeconds = "", 1
		record.AcquireTime, record.RenewTime = now, now
		return l.Interface.Update(ctx, *record)
	})
	if err != nil {
		return fmt.Errorf("giving the lease %s back: %w", l.Describe(), err)
	}
	return nil
}
