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

package cli

import (
	"cmp"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// Pending is the state of a migration that the migrator has not seen.
const Pending migrationv1alpha1.MigrationConditionType = "Pending"

// CurrentCondition returns the condition of a migration that is True. It returns one of the type Pending if none is.
func CurrentCondition(m *migrationv1alpha1.StorageVersionMigration) migrationv1alpha1.MigrationCondition {
	for _, conditionType := range migrationv1alpha1.MigrationConditionTypes {
		if m.HasCondition(conditionType) {
			return *m.Status.Condition(conditionType)
		}
	}
	return migrationv1alpha1.MigrationCondition{Type: Pending}
}

// NewestFirst sorts migrations by the time of their creation.
func NewestFirst(migrations []migrationv1alpha1.StorageVersionMigration) {
	slices.SortStableFunc(migrations, func(a, b migrationv1alpha1.StorageVersionMigration) int {
		return cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
}

// Ago says how long ago a moment was, as kubectl does.
func Ago(now, then time.Time) string {
	return duration.HumanDuration(max(0, now.Sub(then)))
}
