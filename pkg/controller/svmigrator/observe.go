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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
)

// This file gathers the Input of Decide, from caches or from the API server.

// decideCached decides from the caches, without a request. The caches may be late, so a decision to wait or to fail may
// be out of date. Use decide before failing a migration.
func (e *environment) decideCached(m *migrationv1alpha1.StorageVersionMigration) Decision {
	return e.decideOn(m, e.caches.State(m.GroupResource()))
}

// decide decides from the caches. It returns Fail only if the StorageState on the API server confirms it, or if the
// migration names no resource: no StorageState can have such a name.
func (e *environment) decide(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration) (Decision, error) {
	decision := e.decideCached(m)
	if decision.Verdict != Fail || decision.Reason == migrationv1alpha1.MigrationReasonInvalidResource {
		return decision, nil
	}
	return e.decideLive(ctx, m)
}

// decideLive decides from the StorageState on the API server. It takes the StorageState for absent only if the API
// server says so.
func (e *environment) decideLive(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration) (Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	name := m.GroupResource().String()
	state, err := e.client.StorageStates().Get(ctx, name, metav1.GetOptions{})
	if controller.StateMissing(err, name) {
		state, err = nil, nil
	}
	if err != nil {
		return Decision{}, fmt.Errorf("getting storage state %q: %w", name, err)
	}
	return e.decideOn(m, state), nil
}

func (e *environment) decideOn(
	m *migrationv1alpha1.StorageVersionMigration, state *migrationv1alpha1.StorageState,
) Decision {
	return Decide(Input{
		Migration:   m,
		Observation: e.observer.Observe(m.GroupResource()),
		State:       state,
		HasTrigger:  e.options.HasTrigger,
		Settle:      e.options.SettlePeriod,
		Now:         e.clock.Now(),
	})
}
