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
	"context"
	"errors"
	"time"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// A migration passes these gates, in this order, before it rewrites anything. While it waits, its status says why.
//
// In sync, on cached objects, whenever something may have changed:
//
//  1. Decide says Go: nobody has suspended it, and the servers agree on its target (decide.go). While it waits for
//     that, it fails if nobody serves its resource (failIfNotServed in served.go).
//  2. Every server follows the CustomResourceDefinition (followers.go).
//  3. etcd has space (space.go), unless the migration writes no object.
//  4. The delay after its last run is over.
//  5. No other migration of the resource runs. Then it waits for a free slot (queue.go).
//
// In its run:
//
//  6. The growth of etcd is measured (space.go), unless the migration writes no object. The next gates are checked on
//     the migration as the API server has it.
//  7. The server of an aggregated group was read once more. Decide still says Go, and all servers still follow the
//     definition of a custom resource.
//  8. kube-controller-manager does not migrate the resource (intree.go).
//  9. The resource is served (locate in served.go). The definition of a custom resource is the one that was observed.
//  10. The target and the time of the start are stored (storeTarget).

// sync does everything about a migration that needs no slot. It fails a migration that cannot succeed, writes into the
// status what a migration waits for, queues a migration that may write, and deletes one that ended long ago.
func (c *Controller) sync(ctx context.Context, name string) (again time.Time, err error) {
	m := c.env.caches.Migration(name)
	if m == nil || m.DeletionTimestamp != nil {
		return time.Time{}, nil
	}
	ctx = withMigration(ctx, m)
	if m.Finished() {
		return c.deleteFinished(ctx, m)
	}
	if c.runs.runOfMigration(m) != nil {
		return time.Time{}, nil
	}
	decision, err := c.checkGatesBeforeSlot(ctx, m)
	if err != nil {
		return time.Time{}, err
	}
	says, again := &decision, decision.DecideAt
	if decision.Verdict == Go {
		var ready bool
		if ready, says, again = c.readiness(m); ready {
			c.ready.Add(m.Name) // Now, because it may not be ready any more after a request.
		}
	}
	status := &statusWriter{env: c.env, stored: m}
	switch {
	case says == nil: // The status stays as it is.
	case says.Verdict == Fail:
		err = status.write(ctx, failed(*says)) // If somebody has just suspended it, another decision follows.
	default:
		err = status.write(ctx, waiting(*says))
	}
	if errors.Is(err, errMigrationGone) || errors.Is(err, controller.ErrOutdated) {
		err = nil // An event about the change queues the migration again.
	}
	return again, err
}

// checkGatesBeforeSlot checks the gates that need no slot.
func (c *Controller) checkGatesBeforeSlot(
	ctx context.Context, m *migrationv1alpha1.StorageVersionMigration,
) (decision Decision, err error) {
	if decision, err = c.env.decide(ctx, m); err != nil {
		return Decision{}, err
	}
	if decision.Verdict == Wait {
		decision = c.failIfNotServed(ctx, m, decision)
	}
	if decision.Verdict == Go {
		decision = c.env.followers.check(m, decision)
	}
	if pause := c.env.space.paused(); pause != nil && decision.Verdict == Go && !writesNoObject(m) {
		decision = pause.until(c.env.clock.Now().Add(spaceRetry))
	}
	return decision, nil
}

// readiness reports whether a migration that may write is ready for a slot. says is why it waits for one, or nil if the
// status stays as it is. again is when to decide again, or zero if an event says so.
func (c *Controller) readiness(
	m *migrationv1alpha1.StorageVersionMigration,
) (ready bool, says *Decision, again time.Time) {
	now, memory := c.env.clock.Now(), c.runs.memoryOf(m)
	switch {
	case now.Before(memory.notBefore):
		return false, memory.whyPostponed, memory.notBefore
	case c.ready.NumRequeues(m.Name) > 0:
		return false, nil, time.Time{} // Its last run failed. It is queued again when the backoff is over.
	}
	other := c.runs.runOf(m.GroupResource())
	ready = other == nil // Otherwise it is queued again when the run of the other one has ended.
	var queued Decision
	switch {
	case memory.saysStuck(&m.Status) || memory.saysPostponed(&m.Status):
		return ready, nil, time.Time{} // The status already says why it waits, and Queued would say less.
	case !ready:
		queued = waitDecision(migrationv1alpha1.MigrationReasonQueued, "the migration %s of the same resource runs. "+
			"This one starts when that one has ended or gives up its slot", other.name)
	case c.ready.Len() > 0 || len(c.runs.all()) >= c.env.options.ConcurrentMigrations:
		queued = waitDecision(migrationv1alpha1.MigrationReasonQueued, "as many migrations run as "+
			"--concurrent-migrations allows, or others come first. This one starts when a slot is free")
	default:
		return ready, nil, now.Add(minRequeue) // A run begins now.
	}
	return ready, &queued, time.Time{}
}

// passGates checks gates 6 to 9 and stores the target (10). It returns an error if a gate is closed. If the error is
// errStopped, the run ends, and sync finds the gate and writes it into the status.
func (r *migrationRun) passGates(ctx context.Context) error {
	if !writesNoObject(r.status.stored) && !r.env.space.mayBegin(ctx) {
		return errStopped
	}
	// The cache may not have what the last run wrote yet.
	if err := r.status.refresh(ctx); err != nil {
		return err
	}
	readErr := r.env.readAggregated(ctx, r.resource)
	observation := r.env.observer.Observe(r.resource) // Before the decision, which is then at least as recent.
	decision, err := r.env.decide(ctx, r.status.stored)
	if err != nil {
		return err
	}
	if decision.Verdict != Go || r.env.followers.check(r.status.stored, decision).Verdict != Go {
		return errStopped // sync says why it waits.
	}
	if readErr != nil { // A decision to wait explains more than this error, so it comes first.
		return readErr
	}
	if err := r.checkInTree(ctx); err != nil {
		return err
	}
	err = r.locate(ctx, decision.Target)
	if _, permanent := errors.AsType[*rewrite.PermanentError](err); permanent &&
		observation.Class == storageversion.Custom {
		// Somebody may have changed the definition a moment ago, and discovery may be ahead of the watch, or behind it.
		if _, late := r.env.observedDefinition(ctx, observation); late != nil {
			return late
		}
	}
	if r.servedElsewhere(err) {
		why := "another API server does"
		if observation.Class == storageversion.Custom {
			why = "its CustomResourceDefinition exists"
		}
		return r.postpone(ctx, maxRequeue, notAgreed(
			"the API server that the manager uses does not serve %s, although %s. The migration continues when that server "+
				"serves it too", r.resource, why))
	}
	if err != nil {
		return err
	}
	if schemas := r.served.Schemas; schemas != nil {
		// Somebody may have changed the definition a moment ago, and created the migration after that.
		if err := checkObserved(schemas.UID, schemas.Generation, observation); err != nil {
			return err
		}
	}
	if r.task != nil && !r.contentSince.Equal(observation.ContentSince) {
		r.task.ForgetListed()
	}
	r.contentSince = observation.ContentSince
	r.prepareTask(ctx, decision)
	return r.storeTarget(ctx, decision)
}
