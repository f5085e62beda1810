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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// releaseTries is how often a release is tried: a renewal that was under way when the election stopped may come between.
const releaseTries = 3

// termLock is the lease of an election. It tells the term of each renewal, and ends it for good when somebody else has held
// the lease since; and it keeps the election quiet while the API server is away.
type termLock struct {
	resourcelock.Interface
	term   *leaderTerm
	retry  time.Duration
	giveUp func()
}

func (m *manager) newTermLock(leaseName string, term *leaderTerm, giveUp func()) (*termLock, error) {
	election := m.Generic.LeaderElection
	lock, err := resourcelock.NewFromKubeconfig(election.ResourceLock, election.ResourceNamespace, leaseName,
		resourcelock.ResourceLockConfig{Identity: m.id, EventRecorder: m.events}, m.Kubeconfig, election.RenewDeadline.Duration)
	if err != nil {
		return nil, fmt.Errorf("setting up the lease %s/%s: %w", election.ResourceNamespace, leaseName, err)
	}
	return &termLock{Interface: lock, term: term, retry: election.RetryPeriod.Duration, giveUp: giveUp}, nil
}

// Get reads the lease.
//
// It waits for an API server that cannot be reached, and logs that once, where the election would log an error at every try.
// It does not wait once the term is over: then somebody is to start anew.
//
// A lease that was ours and is not has had another leader. The election would take it again as soon as it is free, and
// controllers would go on with what they knew before: the term ends for good instead.
func (l *termLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	var waiting rowLogger
	for {
		record, raw, err := l.Interface.Get(ctx)
		if err == nil {
			waiting.done(ctx, "Reading the leader lease works again")
			if l.term.everHeld() && record.HolderIdentity != l.Identity() {
				l.term.end()
				l.giveUp()
			}
			return record, raw, nil
		}
		if !unreachable(err) || l.term.everHeld() && l.term.over() {
			return nil, nil, err
		}
		waiting.log(ctx, "Waiting for the API server to read the leader lease", "lock", l.Describe(), "err", err)
		if err := pause(ctx, l.retry); err != nil {
			return nil, nil, err
		}
	}
}

// Create takes a lease that does not exist.
func (l *termLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.hold(func() error { return l.Interface.Create(ctx, record) })
}

// Update takes or renews the lease.
func (l *termLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.hold(func() error { return l.Interface.Update(ctx, record) })
}

func (l *termLock) hold(write func() error) error {
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

// release ends the term and gives the lease back, if it is still ours.
func (l *termLock) release(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	l.term.end()
	var err error
	for range releaseTries {
		var record *resourcelock.LeaderElectionRecord
		if record, _, err = l.Interface.Get(ctx); err != nil {
			break
		}
		if record.HolderIdentity != l.Identity() {
			return nil
		}
		now := metav1.Now()
		record.HolderIdentity, record.LeaseDurationSeconds = "", 1
		record.AcquireTime, record.RenewTime = now, now
		if err = l.Interface.Update(ctx, *record); !apierrors.IsConflict(err) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("giving the lease %s back: %w", l.Describe(), err)
	}
	return nil
}
