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
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/features"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// errMoved says that what a migration ends on has moved since it was looked at. It is looked at again.
var errMoved = errors.New("what was read has changed in the meantime")

// finish ends a migration whose objects all have their outcomes.
func (t *turn) finish(ctx context.Context) error {
	began := t.clock.Now()
	for n := 1; ; n++ {
		ended, err := t.tryFinish(ctx)
		switch {
		case ended, errors.Is(err, errStopped), errors.Is(err, errMigrationGone):
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case t.clock.Since(began) >= stuckAfter && t.othersWait():
			return errStuck
		}
		wait := max(endRetry, backoff(n))
		klog.FromContext(ctx).V(4).Info("Looking again before the end", "cause", err)
		if t.clock.Since(began) > troubleThreshold {
			t.tellTrouble(ctx, &trouble{what: "All objects are done, and the migration cannot be ended", failure: classify(err, ""), since: began, next: t.clock.Now().Add(wait), stuck: t.clock.Since(began) >= stuckAfter})
		}
		if !pause(ctx, t.clock, wait) {
			return context.Cause(ctx)
		}
	}
}

// tryFinish looks at what a success depends on, and ends the migration. States, definitions and documents are read from the API server; what
// it does not tell itself is the observer's to know.
func (t *turn) tryFinish(ctx context.Context) (ended bool, err error) {
	decision, err := t.decideLive(ctx, t.journal.stored)
	if err != nil {
		return false, err
	}
	if decision.Verdict == Fail {
		return true, t.fail(ctx, decision)
	}
	if progress := t.journal.stored.Status.Progress; progress != nil && progress.Denied > 0 {
		return true, t.fail(ctx, denied(&t.journal.stored.Status))
	}
	if decision.Verdict != Go {
		return false, errStopped
	}
	if sure := t.observer.Observe(t.resource).Confirmed; t.clock.Now().Before(sure) {
		return false, fmt.Errorf("it is not sure before %v that the servers which answered are those that live: %w", sure, errMoved)
	}
	switch t.class {
	case storageversion.Custom:
		if err := t.settleDefinition(ctx); err != nil {
			return false, err
		}
	case storageversion.Aggregated:
		missing, err := t.find(ctx, t.journal.stored.Status.Target)
		if err != nil {
			return false, err
		}
		if missing != nil {
			return true, t.fail(ctx, *missing)
		}
		if target := t.journal.stored.Status.Target; t.changedUnseen(target) {
			return true, t.fail(ctx, fails(migrationv1alpha1.MigrationReasonAgreementLost, "objects are written in another encoding than %s by now.", words(target)))
		}
	}
	if err := t.succeed(ctx); err != nil {
		return false, err
	}
	return true, nil
}

// succeed is tried once: what was looked at before it may be true no longer when the API server is back from an outage.
func (t *turn) succeed(ctx context.Context) error {
	message := fmt.Sprintf("Every object is stored in %s or was deleted.", words(t.journal.stored.Status.Target))
	t.ending.Store(true)
	err := t.journal.write(ctx, func(status *migrationv1alpha1.StorageVersionMigrationStatus) {
		end(status, t.clock.Now(), migrationv1alpha1.MigrationSucceeded, migrationv1alpha1.MigrationReasonAllObjectsMigrated, message)
	})
	if errors.Is(err, errOutdated) {
		if err = t.journal.refresh(ctx); err == nil {
			err = errMoved
		}
	}
	if err != nil {
		t.ending.Store(false)
		return err
	}
	t.ended(ctx, statusSucceeded, migrationv1alpha1.MigrationReasonAllObjectsMigrated)
	t.tell(t.journal.stored, corev1.EventTypeNormal, eventSucceeded, message)
	return nil
}

// fail ends a migration without success.
func (t *turn) fail(ctx context.Context, why Decision) error {
	t.ending.Store(true)
	err := t.journal.persist(ctx, func(status *migrationv1alpha1.StorageVersionMigrationStatus) {
		end(status, t.clock.Now(), migrationv1alpha1.MigrationFailed, why.Reason, why.Message)
	})
	if err != nil {
		return err
	}
	t.ended(ctx, statusFailed, why.Reason)
	t.tell(t.journal.stored, corev1.EventTypeWarning, eventFailed, why.Reason+": "+why.Message)
	return nil
}

func (t *turn) ended(ctx context.Context, status, reason string) {
	t.sweeps.drop(t.journal.uid())
	m := t.journal.stored
	klog.FromContext(ctx).Info("Migration ended", "status", status, "reason", reason, "progress", m.Status.Progress)
	countMigration(t.resource, status)
	if m.Status.StartTime != nil {
		migrationDuration.WithLabelValues(status).Observe(max(0, t.clock.Since(m.Status.StartTime.Time)).Seconds())
	}
}

func denied(status *migrationv1alpha1.StorageVersionMigrationStatus) Decision {
	example := ""
	if len(status.DeniedObjects) > 0 {
		first := status.DeniedObjects[0]
		example = fmt.Sprintf(" The first is %s: %s", klog.KRef(first.Namespace, first.Name), first.Message)
	}
	return fails(migrationv1alpha1.MigrationReasonObjectsDenied, "the API server refuses to rewrite %d of %d objects; all others are done. status.deniedObjects names them.%s",
		status.Progress.Denied, status.Progress.Processed, example)
}

// settleDefinition checks that the definition is the one that the servers were observed by, and takes versions from its
// status.storedVersions that no object is stored in any more.
func (t *turn) settleDefinition(ctx context.Context) error {
	live, err := readDefinition(ctx, t.documents, t.resource)
	if err != nil {
		return err
	}
	target := t.journal.stored.Status.Target
	observation := t.observer.Observe(t.resource)
	observed, seen := observation.Last()
	switch {
	case !seen || observed.Evidence.CustomResourceDefinition == nil:
		return fmt.Errorf("the definition was not observed: %w", errMoved)
	case live.Metadata.UID != observed.Evidence.CustomResourceDefinition.UID, live.Metadata.Generation != observed.Evidence.CustomResourceDefinition.Generation:
		return fmt.Errorf("the definition is of generation %d, and generation %d was observed: %w",
			live.Metadata.Generation, observed.Evidence.CustomResourceDefinition.Generation, errMoved)
	case live.hash() != target.StorageVersionHash:
		return fmt.Errorf("the definition stores another version: %w", errMoved)
	}
	if !t.features.Enabled(features.CRDStoredVersionsPruning) || !live.prunable() {
		return nil
	}
	before := live.Status.StoredVersions
	err = live.prune(ctx, t.documents)
	switch {
	case err == nil:
		klog.FromContext(ctx).Info("Pruned status.storedVersions", "before", before, "after", live.storageVersion())
		t.tell(t.journal.stored, corev1.EventTypeNormal, eventPruned,
			fmt.Sprintf("status.storedVersions of the CustomResourceDefinition is %q now; it was %q", []string{live.storageVersion()}, before))
		return nil
	case apierrors.IsConflict(err):
		return fmt.Errorf("pruning status.storedVersions: %w", errMoved)
	case classify(err, live.Metadata.Name).passes():
		return fmt.Errorf("pruning status.storedVersions: %w", err)
	default:
		// The objects are migrated all the same. That old versions are still listed is told by the StorageState too.
		utilruntime.HandleErrorWithContext(ctx, err, "Pruning status.storedVersions failed")
		t.tell(t.journal.stored, corev1.EventTypeWarning, eventNotPruned,
			fmt.Sprintf("status.storedVersions of the CustomResourceDefinition still is %q: %v", before, err))
		return nil
	}
}

const (
	statusSucceeded = "Succeeded"
	statusFailed    = "Failed"
)
