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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// expiry is what is to be done with a migration that has ended.
type expiry struct {
	// expired says that nobody needs it any more.
	expired bool
	// lookAgain is when it may be so, if nothing else happens. Zero if only events matter.
	lookAgain time.Time
}

// decideExpiry says whether a migration that has ended may be deleted. others are the migrations of the same resource.
func decideExpiry(m *migrationv1alpha1.StorageVersionMigration, others []*migrationv1alpha1.StorageVersionMigration, state *migrationv1alpha1.StorageState, ttl time.Duration, now time.Time) expiry {
	if ttl <= 0 || !finished(m) || m.DeletionTimestamp != nil {
		return expiry{}
	}
	if at := endedAt(m).Add(ttl); now.Before(at) {
		return expiry{lookAgain: at}
	}
	// It names what somebody has to see to, until a newer one says how that stands.
	newer := slices.ContainsFunc(others, func(other *migrationv1alpha1.StorageVersionMigration) bool {
		return finished(other) && createdAfter(other, m)
	})
	if namesDenied(m) && !newer {
		return expiry{}
	}
	// One that waited for this one goes first, or it would be kept until yet another one ended.
	older := slices.ContainsFunc(others, func(other *migrationv1alpha1.StorageVersionMigration) bool {
		return finished(other) && namesDenied(other) && createdAfter(m, other)
	})
	return expiry{expired: !older && !proofPending(m, state)}
}

// createdAfter orders migrations, those of the same second too.
func createdAfter(a, b *migrationv1alpha1.StorageVersionMigration) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name)) > 0
}

func namesDenied(m *migrationv1alpha1.StorageVersionMigration) bool {
	return m.Status.Progress != nil && m.Status.Progress.Denied > 0
}

// proofPending says that the success of the migration is a proof which the StorageState does not show yet.
func proofPending(m *migrationv1alpha1.StorageVersionMigration, state *migrationv1alpha1.StorageState) bool {
	target := m.Status.Target
	return hasCondition(m, migrationv1alpha1.MigrationSucceeded) && state != nil && target != nil && target.Epoch != nil &&
		state.UID == target.StorageStateUID && state.Status.Epoch == *target.Epoch &&
		!slices.Equal(state.Status.PersistedStorageVersionHashes, []string{target.StorageVersionHash})
}

// endedAt is when a migration ended. Other controllers leave that to the conditions.
func endedAt(m *migrationv1alpha1.StorageVersionMigration) time.Time {
	if m.Status.CompletionTime != nil {
		return m.Status.CompletionTime.Time
	}
	var last time.Time
	for _, condition := range m.Status.Conditions {
		if condition.LastUpdateTime.After(last) {
			last = condition.LastUpdateTime.Time
		}
	}
	return cmp.Or(last, m.CreationTimestamp.Time)
}

// expire deletes a migration that nobody needs any more.
func (c *Controller) expire(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration) (lookAgain time.Time, err error) {
	e, err := c.expiryOf(m)
	if err != nil || !e.expired {
		return e.lookAgain, err
	}
	// The cache may be behind, and a deletion cannot be taken back.
	live, err := c.client.StorageVersionMigrations().Get(ctx, m.Name, metav1.GetOptions{})
	if saysMissing(err, m.Name) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("getting migration %q: %w", m.Name, err)
	}
	if e, err = c.expiryOf(live); err != nil || !e.expired {
		return e.lookAgain, err
	}
	err = c.client.StorageVersionMigrations().Delete(ctx, live.Name, metav1.DeleteOptions{
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

func (c *Controller) expiryOf(m *migrationv1alpha1.StorageVersionMigration) (expiry, error) {
	others, err := c.migrationsOf(resourceOf(m))
	if err != nil {
		return expiry{}, err
	}
	state, err := c.cachedState(resourceOf(m))
	if err != nil {
		return expiry{}, err
	}
	return decideExpiry(m, others, state, c.options.FinishedTTL, c.clock.Now()), nil
}
