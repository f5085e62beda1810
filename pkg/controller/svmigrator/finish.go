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
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/retry"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// finish ends a migration whose objects all have outcomes. It tries until that succeeds or the run must stop.
func (r *migrationRun) finish(ctx context.Context) error {
	began := r.env.clock.Now()
	for try := 1; ; try++ {
		err := r.tryFinish(ctx)
		_, isPostponed := errors.AsType[*postponed](err)
		switch {
		case err == nil, isPostponed, errors.Is(err, errStopped), errors.Is(err, errMigrationGone),
			controller.EndsManager(err) != nil:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		}
		now, delay := r.env.clock.Now(), max(minRequeue, rewrite.RetryDelay(try))
		klog.FromContext(ctx).V(4).Info("The migration cannot be ended yet, will retry", "err", err)
		if now.Sub(began) > rewrite.ReportAfter {
			phase := r.task.FailingPhase(now)
			r.task.Stuck = phase == rewrite.Stuck
			r.ReportPhase(ctx, rewrite.Report{Phase: phase, Retry: rewrite.FailingRequests{
				What: "All objects are done, but ending the migration has failed", Failure: rewrite.Classify(err, ""),
				Since: began, Next: now.Add(delay),
			}})
		}
		if r.task.Idle(now) >= rewrite.StuckAfter && r.MustYield() {
			return rewrite.ErrStuck
		}
		if !retry.Sleep(ctx, r.env.clock, delay) {
			return context.Cause(ctx)
		}
	}
}

// tryFinish checks everything that a success depends on, and ends the migration. It reads the StorageState, Leases, the
// definition and discovery documents from the API server. For the rest it relies on the watches of the observer.
func (r *migrationRun) tryFinish(ctx context.Context) error {
	m := r.status.stored
	if err := r.env.observer.CheckLeases(ctx); err != nil {
		return err
	}
	if err := r.env.readAggregated(ctx, r.resource); err != nil {
		return err
	}
	decision, err := r.env.decideLive(ctx, m)
	switch {
	case err != nil:
		return err
	case decision.Verdict == Fail:
		return r.end(ctx, failed(decision))
	case decision.Verdict != Go:
		return errStopped
	}
	observation := r.env.observer.Observe(r.resource)
	if from := observation.CertainFrom; !from.IsZero() {
		return fmt.Errorf("an API server may have crashed and started again just before it was read. The migration can "+
			"end after %s, when etcd has shown that it did not", from.UTC().Format(time.RFC3339))
	}
	left := objectsLeft(&m.Status)
	switch r.served.Class {
	case storageversion.Custom:
		err := r.env.everyServerFollows(ctx, &observation, m.Status.Target.StorageVersionHash)
		if errors.Is(err, errLags) {
			return r.end(ctx, failed(failDecision(migrationv1alpha1.MigrationReasonAgreementLost,
				"%v, so it may have stored objects in another encoding than %s. "+restarts,
				err, versionOfTarget(m.Status.Target))))
		}
		if err == nil && left == 0 {
			err = r.verifyAndPruneDefinition(ctx, observation)
		}
		if err != nil {
			return err
		}
	case storageversion.Aggregated:
		if err := r.locate(ctx, m.Status.Target); err != nil {
			return r.endPermanent(ctx, err)
		}
	}
	// A migration with denied objects passes the checks of a success before it fails. So it shows that all other objects
	// are stored in the target encoding, and the next migration of the epoch tries only the denied ones. The definition
	// was not checked, because nothing is pruned.
	if left > 0 {
		return r.end(ctx, failed(objectsDenied(&m.Status)))
	}
	return r.end(ctx, succeeded(m.Status.Target))
}

// endPermanent ends the migration if err is a PermanentError. It returns any other error. A begun migration whose
// resource is not served ends its run only: the next one looks for another version, and failIfNotServed decides how
// long it waits for whoever replaces the APIService.
func (r *migrationRun) endPermanent(ctx context.Context, err error) error {
	if isNotServed(err) && r.status.stored.Begun() {
		return errStopped
	}
	if cannot, is := errors.AsType[*rewrite.PermanentError](err); is {
		return r.end(ctx, failed(Decision{Reason: cannot.Reason, Message: cannot.Message}))
	}
	return err
}

// end writes the end of the migration. It does not repeat a failed write, because the decision may be out of date by
// then. tryFinish decides again.
func (r *migrationRun) end(ctx context.Context, change statusChange) error {
	r.ending.Store(true)
	err := r.status.write(ctx, change)
	if errors.Is(err, controller.ErrOutdated) {
		err = cmp.Or(r.status.refresh(ctx), err)
	}
	if err != nil {
		r.ending.Store(false)
	}
	return err
}

// verifyAndPruneDefinition checks that the definition is the one that was observed. Then it removes the versions in
// which no object is stored any more from status.storedVersions.
func (r *migrationRun) verifyAndPruneDefinition(ctx context.Context, observation storageversion.Observation) error {
	live, err := r.env.observedDefinition(ctx, observation)
	if err != nil {
		return err
	}
	if live.Hash() != r.status.stored.Status.Target.StorageVersionHash {
		return fmt.Errorf("the definition has another storage version: %w", controller.ErrOutdated)
	}
	before, after := live.Status.StoredVersions, []string{live.StorageVersion()}
	if !r.env.options.PruneStoredVersions || slices.Equal(before, after) {
		return nil
	}
	if err := r.checkInTreeEnd(ctx, live); err != nil {
		return err
	}
	err = r.pruneStoredVersions(ctx, live, after)
	switch {
	case err == nil:
		klog.FromContext(ctx).Info("Pruned status.storedVersions", "before", before, "after", after)
		r.env.recordEvent(r.status.stored, corev1.EventTypeNormal, EventStoredVersionsPruned,
			fmt.Sprintf("status.storedVersions of the CustomResourceDefinition is %q now. It was %q.", after, before))
		return nil
	case apierrors.IsConflict(err) && !controller.Refused(err): // A webhook may deny with any code.
		return fmt.Errorf("pruning status.storedVersions: %w", controller.ErrOutdated)
	case ctx.Err() != nil, rewrite.Classify(err, live.Metadata.Name).Passes():
		return fmt.Errorf("pruning status.storedVersions: %w", err)
	default:
		// The migration succeeds in spite of that, because all objects are migrated. The StorageState also says that old
		// versions are still listed.
		utilruntime.HandleErrorWithContext(ctx, err, "Pruning status.storedVersions failed")
		r.env.recordEvent(r.status.stored, corev1.EventTypeWarning, EventStoredVersionsNotPruned,
			fmt.Sprintf("status.storedVersions of the CustomResourceDefinition is still %q: %v", before, err))
		return nil
	}
}

// pruneStoredVersions sets status.storedVersions. It returns a conflict if somebody wrote the definition after it was
// read, because another version may have been the storage version in between.
func (r *migrationRun) pruneStoredVersions(ctx context.Context, live *documents.Definition, versions []string) error {
	patch, _ := json.Marshal(map[string]any{ // Maps of strings can always be encoded.
		"metadata": map[string]any{"uid": live.Metadata.UID, "resourceVersion": live.Metadata.ResourceVersion},
		"status":   map[string]any{"storedVersions": versions},
	})
	return r.env.documents.Client.Patch(types.MergePatchType).
		AbsPath(documents.DefinitionPath(r.resource)+"/status").
		SetHeader("Accept", runtime.ContentTypeJSON+documents.AsMetadata).
		MaxRetries(0).Timeout(rewrite.PatchTimeout).
		Param("fieldManager", controller.MigratorFieldManager).Body(patch).Do(ctx).Error()
}
