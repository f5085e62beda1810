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
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/component-base/version"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/fence"
	"sigs.k8s.io/svm-controller-manager/pkg/retry"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// termLock is the lease of an election. It restarts the term at each renewal, and ends the election once the term is
// over. It also keeps the election from logging an error every few seconds while the lease cannot be read.
type termLock struct {
	*resourcelock.LeaseLock
	term         *leaderTerm
	retryPeriod  time.Duration
	stopElection func()
	mayRelease   atomic.Bool           // set once nothing runs that writes
	renewedAt    time.Time             // the time in the lease as it was last written; only the election uses it
	endedBy      atomic.Pointer[error] // the error that says that etcd was restored, if that ended the term
	fenceLabel   func() string         // returns the label that the next write gives to the lease
}

// Get reads the lease. It waits while that is not possible. Once the term is over, it ends the election.
func (l *termLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	var failures retry.Streak
	for !l.term.over() {
		record, raw, err := l.LeaseLock.Get(ctx)
		if l.term.begun() && l.judge(record, err) {
			l.term.end()
			break
		}
		switch {
		case err == nil:
			failures.Succeeded(ctx, "Reading the leader lease works again")
			return record, raw, nil
		case apierrors.IsNotFound(err):
			return nil, nil, err // The election creates the lease.
		default:
			l.logFailure(ctx, &failures, err)
			if !retry.Sleep(ctx, clock.RealClock{}, l.retryPeriod) {
				return nil, nil, ctx.Err()
			}
		}
	}
	l.stopElection()
	return nil, nil, errTermOver
}

// judge reports whether what a read of the lease returned ends a term that has begun. It does if another process holds
// the lease, if the lease is gone, or if it is older than this process has written it: then somebody has restored etcd.
//
// The process then has to end, so that a new one starts: another leader may have been at work. The election would take
// the lease again as soon as it is free, and the controllers would continue with what they knew before.
func (l *termLock) judge(record *resourcelock.LeaderElectionRecord, err error) (over bool) {
	switch {
	case err != nil:
		return controller.SaysMissing(err, coordinationv1.Resource("leases"), l.LeaseMeta.Name)
	case record.HolderIdentity != l.Identity():
		return true
	case record.RenewTime.Time.Before(l.renewedAt):
		l.endedBy.Store(new(fmt.Errorf("the leader lease was renewed at %s, and says %s: %w",
			l.renewedAt.Format(time.RFC3339Nano), record.RenewTime.Format(time.RFC3339Nano), storageversion.ErrRestored)))
		return true
	default:
		return false
	}
}

func (l *termLock) logFailure(ctx context.Context, failures *retry.Streak, err error) {
	kind, message := "refused", "The API server refuses to let this process read the leader lease, will retry. Check the "+
		"permissions of the manager for Leases"
	switch {
	case retry.IsUnanswered(err):
		kind, message = "unanswered", "Cannot read the leader lease because the API server does not answer, will retry"
	case apierrors.IsUnauthorized(err):
		kind, message = "unauthorized", "Cannot read the leader lease because the API server refuses the credentials, will "+
			"retry. Check those of --kubeconfig or of the service account"
	}
	failures.Failed(ctx, kind, message, "lock", l.Describe(), "err", err)
}

// Create takes a lease that does not exist.
func (l *termLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.renew(ctx, l.LeaseLock.Create, record)
}

// Update takes, renews or releases the lease. The election also asks for a release when it could not renew the lease,
// while controllers still run. Update then leaves the lease to expire.
func (l *termLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" && !l.mayRelease.Load() {
		return nil
	}
	return l.renew(ctx, l.LeaseLock.Update, record)
}

// renew writes the lease. If the election stops meanwhile, the request gets one more retry period to end: otherwise the
// election would log the cancelled request as an error.
func (l *termLock) renew(
	ctx context.Context, write func(context.Context, resourcelock.LeaderElectionRecord) error,
	record resourcelock.LeaderElectionRecord,
) error {
	if l.term.over() {
		return errTermOver
	}
	l.Labels = map[string]string{fence.Label: l.fenceLabel(), names.VersionLabel: versionLabel(version.Get().GitVersion)}
	request, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(l.retryPeriod, cancel) })()
	renewal := record.RenewTime.Time.Truncate(time.Microsecond) // as the API stores it
	if renewal.Before(l.renewedAt) {
		l.renewedAt = renewal // Somebody has set the clock back, and the answer to this may be lost.
	}
	sent := l.term.clock.Now()
	if err := write(request, record); err != nil {
		return err
	}
	l.term.renewed(sent)
	l.renewedAt = renewal
	return nil
}

// versionLabel returns a version as the value of a label, which has no plus sign. It is empty for a version that is no
// such value, like that of a program which was built without one.
func versionLabel(release string) string {
	release = strings.ReplaceAll(release, "+", "_")
	if len(validation.IsValidLabelValue(release)) > 0 {
		return ""
	}
	return release
}

// afterRun takes the error of runControllers, and returns the error that ends the process. It lets the election release
// the lease if the controllers have ended and the lease is held.
func (l *termLock) afterRun(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, errStillRunning):
		if endedBy := l.endedBy.Load(); endedBy != nil {
			err = errors.Join(*endedBy, err)
		}
		return err
	case l.term.mayNotWrite() || err == nil && ctx.Err() == nil:
		// If nobody asked the process to stop and there is no error, only the loss of the lease can have ended the
		// controllers.
		return errors.Join(*cmp.Or(l.endedBy.Load(), &errLeaseLost), err)
	default:
		l.mayRelease.Store(true)
		return err
	}
}
