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
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
)

// deletableFrom returns when a migration that has ended may be deleted. may is false if ttl is zero, which keeps all
// migrations, or while the trigger needs this one.
func deletableFrom(
	m *migrationv1alpha1.StorageVersionMigration, state *migrationv1alpha1.StorageState, ttl time.Duration,
) (at time.Time, may bool) {
	return endedAt(m).Add(ttl), ttl > 0 && !proofPending(m, state) && !failurePending(m, state)
}

// createdAfter reports whether a was created after b. It orders migrations of the same second by name.
func createdAfter(a, b *migrationv1alpha1.StorageVersionMigration) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) > 0
}

// proofPending reports whether the migration proves something that the StorageState does not show yet.
func proofPending(m *migrationv1alpha1.StorageVersionMigration, state *migrationv1alpha1.StorageState) bool {
	target := m.Status.Target
	return m.IsConditionTrue(migrationv1alpha1.MigrationSucceeded) && state != nil && target != nil &&
		target.Epoch != nil &&
		state.UID == target.StorageStateUID && state.Status.Epoch == *target.Epoch &&
		!slices.Equal(state.Status.PersistedStorageVersionHashes, []string{target.StorageVersionHash})
}

// failurePending reports whether the migration of the trigger failed, and the trigger has not recorded that in the
// StorageState yet. The trigger needs the migration for that. It records no failure while nothing has to be migrated.
func failurePending(m *migrationv1alpha1.StorageVersionMigration, state *migrationv1alpha1.StorageState) bool {
	if !m.IsConditionTrue(migrationv1alpha1.MigrationFailed) || state == nil || state.Status.Migration == nil ||
		state.Status.Migration.UID != m.UID {
		return false
	}
	status := &state.Status
	counted := status.Backoff != nil && status.Backoff.LastFailedMigration != nil &&
		status.Backoff.LastFailedMigration.UID == m.UID
	cleans := meta.IsStatusConditionFalse(status.Conditions, migrationv1alpha1.StorageStateManagedFieldsServed)
	return !counted && (cleans || !status.Migrated())
}

// endedAt returns when a migration ended: status.completionTime, or the latest change of a condition if another
// controller has ended the migration and set no such time.
func endedAt(m *migrationv1alpha1.StorageVersionMigration) time.Time {
	if m.Status.CompletionTime != nil {
		return m.Status.CompletionTime.Time
	}
	at := m.CreationTimestamp.Time
	for _, condition := range m.Status.Conditions {
		if condition.LastUpdateTime.After(at) {
			at = condition.LastUpdateTime.Time
		}
	}
	return at
}

// deleteFinished deletes a migration that nobody needs any more. The cache may be late, but the API server deletes the
// migration only if it is the same, and nobody has written it since.
func (c *Controller) deleteFinished(
	ctx context.Context, m *migrationv1alpha1.StorageVersionMigration,
) (time.Time, error) {
	at, may := deletableFrom(m, c.env.caches.State(m.GroupResource()), c.env.options.FinishedTTL)
	switch {
	case !may:
		return time.Time{}, nil // The change that makes it deletable queues it again.
	case c.env.clock.Now().Before(at):
		return at, nil
	}
	err := c.env.client.StorageVersionMigrations().Delete(ctx, m.Name, controller.IfUnchanged(m))
	switch {
	case controller.MigrationMissing(err, m.Name), apierrors.IsConflict(err):
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, fmt.Errorf("deleting migration %q: %w", m.Name, err)
	}
	klog.FromContext(ctx).V(2).Info("Deleted a migration that ended long ago", "uid", m.UID, "ended", endedAt(m))
	return time.Time{}, nil
}
