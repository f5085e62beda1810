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
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/utils/clock"

	migrationclient "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// errMigrationGone says that the migration was deleted, or ended by somebody else.
var errMigrationGone = errors.New("the migration is gone or has ended")

// errOutdated says that somebody wrote the migration since it was read.
var errOutdated = errors.New("the migration was written in the meantime")

// journal is the status of one migration, which nobody else writes while the migration has its turn.
type journal struct {
	client migrationclient.StorageVersionMigrationInterface
	clock  clock.WithTicker
	// stored is the migration as it was read or written last. What it points to is never changed.
	stored *migrationv1alpha1.StorageVersionMigration
	// once has persist try once: the caller comes back.
	once bool
}

func (r *journal) name() string   { return r.stored.Name }
func (r *journal) uid() types.UID { return r.stored.UID }

// write stores a change of the status, if the migration is still as it was read.
func (r *journal) write(ctx context.Context, change func(*migrationv1alpha1.StorageVersionMigrationStatus)) error {
	m := r.stored.DeepCopy()
	change(&m.Status)
	written, err := r.client.UpdateStatus(ctx, m, metav1.UpdateOptions{})
	switch {
	case err == nil:
		r.stored = written
		return nil
	case saysMissing(err, m.Name):
		return errMigrationGone
	case apierrors.IsConflict(err):
		return errOutdated
	default:
		return fmt.Errorf("writing the status of migration %q: %w", m.Name, err)
	}
}

// refresh reads the migration anew: people annotate it, and somebody may have ended it.
func (r *journal) refresh(ctx context.Context) error {
	live, err := r.client.Get(ctx, r.name(), metav1.GetOptions{})
	switch {
	case saysMissing(err, r.name()):
		return errMigrationGone
	case err != nil:
		return fmt.Errorf("getting migration %q: %w", r.name(), err)
	case live.UID != r.uid(), finished(live), live.DeletionTimestamp != nil:
		return errMigrationGone
	}
	r.stored = live
	return nil
}

// persist stores a change, however long that takes. It is for whoever has the turn, and for ends.
func (r *journal) persist(ctx context.Context, change func(*migrationv1alpha1.StorageVersionMigrationStatus)) error {
	for n := 1; ; n++ {
		err := r.write(ctx, change)
		if errors.Is(err, errOutdated) {
			if err = r.refresh(ctx); err == nil {
				err = r.write(ctx, change)
			}
		}
		if err == nil || r.once || errors.Is(err, errMigrationGone) {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if n == 1 {
			utilruntime.HandleErrorWithContext(ctx, err, "Storing progress failed, nothing more is rewritten until it succeeds")
		}
		if !pause(ctx, r.clock, backoff(n)) {
			return context.Cause(ctx)
		}
	}
}

// pause returns after d, or with false when ctx ends.
func pause(ctx context.Context, clk clock.WithTicker, d time.Duration) bool {
	timer := clk.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

// setCondition sets a condition, and says whether that changed anything.
func setCondition(status *migrationv1alpha1.StorageVersionMigrationStatus, now time.Time, conditionType migrationv1alpha1.MigrationConditionType, value corev1.ConditionStatus, reason, message string) bool {
	condition := migrationv1alpha1.MigrationCondition{
		Type: conditionType, Status: value, Reason: reason, Message: firstRunes(message, migrationv1alpha1.MaxStateConditionMessageLength),
		LastUpdateTime: metav1.NewTime(now),
	}
	i := slices.IndexFunc(status.Conditions, func(c migrationv1alpha1.MigrationCondition) bool { return c.Type == conditionType })
	if i < 0 {
		status.Conditions = append(status.Conditions, condition)
		return true
	}
	if old := status.Conditions[i]; old.Status == value && old.Reason == reason && old.Message == condition.Message {
		return false
	}
	status.Conditions[i] = condition
	return true
}

// running sets the Running condition.
func running(status *migrationv1alpha1.StorageVersionMigrationStatus, now time.Time, reason, message string) bool {
	return setCondition(status, now, migrationv1alpha1.MigrationRunning, corev1.ConditionTrue, reason, message)
}

// waiting says that nothing is written for now.
func waiting(status *migrationv1alpha1.StorageVersionMigrationStatus, now time.Time, message string) bool {
	return setCondition(status, now, migrationv1alpha1.MigrationRunning, corev1.ConditionFalse, migrationv1alpha1.MigrationReasonAwaitingAgreement, message)
}

// end sets the last conditions of a migration.
func end(status *migrationv1alpha1.StorageVersionMigrationStatus, now time.Time, conditionType migrationv1alpha1.MigrationConditionType, reason, message string) {
	setCondition(status, now, migrationv1alpha1.MigrationRunning, corev1.ConditionFalse, migrationv1alpha1.MigrationReasonFinished, "The migration has ended.")
	setCondition(status, now, conditionType, corev1.ConditionTrue, reason, message)
	completed := metav1.NewTime(now)
	status.CompletionTime = &completed
	status.EstimatedCompletionTime = nil
}

// saysMissing is true only for the API server's own statement that this migration does not exist.
func saysMissing(err error, name string) bool {
	return err != nil && classify(err, name).kind == objectGone
}
