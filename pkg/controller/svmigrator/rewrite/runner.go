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

package rewrite

import (
	"cmp"
	"context"
	"sync"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

const (
	// A request whose failure may pass is repeated after minResend, doubling up to maxResend.
	minResend    = 500 * time.Millisecond
	maxResend    = 30 * time.Second
	maxDoublings = 10

	// The runner gives up on an object if the API server failed on it, or did not answer in time, at least giveUpFailures
	// times and for giveUpTime, and if at most giveUpMost objects of the chunk are unfinished and it accepted others. Then
	// the object counts as denied, and is tried once more when all others are done. If more are unfinished, there may be
	// an outage, for example of a webhook. Then the runner waits, but not longer than outageAtMost, because the next
	// chunks wait too.
	giveUpFailures = 3
	giveUpTime     = 2 * time.Minute
	giveUpMost     = 10
	outageAtMost   = 30 * time.Minute

	// If commonDenialsAtLeast rewrites lacked the permission, or would change the object, and none succeeded, the run
	// fails and tries no other object. Of those that would change the object, at most commonDenialsOfNamespace of each
	// namespace count: see commonDenials.
	commonDenialsAtLeast     = 100
	commonDenialsOfNamespace = 10
	// maxDenialLines is how many denied objects each try of a run logs at the default verbosity.
	maxDenialLines = 100

	// A server that has just started may answer for a moment that it does not serve the resource, or that listing or
	// writing objects is forbidden. So for startPatience the runner repeats such requests. After that the run fails, or,
	// if writing an object is forbidden, the object is denied.
	startPatience = 15 * time.Second
)

// Subsystem begins the names of the migrator's metrics.
const Subsystem = "storage_version_migrator"

// RetriedRequests counts the rewrites that were repeated. The program that runs the engine registers it.
var RetriedRequests = controller.NewCounter(Subsystem, "retried_rewrites_total",
	"Number of rewrites that were sent again, by the kind of failure, for example Overloaded.", "failure")

// sweepRunner drives one sweep: it sends the requests that the sweep asks for, and reports their results to the sweep.
type sweepRunner struct {
	*sweepState
	clock     clock.WithTicker
	lane      *pacer.Lane
	turn      time.Duration // see NewEngine
	task      *Task
	migration Migration
	// normal is the phase while no request fails. If it is RetryingDenied, the runner saves no positions, and an object
	// that it gives up on is not tried again.
	normal Phase
	// list returns the chunk that a continue token stands for.
	list func(ctx context.Context, token string) (sweep.Chunk, error)
	// rewrite rewrites one object. Many goroutines call it at once.
	rewrite func(ctx context.Context, object *sweep.Object) tryResult

	goroutines sync.WaitGroup
	tryResults chan tryResult
	lists      chan listing

	// objectsFailing and listFailing describe the latest failures of this run.
	objectsFailing, listFailing FailingRequests
	// denials counts the denied objects.
	denials int
	// pastStart is true after one object was refused for startPatience: from then on a refusal is not that of an API
	// server that has just started.
	pastStart bool
	// turnOver means that no request is sent any more, and that the run ends when nothing is in flight.
	turnOver bool
	// impatient means that the runner gives up on an object even if many objects fail.
	impatient bool
	// endingSince is when failures began that end the run if they go on. It is zero if the last answer was another one.
	endingSince time.Time
}

// run returns nil when every object has its outcome and the final position is saved. All its goroutines have ended when
// it returns.
func (r *sweepRunner) run(ctx context.Context) (err error) {
	if !r.task.Stuck {
		r.migration.ReportPhase(ctx, Report{Phase: r.normal})
	}
	ctx, cancel := context.WithCancel(ctx)
	r.tryResults, r.lists = make(chan tryResult), make(chan listing, 1)
	work := make(chan *sweep.Object)
	r.goroutines.Go(func() { r.dispatch(ctx, work) })
	defer func() {
		cancel()
		err = cmp.Or(r.drain(ctx), err)
		r.goroutines.Wait()
		r.lastEnd = r.runTime(r.clock.Now())
	}()
	ticker := r.clock.NewTicker(reportPeriod)
	defer ticker.Stop()
	for {
		if err := r.advance(ctx); err != nil || r.sweep.Complete() {
			return err
		}
		// A run without progress goes on: the next one would begin the same list anew.
		r.turnOver = r.turn > 0 && r.clock.Since(r.task.began) >= r.turn && r.task.advanced && r.migration.MustYield()
		r.startList(ctx)
		if err := r.step(ctx, work, ticker.C()); err != nil {
			return err
		}
	}
}

func (r *sweepRunner) runTime(now time.Time) sweep.RunTime {
	return r.lastEnd + sweep.RunTime(now.Sub(r.task.began))
}

// step waits for the next thing to happen, and handles it.
func (r *sweepRunner) step(ctx context.Context, work chan<- *sweep.Object, tick <-chan time.Time) error {
	if r.turnOver && r.sweep.InFlight() == 0 && !r.sweep.Listing() {
		return ErrTurnOver
	}
	now := r.clock.Now()
	object := r.sweep.Next(now)
	if object == nil || r.turnOver || now.Before(r.heldUntil) {
		work = nil // blocks
	}
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case work <- object:
		r.sweep.Take(object, r.runTime(now))
	case a := <-r.tryResults:
		return r.handleTry(ctx, a)
	case l := <-r.lists:
		return r.handleList(ctx, l)
	case <-tick:
		now := r.clock.Now()
		if report, sure := r.report(now); sure {
			r.task.Stuck = report.Phase == Stuck
			r.migration.ReportPhase(ctx, report)
		}
		if r.task.Idle(now) >= StuckAfter && r.migration.MustYield() {
			r.task.Stuck = true
			return ErrStuck
		}
	}
	return nil
}

// dispatch sends objects as fast as the pacer allows.
func (r *sweepRunner) dispatch(ctx context.Context, work <-chan *sweep.Object) {
	defer utilruntime.HandleCrashWithContext(ctx)
	for {
		select {
		case <-ctx.Done():
			return
		case object := <-work:
			permit, err := r.lane.Acquire(ctx)
			if err != nil {
				r.tryResults <- tryResult{object: object, failure: Failure{kind: interrupted}}
				return
			}
			r.goroutines.Go(func() {
				defer utilruntime.HandleCrashWithContext(ctx)
				a := r.rewrite(ctx, object)
				permit.Release(a.paceResult())
				r.tryResults <- a
			})
		}
	}
}

// drain waits for the answers to the requests in flight when the run ends. An answer counts even if the run has failed
// or was stopped. drain returns an error if one of them says that etcd was restored.
func (r *sweepRunner) drain(ctx context.Context) (restored error) {
	for r.sweep.InFlight() > 0 {
		a := <-r.tryResults
		restored = cmp.Or(restored, a.restored)
		if a.outcome != sweep.NoOutcome && !r.mayBeUnready(a, r.clock.Now()) {
			r.done(ctx, a)
			_ = r.checkCommonDenials(a) // It counts the denial. The next run finds the error again.
		} else {
			r.sweep.Return(a.object)
		}
	}
	r.sweep.ListFailed()
	return restored
}

// advance saves the position after each finished chunk, and moves on. It restarts the sweep if the list has to start
// from the beginning.
func (r *sweepRunner) advance(ctx context.Context) error {
	for {
		position, done := r.sweep.ChunkDone()
		if r.restart && r.sweep.UnfinishedInChunk() == 0 {
			r.restart = false
			r.sweep.Restart()
			r.forgetDenials()
			return nil
		}
		if !done {
			return nil
		}
		if !r.isSecondSweep() {
			if err := r.migration.SavePosition(ctx, position); err != nil {
				return err
			}
			klog.FromContext(ctx).V(4).Info("Chunk done", "counts", position.Counts, "complete", position.Complete)
		}
		r.sweep.Advance()
	}
}

// handleTry handles the result of one request.
func (r *sweepRunner) handleTry(ctx context.Context, a tryResult) error {
	now := r.clock.Now()
	if a.restored != nil {
		r.sweep.Return(a.object)
		return a.restored
	}
	if a.outcome == sweep.NoOutcome {
		return r.handleFailure(ctx, a, now)
	}
	if r.mayBeUnready(a, now) {
		if next := r.retry(ctx, a, now); r.migrated() == 0 && next.After(r.heldUntil) {
			// Until one object is migrated, the server gives all objects this answer. So none is sent before this retry.
			r.heldUntil = next
		}
		return nil
	}
	r.endingSince = time.Time{}
	r.done(ctx, a)
	if r.task.changed.kind == changesObject {
		return r.task.changed.permanentError()
	}
	return r.checkCommonDenials(a)
}

// handleFailure handles a request after which the object has no outcome. In general it is tried again.
func (r *sweepRunner) handleFailure(ctx context.Context, a tryResult, now time.Time) error {
	if a.failure.kind == interrupted {
		r.sweep.Return(a.object)
		return nil
	}
	if err := r.checkPermanent(a.failure); err != nil {
		r.sweep.Return(a.object)
		return err
	}
	if a.failure.kind == unreachable {
		a.object.Failures, a.object.Refusals = 0, 0 // Nobody knows what was wrong with the object meanwhile.
	}
	if a.failure.kind.mayBeObject || a.failure.timedOut {
		if a.object.Failures++; a.object.Failures == 1 {
			a.object.FailingSince = r.runTime(now)
		}
		if r.givesUpOn(a.object, now) {
			a.outcome = sweep.Denied
			r.done(ctx, a)
			return nil
		}
	}
	if a.failure.kind == aggregatedAway && a.failure.retryAfter > 0 {
		r.heldUntil = now.Add(a.failure.retryAfter) // The pacer would hold the other migrations as well.
	}
	r.retry(ctx, a, now)
	return nil
}

// mayBeUnready reports whether an object was refused in a way in which an API server refuses everything when it has
// just started, and notes when that began. If one object was refused for startPatience, a start is not the reason.
func (r *sweepRunner) mayBeUnready(a tryResult, now time.Time) bool {
	if a.outcome != sweep.Denied || !a.failure.unready() || r.pastStart {
		return false
	}
	if a.object.Refusals++; a.object.Refusals == 1 || a.object.Failures > 0 { // Other failures are over.
		a.object.Failures, a.object.FailingSince = 0, r.runTime(now)
	}
	r.pastStart = r.runTime(now).Sub(a.object.FailingSince) >= startPatience
	return !r.pastStart
}

// retry returns when an object is tried again.
func (r *sweepRunner) retry(ctx context.Context, a tryResult, now time.Time) (next time.Time) {
	next = now.Add(max(RetryDelay(a.object.Tries+1), a.failure.retryAfter))
	r.sweep.Retry(a.object, next)
	RetriedRequests.WithLabelValues(a.failure.kind.name).Inc()
	name := klog.KRef(a.object.Namespace, a.object.Name)
	r.objectsFailing = FailingRequests{Example: name.String(), Failure: a.failure}
	klog.FromContext(ctx).V(4).Info("Rewriting failed, will retry", "object", name, "failure", a.failure, "next", next)
	return next
}

// done gives an object its outcome.
func (r *sweepRunner) done(ctx context.Context, a tryResult) {
	logger, name := klog.FromContext(ctx), klog.KRef(a.object.Namespace, a.object.Name)
	switch {
	case a.outcome == sweep.Denied:
		if r.denials++; r.denials > maxDenialLines {
			logger = logger.V(4)
		}
		logger.Info("Not rewriting an object", "object", name, "uid", a.object.UID, "reason", a.failure)
	case r.isSecondSweep():
		logger.V(2).Info("Rewrote an object that was denied before", "object", name, "outcome", a.outcome)
	default:
		logger.V(6).Info("Object done", "object", name, "outcome", a.outcome)
	}
	if a.failure.kind == changesObject {
		r.task.changed = a.failure
	}
	r.task.progressed(r.clock.Now())
	r.sweep.Done(a.object, a.outcome,
		truncate(a.failure.reason, migrationv1alpha1.MaxDeniedObjectReasonLength),
		truncate(a.failure.message, migrationv1alpha1.MaxDeniedObjectMessageLength))
	r.migration.ObjectDone(a.object, a.outcome)
}

func (r *sweepRunner) isSecondSweep() bool { return r.normal == RetryingDenied }

// checkPermanent returns the error that ends the run, or nil if the request has to be repeated. Some failures are
// permanent only after startPatience.
func (r *sweepRunner) checkPermanent(f Failure) error {
	if f.kind.ends.Reason == "" {
		r.endingSince = time.Time{}
		return nil
	}
	now := r.clock.Now()
	r.endingSince = cmp.Or(r.endingSince, now)
	if !f.kind.atOnce && now.Sub(r.endingSince) < startPatience {
		return nil
	}
	return f.permanentError()
}
