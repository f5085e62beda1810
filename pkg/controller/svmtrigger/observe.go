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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-api/migration/v1alpha1"
)

// migrationsByResource is an index of the cache, which other controllers share.
const migrationsByResource = "svmtrigger-resource"

// observe reads all that a decision about the resource depends on. It sends no request.
func (c *Controller) observe(resource schema.GroupResource) (Input, error) {
	in := Input{Observation: c.observer.Observe(resource), Periods: c.options.Periods}
	in.Now = c.clock.Now()
	in.AutoMigrate = c.options.AutoMigrate.Selects(resource)
	for _, other := range in.Observation.SharedWith {
		// One migration rewrites them all, so the administrator must select all of them.
		in.AutoMigrate = in.AutoMigrate && c.options.AutoMigrate.Selects(other)
	}
	var stateErr, migrationsErr, primaryErr, sharedErr error
	in.State, stateErr = c.state(resource)
	in.Migrations, migrationsErr = c.migrationsOf(resource)
	if primary := in.Observation.SharedBy; primary != resource && primary != (schema.GroupResource{}) {
		in.SharedBy, primaryErr = c.state(primary)
		var shared []*v1alpha1.StorageVersionMigration
		shared, sharedErr = c.migrationsOf(primary)
		in.Migrations = append(in.Migrations, shared...)
	}
	return in, errors.Join(stateErr, migrationsErr, primaryErr, sharedErr)
}

// state returns the cached StorageState, nil if there is none.
func (c *Controller) state(resource schema.GroupResource) (*v1alpha1.StorageState, error) {
	state, err := c.states.Get(resource.String())
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("getting cached storage state %q: %w", resource, err)
	}
	return state, nil
}

func (c *Controller) migrationsOf(resource schema.GroupResource) ([]*v1alpha1.StorageVersionMigration, error) {
	migrations, err := c.migrationIndexer.ByTypedIndex(migrationsByResource, resource.String())
	if err != nil {
		return nil, fmt.Errorf("getting cached migrations of %q: %w", resource, err)
	}
	slices.SortFunc(migrations, func(a, b *v1alpha1.StorageVersionMigration) int {
		return cmp.Compare(a.Name, b.Name)
	})
	return migrations, nil
}
