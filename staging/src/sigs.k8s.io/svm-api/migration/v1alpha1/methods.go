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

package v1alpha1

import (
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupResource returns the resource that the migration is for.
func (m *StorageVersionMigration) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: m.Spec.Resource.Group, Resource: m.Spec.Resource.Resource}
}

// Condition returns the condition of the given type, or nil if the migration has none.
func (s *StorageVersionMigrationStatus) Condition(conditionType MigrationConditionType) *MigrationCondition {
	i := slices.IndexFunc(s.Conditions, func(c MigrationCondition) bool { return c.Type == conditionType })
	if i < 0 {
		return nil
	}
	return &s.Conditions[i]
}

// IsConditionTrue reports whether the condition of the given type is True.
func (m *StorageVersionMigration) IsConditionTrue(conditionType MigrationConditionType) bool {
	condition := m.Status.Condition(conditionType)
	return condition != nil && condition.Status == corev1.ConditionTrue
}

// Finished reports whether the migration has ended, with success or without.
func (m *StorageVersionMigration) Finished() bool {
	return m.IsConditionTrue(MigrationSucceeded) || m.IsConditionTrue(MigrationFailed)
}

// Active reports whether the migration may still write objects: it has not ended, and is not being deleted.
func (m *StorageVersionMigration) Active() bool {
	return !m.Finished() && m.DeletionTimestamp == nil
}

// Kept reports whether finalizers keep a migration that somebody deleted before it had ended. Nobody runs it or changes
// its status any more.
func (m *StorageVersionMigration) Kept() bool {
	return !m.Finished() && m.DeletionTimestamp != nil
}

// Begun reports whether the migrator has begun the migration. Before that, everything else in its status was written by
// somebody else, and proves nothing.
func (m *StorageVersionMigration) Begun() bool {
	return m.Status.StartTime != nil && m.Status.Target != nil
}

// EpochTarget returns the target of the migration if it names an epoch, else nil: the target that it began with, or
// before that the one that its spec asks for.
func (m *StorageVersionMigration) EpochTarget() *MigrationTarget {
	target := m.Spec.Target
	if m.Begun() {
		target = m.Status.Target
	}
	if target == nil || target.Epoch == nil {
		return nil
	}
	return target
}

// HasEpoch reports whether spec.target names an epoch, as in the migrations of the trigger. A person may ask for an
// encoding without one.
func (m *StorageVersionMigration) HasEpoch() bool {
	return m.Spec.Target != nil && m.Spec.Target.Epoch != nil
}

// PausedByAnnotation reports whether the annotation keeps the trigger from creating migrations.
func (s *StorageState) PausedByAnnotation() bool {
	value, annotated := s.Annotations[PausedAnnotation]
	paused, err := strconv.ParseBool(value)
	return annotated && (paused || err != nil)
}

// Migrated reports whether every object is stored in the current encoding.
func (s *StorageStateStatus) Migrated() bool {
	return s.CurrentStorageVersionHash != Unknown &&
		slices.Equal(s.PersistedStorageVersionHashes, []string{s.CurrentStorageVersionHash})
}

// StoredVersions returns status.storedVersions of the CustomResourceDefinition, or nil if the evidence has none.
func (e *StorageEvidence) StoredVersions() []string {
	if e == nil || e.CustomResourceDefinition == nil {
		return nil
	}
	return e.CustomResourceDefinition.StoredVersions
}

// GroupResource returns the resource that the state is about.
func (s *StorageState) GroupResource() schema.GroupResource {
	return schema.GroupResource{Group: s.Spec.Resource.Group, Resource: s.Spec.Resource.Resource}
}

// TruncateRunes returns the first n characters of s. The API limits lengths in characters, not in bytes.
func TruncateRunes(s string, n int) string {
	if len(s) <= n {
		return s
	}
	if runes := []rune(s); len(runes) > n {
		return string(runes[:n])
	}
	return s
}

// RoundUp returns the first whole second that is not before t. The API stores whole seconds. A time that was rounded up
// is never before the moment that it stands for.
func RoundUp(t time.Time) time.Time {
	truncated := t.Truncate(time.Second)
	if truncated.Before(t) {
		return truncated.Add(time.Second)
	}
	return truncated // without the monotonic clock, which other times of the API do not have
}
