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
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// migrationsByResource is an index of the cache, which other controllers share.
const migrationsByResource = "svmigrator-resource"

// migration returns the cached migration, nil if there is none.
func (c *Controller) migration(name string) (*migrationv1alpha1.StorageVersionMigration, error) {
	m, err := c.migrations.Get(name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("getting cached migration %q: %w", name, err)
	}
	return m, nil
}

func (c *Controller) migrationsOf(resource schema.GroupResource) ([]*migrationv1alpha1.StorageVersionMigration, error) {
	migrations, err := c.migrationIndexer.ByTypedIndex(migrationsByResource, resource.String())
	if err != nil {
		return nil, fmt.Errorf("getting cached migrations of %q: %w", resource, err)
	}
	return migrations, nil
}

// cachedState returns the cached StorageState, nil if there is none.
func (c *Controller) cachedState(resource schema.GroupResource) (*migrationv1alpha1.StorageState, error) {
	state, err := c.states.Get(resource.String())
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("getting cached storage state %q: %w", resource, err)
	}
	return state, nil
}

// liveState asks the API server for the StorageState. It is nil only if the API server says that there is none.
func (c *Controller) liveState(ctx context.Context, resource schema.GroupResource) (*migrationv1alpha1.StorageState, error) {
	state, err := c.client.StorageStates().Get(ctx, resource.String(), metav1.GetOptions{})
	if err != nil {
		if saysMissing(err, resource.String()) {
			return nil, nil
		}
		return nil, fmt.Errorf("getting storage state %q: %w", resource, err)
	}
	return state, nil
}

func (c *Controller) input(m *migrationv1alpha1.StorageVersionMigration, state *migrationv1alpha1.StorageState) Input {
	return Input{
		Migration:   m,
		Observation: c.observer.Observe(resourceOf(m)),
		State:       state,
		Triggered:   c.options.Triggered,
		Settle:      c.options.SettlePeriod,
		Now:         c.clock.Now(),
	}
}

// decideCached decides without a request. It may say Wait or Fail because a cache is behind; that it says Go is as good as
// what is known.
func (c *Controller) decideCached(m *migrationv1alpha1.StorageVersionMigration) Decision {
	state, err := c.cachedState(resourceOf(m))
	if err != nil {
		return waits("%v", err)
	}
	return Decide(c.input(m, state))
}

// decide decides by the caches, and asks the API server before it fails a migration because of what they show.
func (c *Controller) decide(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration) (Decision, error) {
	if decision := c.decideCached(m); decision.Verdict != Fail {
		return decision, nil
	}
	return c.decideLive(ctx, m)
}

// decideLive decides by what the API server says of the StorageState now.
func (c *Controller) decideLive(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration) (Decision, error) {
	state, err := c.liveState(ctx, resourceOf(m))
	if err != nil {
		return Decision{}, err
	}
	return Decide(c.input(m, state)), nil
}

// findFirst looks whether the resource of a migration that waits is there at all: once, and whenever it was seen that no server
// serves it.
func (c *Controller) findFirst(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration, decision Decision) (Decision, error) {
	c.mu.Lock()
	found := c.found[m.UID] || m.Status.StartTime != nil
	c.mu.Unlock()
	if found && c.observer.Observe(resourceOf(m)).Presence != storageversion.NotServed {
		return decision, nil
	}
	_, missing, err := find(ctx, c.documents, m, "")
	if err != nil {
		return Decision{}, err
	}
	if missing != nil {
		// Somebody may be creating a definition and its migration together.
		patience := m.CreationTimestamp.Add(vanishPatience)
		if missing.Reason == migrationv1alpha1.MigrationReasonResourceNotServed && c.clock.Now().Before(patience) {
			decision.LookAgain = patience
			return decision, nil
		}
		return *missing, nil
	}
	c.mu.Lock()
	c.found[m.UID] = true
	c.mu.Unlock()
	return decision, nil
}
