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
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/duration"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// The states of migrations that no condition tells.
const (
	// Pending means that the migrator has not seen the migration.
	Pending migrationv1alpha1.MigrationConditionType = "Pending"
	// Deleting means that somebody deleted the migration before it had ended, and that its finalizers keep it.
	Deleting migrationv1alpha1.MigrationConditionType = "Deleting"
)

// nextTry is in the message about requests that fail. The time has often passed when a person reads it: the message is
// not written anew for each try.
var nextTry = regexp.MustCompile(`, the next try is at [0-9TZ:-]+: `)

// CurrentCondition returns the condition of a migration that is True, without the time of the next try in its message.
// It returns one of the type Pending if none is, and one of the type Deleting if finalizers keep the migration: its own
// conditions are those of the time before.
func CurrentCondition(m *migrationv1alpha1.StorageVersionMigration) migrationv1alpha1.MigrationCondition {
	if m.Kept() {
		return migrationv1alpha1.MigrationCondition{
			Type: Deleting, Message: "Finalizers keep it: " + strings.Join(m.Finalizers, ", "),
		}
	}
	for _, conditionType := range migrationv1alpha1.MigrationConditionTypes {
		if m.IsConditionTrue(conditionType) {
			condition := *m.Status.Condition(conditionType)
			condition.Message = nextTry.ReplaceAllString(condition.Message, ": ")
			return condition
		}
	}
	return migrationv1alpha1.MigrationCondition{Type: Pending}
}

// Failing reports whether a migration has this condition because its requests fail. The message has the last answer.
func Failing(condition migrationv1alpha1.MigrationCondition) bool {
	return condition.Reason == migrationv1alpha1.MigrationReasonNoProgress ||
		condition.Reason == migrationv1alpha1.MigrationReasonRetrying
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

// PatchState changes the StorageState of a resource by a merge patch in JSON.
func (c *Clients) PatchState(ctx context.Context, resource schema.GroupResource, patch string) error {
	_, err := c.Migration.StorageStates().Patch(ctx, resource.String(), types.MergePatchType, []byte(patch),
		metav1.PatchOptions{FieldManager: FieldManager})
	if err != nil {
		return fmt.Errorf("changing the StorageState %s: %w", resource, Explain(err))
	}
	return nil
}

// longestPrefix is how much of a name the API server keeps before it appends random characters, less the dash.
const longestPrefix = 57

// NewMigration returns a migration of a resource as a person asks for it: without a target.
func NewMigration(resource schema.GroupResource) *migrationv1alpha1.StorageVersionMigration {
	name := resource.String()
	name = strings.TrimRight(name[:min(len(name), longestPrefix)], "-.")
	return &migrationv1alpha1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: name + "-"},
		Spec: migrationv1alpha1.StorageVersionMigrationSpec{Resource: migrationv1alpha1.GroupVersionResource{
			Group: resource.Group, Resource: resource.Resource,
		}},
	}
}

// CreateMigration creates a migration of a resource. dryRun may be metav1.DryRunAll.
func (c *Clients) CreateMigration(
	ctx context.Context, resource schema.GroupResource, dryRun ...string,
) (*migrationv1alpha1.StorageVersionMigration, error) {
	created, err := c.Migration.StorageVersionMigrations().Create(ctx, NewMigration(resource),
		metav1.CreateOptions{FieldManager: FieldManager, DryRun: dryRun})
	if err != nil {
		return nil, fmt.Errorf("creating a migration of %s: %w", resource, Explain(err))
	}
	return WithKind(created), nil
}

// SetSuspend suspends or resumes a migration.
func (c *Clients) SetSuspend(ctx context.Context, name string, suspend bool) error {
	patch := fmt.Appendf(nil, `{"spec":{"suspend":%t}}`, suspend)
	_, err := c.Migration.StorageVersionMigrations().Patch(ctx, name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: FieldManager})
	if err != nil {
		return fmt.Errorf("changing the migration %s: %w", name, Explain(err))
	}
	return nil
}
