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

package svmtrigger

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// Indices of the caches, which other controllers share.
const (
	migrationsByResource = "svmtrigger-resource"
	migrationsByTrigger  = "svmtrigger-unfinished"
	statesByPromise      = "svmtrigger-promised"

	// indexed is the only value of an index that is a set.
	indexed = "true"
)

// observe gathers all that a decision about the resource depends on, except whether it has a slot. It sends no request.
func (c *Controller) observe(resource schema.GroupResource) (Input, error) {
	in := Input{Observation: c.observer.Observe(resource), Periods: c.options.Periods}
	in.Now = c.clock.Now()
	in.AutoMigrate = c.options.AutoMigrate.Selects(resource)
	for _, other := range in.Observation.SharedWith {
		// One migration rewrites them all, so it takes the consent of all.
		in.AutoMigrate = in.AutoMigrate && c.options.AutoMigrate.Selects(other)
	}

	var errs []error
	read := func(err error) { errs = append(errs, err) }
	var err error
	in.State, err = c.state(resource)
	read(err)
	in.Migrations, err = c.migrationsOf(resource)
	read(err)
	if by := in.Observation.SharedBy; by != resource && by != (schema.GroupResource{}) {
		in.SharedBy, err = c.state(by)
		read(err)
		shared, err := c.migrationsOf(by)
		read(err)
		in.Migrations = append(in.Migrations, shared...)
	}
	return in, errors.Join(errs...)
}

// state returns the StorageState as this process knows it, nil if there is none.
func (c *Controller) state(resource schema.GroupResource) (*migrationv1alpha1.StorageState, error) {
	cached, err := c.states.Get(resource.String())
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("getting cached storage state %q: %w", resource, err)
	}
	if apierrors.IsNotFound(err) {
		cached = nil
	}
	return c.own.newest(resource, cached, c.stateIndexer.LastStoreSyncResourceVersion()), nil
}

func (c *Controller) migrationsOf(resource schema.GroupResource) ([]*migrationv1alpha1.StorageVersionMigration, error) {
	migrations, err := c.migrationIndexer.ByTypedIndex(migrationsByResource, resource.String())
	if err != nil {
		return nil, fmt.Errorf("getting cached migrations of %q: %w", resource, err)
	}
	slices.SortFunc(migrations, func(a, b *migrationv1alpha1.StorageVersionMigration) int { return cmp.Compare(a.Name, b.Name) })
	return migrations, nil
}

// stuck says that a migration gets no further, for as long as a webhook is away perhaps. Others shall not wait for that.
func stuck(m *migrationv1alpha1.StorageVersionMigration) bool {
	return slices.ContainsFunc(m.Status.Conditions, func(c migrationv1alpha1.MigrationCondition) bool {
		return c.Type == migrationv1alpha1.MigrationRunning && c.Status == corev1.ConditionTrue && c.Reason == migrationv1alpha1.MigrationReasonNoProgress
	})
}

// unfinished returns the names of the migrations that take up slots: those that the trigger created and that have neither
// ended nor are stuck, and those that a state promises and that are not created yet.
func (c *Controller) unfinished() (sets.Set[string], error) {
	names := sets.New[string]()
	migrations, err := c.migrationIndexer.ByTypedIndex(migrationsByTrigger, indexed)
	if err != nil {
		return nil, fmt.Errorf("getting cached unfinished migrations: %w", err)
	}
	for _, migration := range migrations {
		names.Insert(migration.Name)
	}
	promising, err := c.stateIndexer.ByTypedIndex(statesByPromise, indexed)
	if err != nil {
		return nil, fmt.Errorf("getting cached storage states with promised migrations: %w", err)
	}
	for _, own := range c.own.last {
		if own.state != nil {
			// Possibly a second, newer or older copy of one of those: then it promises the same, or one too many is counted.
			promising = append(promising, own.state)
		}
	}
	for _, state := range promising {
		name := promise(state)
		if name == "" {
			continue
		}
		_, err := c.migrations.Get(name)
		switch {
		case apierrors.IsNotFound(err):
			names.Insert(name)
		case err != nil:
			return nil, fmt.Errorf("getting cached migration %q: %w", name, err)
		}
	}
	return names, nil
}

// promise returns the name of the migration that the state names and that was not created when it did.
func promise(state *migrationv1alpha1.StorageState) string {
	if state == nil || state.Status.Migration == nil || state.Status.Migration.UID != "" {
		return ""
	}
	return state.Status.Migration.Name
}

func byTrigger(migration *migrationv1alpha1.StorageVersionMigration) bool {
	return migration.Spec.Target != nil && migration.Spec.Target.StorageStateUID != ""
}

func resourceOf(migration *migrationv1alpha1.StorageVersionMigration) schema.GroupResource {
	return schema.GroupResource{Group: migration.Spec.Resource.Group, Resource: migration.Spec.Resource.Resource}
}

// saysMissing is true only for the API server's own statement that this very object does not exist. A 404 can as well come
// from a proxy, or from a server that does not serve the group; both say nothing about the object.
func saysMissing(err error, resource, name string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Group == migrationv1alpha1.GroupName && details.Kind == resource && details.Name == name
}
