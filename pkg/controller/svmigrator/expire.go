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

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// expiry is what to do with a migration that has ended.
type expiry struct {
	// expired means that nobody needs the migration any more.
	expired bool
	// lookAgain is when to decide again if nothing else happens. Zero means that only events matter.
	lookAgain time.Time
}

// decideExpiry says whether a migration that has ended may be deleted. others are the migrations of the same resource.
func decideExpiry(
	m *migrationv1alpha1.StorageVersionMigration, others []*migrationv1alpha1.StorageVersionMigration,
	state *migrationv1alpha1.StorageState, ttl time.Duration, now time.Time,
) expiry {
	if ttl <= 0 || !m.Finished() || m.DeletionTimestamp != nil {
		return expiry{}
	}
	if at := endedAt(m).Add(ttl); now.Before(at) {
		return expiry{lookAgain: at}
	}
	// It names objects that somebody must repair, until a newer migration shows whether that was done.
	newer := slices.ContainsFunc(others, func(other *migrationv1alpha1.StorageVersionMigration) bool {
		return other.Finished() && createdAfter(other, m)
	})
	if namesDenied(m) && !newer {
		return expiry{}
	}
	// An older one that names objects goes first. Otherwise it would be kept until yet another migration ends.
	older := slices.ContainsFunc(others, func(other *migrationv1alpha1.StorageVersionMigration) bool {
		return other.Finished() && namesDenied(other) && createdAfter(m, other)
	})
	return expiry{expired: !older && !proofPending(m, state)}
}

// createdAfter orders migrations, also those of the same second.
func createdAfter(a, b *migrationv1alpha1.StorageVersionMigration) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) > 0
}

func namesDenied(m *migrationv1alpha1.StorageVersionMigration) bool {
	return m.Status.Progress != nil && m.Status.Progress.Denied > 0
}

// proofPending reports whether the migration proves something that the StorageState does not show yet.
func proofPending(m *migrationv1alpha1.StorageVersionMigration, state *migrationv1alpha1.StorageState) bool {
	target := m.Status.Target
	return m.HasCondition(migrationv1alpha1.MigrationSucceeded) && state != nil && target != nil && target.Epoch != nil &&
		state.UID == target.StorageStateUID && state.Status.Epoch == *target.Epoch &&
		!slices.Equal(state.Status.PersistedStorageVersionHashes, []string{target.StorageVersionHash})
}

// endedAt is when a migration ended. Other controllers set only the conditions, or not even their times.
func endedAt(m *migrationv1alpha1.StorageVersionMigration) time.Time {
	if m.Status.CompletionTime != nil {
		return m.Status.CompletionTime.Time
	}
	result := m.Status.Condition(migrationv1alpha1.MigrationSucceeded)
	if result == nil || result.Status != corev1.ConditionTrue {
		result = m.Status.Condition(migrationv1alpha1.MigrationFailed)
	}
	return cmp.Or(result.LastUpdateTime.Time, m.CreationTimestamp.Time)
}

// expire deletes a migration that nobody needs any more.
func (c *Controller) expire(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration) (time.Time, error) {
	e := c.expiryOf(m)
	if !e.expired {
		return e.lookAgain, nil
	}
	// The cache may be behind, and nobody can undo a deletion.
	migrations := c.cluster.client.StorageVersionMigrations()
	live, err := migrations.Get(ctx, m.Name, metav1.GetOptions{})
	if saysMissing(err, m.Name) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("getting migration %q: %w", m.Name, err)
	}
	if e = c.expiryOf(live); !e.expired {
		return e.lookAgain, nil
	}
	err = migrations.Delete(ctx, live.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &live.UID, ResourceVersion: &live.ResourceVersion},
	})
	switch {
	case saysMissing(err, m.Name), apierrors.IsConflict(err):
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, fmt.Errorf("deleting migration %q: %w", m.Name, err)
	}
	klog.FromContext(ctx).V(2).Info("Deleted a migration that ended long ago", "uid", live.UID, "ended", endedAt(live))
	return time.Time{}, nil
}

func (c *Controller) expiryOf(m *migrationv1alpha1.StorageVersionMigration) expiry {
	resource := m.GroupResource()
	state := c.cluster.cachedState(resource)
	return decideExpiry(m, c.migrationsOf(resource), state, c.cluster.options.FinishedTTL, c.cluster.clock.Now())
}
