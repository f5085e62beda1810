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

package svmigrator

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/retry"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	// Progress is stored after a chunk, but at most once in saveInterval. So a crash repeats one chunk, or the chunks of
	// this time if they are quick. Each denied object in the status adds saveIntervalOfDenied, because 100 of them may
	// take 100 kB.
	saveInterval         = 500 * time.Millisecond
	saveIntervalOfDenied = 50 * time.Millisecond
	// reportTimeout is for the write of the Running condition: the run does nothing else meanwhile. failureReportPeriod is
	// how often a run writes a condition about failing requests.
	reportTimeout       = 2 * time.Second
	failureReportPeriod = 15 * time.Second
)

// errStopped ends the run of a migration that must not write for now.
var errStopped = errors.New("the migration must not write for now")

// migrationRun is a migration that has a slot. It implements rewrite.Migration.
type migrationRun struct {
	env    *environment
	status *statusWriter
	// name, uid and resource are those of the migration. Other goroutines read them, but only the run uses status.
	name     string
	uid      types.UID
	resource schema.GroupResource
	runMemory
	// stop ends the run with a cause. The controller then decides again.
	stop context.CancelCauseFunc
	// ready has the migrations that wait for a slot.
	ready interface{ Len() int }

	// served is the resource as the engine rewrites it. locate sets it.
	served rewrite.Resource
	// withTarget is the migration with its target, or nil before the target is stored. Other goroutines use it to decide
	// whether the run must stop.
	withTarget atomic.Pointer[migrationv1alpha1.StorageVersionMigration]
	// ending means that this run is writing the end of the migration.
	ending atomic.Bool

	savedAt time.Time
	rate    rate
	failing retry.Streak
	// nextReport is when the Running condition may be written again after a write of it has failed.
	nextReport time.Time
}

// run rewrites the objects of the migration. It returns nil if the migration has ended.
func (r *migrationRun) run(ctx context.Context) error {
	if err := r.passGates(ctx); err != nil {
		return r.endPermanent(ctx, err)
	}
	defer r.withTarget.Store(nil)
	if storageversion.Expires(r.resource) {
		return r.tryExpired(ctx)
	}
	if r.cleans() {
		r.served.ReadServedVersions = r.readServedVersions
	}
	if err := r.env.engine.Run(ctx, r.task, r.served, r); err != nil {
		return r.endPermanent(ctx, err)
	}
	return r.finish(ctx)
}

// prepareTask makes the task of the run, unless an earlier run of this process has left one. If another process has
// begun the migration and stored no position, it looks for the earlier migration again. Somebody may have deleted that.
func (r *migrationRun) prepareTask(ctx context.Context, decision Decision) {
	m := r.status.stored
	var position sweep.Position
	var only []migrationv1alpha1.DeniedObject
	if m.Begun() {
		logger := klog.FromContext(ctx)
		if r.stuck || m.Status.SweepCompletionTime != nil || storageversion.Expires(r.resource) {
			logger = logger.V(4) // Many such runs may follow each other.
		}
		logger.Info("Migration continues", "target", versionOfTarget(m.Status.Target), "progress", shown(m.Status.Progress))
		if r.task != nil {
			return
		}
		position = positionOf(&m.Status)
	}
	before := r.earlierWithDenied(decision.Target)
	if before != nil && (!m.Begun() || m.Status.Progress == nil) {
		klog.FromContext(ctx).Info("Rewriting what an earlier migration could not rewrite",
			"earlier", before.Name, "objects", objectsLeft(&before.Status))
		position, only = positionAfter(before), allDenied(before)
	}
	r.task = rewrite.NewTask(r.served.Class, position)
	r.task.Only, r.task.Stuck = only, r.stuck
}

// storeTarget stores the target and the time of the start before any object is written, unless an earlier run has
// stored them, and writes the condition. A later run leaves a condition that says why the last one could not continue:
// it was stuck, or it was postponed.
func (r *migrationRun) storeTarget(ctx context.Context, decision Decision) error {
	err := r.status.update(ctx, func(status *migrationv1alpha1.StorageVersionMigrationStatus, now time.Time) {
		begun := status.StartTime != nil && status.Target != nil
		if !begun {
			*status = migrationv1alpha1.StorageVersionMigrationStatus{
				Conditions: status.Conditions, Target: decision.Target, Evidence: decision.Evidence,
				// Rounded up, so that nothing was written before that time: a proof must be younger than what it proves.
				StartTime: new(metav1.NewTime(migrationv1alpha1.RoundUp(now))),
			}
		}
		switch {
		case begun && (r.saysStuck(status) || r.saysPostponed(status)):
		case storageversion.Expires(r.resource):
			waiting(ObjectsExpire())(status, now)
		default:
			running(status.Target, rewrite.Report{Phase: rewrite.Rewriting})(status, now)
		}
	})
	if err != nil {
		return err
	}
	r.withTarget.Store(r.status.stored)
	// A change that came before this could not stop the run, so decide once more.
	if r.mustStop() {
		return errStopped
	}
	return nil
}

// mustStop reports whether a run that has stored its target must not write any more. If the content of the definition
// has changed, the next run goes on: it knows which fields a rewrite drops, and which defaults it adds.
func (r *migrationRun) mustStop() bool {
	m := r.withTarget.Load()
	if m == nil {
		return false
	}
	observation := r.env.observer.Observe(r.resource)
	return !observation.ContentSince.Equal(r.contentSince) || r.env.decideCached(m).Verdict != Go
}

// readServedVersions returns the versions that are served. They come from the definition: a version of the group in the
// discovery document may serve only other resources.
func (r *migrationRun) readServedVersions(ctx context.Context) ([]string, error) {
	definition, err := r.env.documents.Definition(ctx, r.resource)
	if err != nil {
		return nil, err
	}
	return definition.ServedVersions(), nil
}

// cleans reports whether the managedFields of the objects have to be cleaned.
func (r *migrationRun) cleans() bool {
	return r.served.Class == storageversion.Custom && r.env.options.CleanManagedFields
}

// SavePosition stores the position, unless a position was stored a moment ago.
func (r *migrationRun) SavePosition(ctx context.Context, position sweep.Position) error {
	interval := saveInterval + time.Duration(len(position.Denied))*saveIntervalOfDenied
	if !position.Complete && r.env.clock.Since(r.savedAt) < interval {
		return nil
	}
	perMinute := r.rate.perMinute(r.env.clock.Now(), position.Counts.Processed())
	err := r.status.update(ctx, putPosition(position, perMinute))
	r.savedAt = r.env.clock.Now()
	return err
}

// ObjectDone counts the object.
func (r *migrationRun) ObjectDone(object *sweep.Object, outcome sweep.Outcome) {
	outcomes.WithLabelValues(outcome.String()).Inc()
	// The answer to an earlier attempt may have been lost.
	if outcome == sweep.Rewritten || outcome == sweep.WrittenByOthers && object.Tries > 0 {
		r.env.space.rewritten(r.resource)
	}
	if outcome.Migrated() || outcome == sweep.Gone {
		migratedObjects.WithLabelValues(r.resource.String()).Inc()
	}
}

// ReportPhase writes the Running condition if the phase has changed, and every failureReportPeriod while requests fail.
// If the write fails, a later report repeats it.
func (r *migrationRun) ReportPhase(ctx context.Context, report rewrite.Report) {
	now := r.env.clock.Now()
	retrying := report.Phase == rewrite.RetryingRequests || report.Phase == rewrite.Stuck
	c := r.status.stored.Status.Condition(migrationv1alpha1.MigrationRunning)
	// Abs, because the clock may have been set back since then.
	said := c != nil && c.Reason == string(report.Phase) &&
		(!retrying || now.Sub(c.LastUpdateTime.Time).Abs() < failureReportPeriod)
	if said || now.Before(r.nextReport) {
		return
	}
	if retrying {
		r.failing.Failed(ctx, "retrying", "Requests fail and are repeated", "what", report.Retry)
	} else {
		r.failing.Succeeded(ctx, "Requests succeed again")
	}
	ctx, cancel := context.WithTimeout(ctx, reportTimeout)
	defer cancel()
	if err := r.status.update(ctx, running(r.status.stored.Status.Target, report)); err != nil {
		r.nextReport = now.Add(failureReportPeriod)
		klog.FromContext(ctx).V(2).Info("Writing the Running condition failed, will retry", "err", err)
	}
}

// reportFailure writes the Waiting condition when runs keep failing because of requests that are not for objects, for
// example requests for discovery documents.
func (r *migrationRun) reportFailure(ctx context.Context, cause error) {
	now := r.env.clock.Now()
	r.failingSince = cmp.Or(r.failingSince, now)
	if now.Sub(r.failingSince) < rewrite.ReportAfter {
		return
	}
	decision := waitDecision(migrationv1alpha1.MigrationReasonRetrying,
		"requests have failed since %s and are repeated: %v", r.failingSince.UTC().Format(time.RFC3339), cause)
	if errors.Is(cause, controller.ErrOutdated) {
		decision = notAgreed("the manager waits for the latest change of what it watches: %v", cause)
	}
	if err := r.status.write(ctx, waiting(decision)); err != nil {
		klog.FromContext(ctx).V(2).Info("Writing the Waiting condition failed, will retry", "err", err)
	}
}

// MustYield reports whether other migrations wait for a slot.
func (r *migrationRun) MustYield() bool { return r.ready.Len() > 0 }

// postponed ends the run of a migration that must not run again before a time. The Waiting condition says why.
type postponed struct {
	why       Decision
	notBefore time.Time
}

func (p *postponed) Error() string { return "postponed until " + p.notBefore.Format(time.RFC3339) }

// postpone writes the Waiting condition, and returns an error that ends the run until the delay has passed.
func (r *migrationRun) postpone(ctx context.Context, delay time.Duration, why Decision) error {
	if err := r.status.write(ctx, waiting(why)); err != nil {
		return err
	}
	return &postponed{why, r.env.clock.Now().Add(delay)}
}
