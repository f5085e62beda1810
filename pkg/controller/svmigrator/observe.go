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
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	migrationclient "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/features"
	"sigs.k8s.io/svm-controller-manager/pkg/retry"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// readTimeout is for small documents.
const readTimeout = 15 * time.Second

// cluster is what the migrator reads from and writes to, and the time.
type cluster struct {
	client    migrationclient.MigrationV1alpha1Interface
	documents documents.Reader
	observer  Observer
	caches    *controller.Caches
	engine    *rewrite.Engine
	events    record.EventRecorderLogger
	clock     clock.WithTicker
	options   Options
	space     *space
	// inTree logs whether in-tree migrations can be listed.
	inTree retry.Streak
}

// decideCached decides from the caches, without a request. Wait and Fail may be out of date: decide asks the API server
// before it fails a migration.
func (c *cluster) decideCached(m *migrationv1alpha1.StorageVersionMigration) Decision {
	return c.decideOn(m, c.caches.State(m.GroupResource()))
}

// decide decides on what the caches have. It asks the API server before it fails a migration.
func (c *cluster) decide(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration) (Decision, error) {
	if decision := c.decideCached(m); decision.Verdict != Fail {
		return decision, nil
	}
	return c.decideLive(ctx, m)
}

// decideLive decides on the StorageState that the API server has. Only the API server's own word counts as proof that
// there is none.
func (c *cluster) decideLive(ctx context.Context, m *migrationv1alpha1.StorageVersionMigration) (Decision, error) {
	name := m.GroupResource().String()
	state, err := c.client.StorageStates().Get(ctx, name, metav1.GetOptions{})
	if controller.StateMissing(err, name) {
		state, err = nil, nil
	}
	if err != nil {
		return Decision{}, fmt.Errorf("getting storage state %q: %w", name, err)
	}
	return c.decideOn(m, state), nil
}

func (c *cluster) decideOn(
	m *migrationv1alpha1.StorageVersionMigration, state *migrationv1alpha1.StorageState,
) Decision {
	return Decide(Input{
		Migration:   m,
		Observation: c.observer.Observe(m.GroupResource()),
		State:       state,
		Triggered:   c.options.Triggered,
		Settle:      c.options.SettlePeriod,
		Now:         c.clock.Now(),
	})
}

// findEndpoint looks for the resource of a migration in the discovery documents. It returns a decision to fail if there
// is nothing to migrate. preferred is the version to take if the migration names none.
func (c *cluster) findEndpoint(
	ctx context.Context, m *migrationv1alpha1.StorageVersionMigration, preferred string,
) (found *rewrite.Resource, missing *Decision, err error) {
	resource, wanted := m.GroupResource(), m.Spec.Resource.Version
	versions, err := c.documents.Versions(ctx, resource.Group)
	if err != nil && !documents.NotServed(err) {
		return nil, nil, err
	}
	if wanted == "" && slices.Contains(versions, preferred) {
		versions = slices.Insert(versions, 0, preferred)
	}
	var served []string
	for _, version := range versions {
		found, canMigrate, err := c.endpointAt(ctx, resource.WithVersion(version))
		switch {
		case err != nil:
			return nil, nil, err
		case found == nil: // The group may serve only other resources at this version.
		case wanted != "" && version != wanted:
			served = append(served, version)
		case !canMigrate:
			return nil, new(failDecision(migrationv1alpha1.MigrationReasonVerbsNotSupported,
				"%q cannot be both listed and patched. Its objects must be rewritten in another way", resource)), nil
		default:
			return found, nil, nil
		}
	}
	if len(served) == 0 {
		return nil, new(failDecision(migrationv1alpha1.MigrationReasonResourceNotServed,
			"no server serves %q: check spec.resource. The resource is a plural, and only the core group is empty",
			resource)), nil
	}
	return nil, new(failDecision(migrationv1alpha1.MigrationReasonVersionNotServed,
		"%q is not served at version %q, only at %q. Create a migration without a version", resource, wanted, served)), nil
}

// endpointAt returns nil if the API server does not serve the resource at this version. canMigrate means that its
// objects can be listed and patched.
func (c *cluster) endpointAt(
	ctx context.Context, resource schema.GroupVersionResource,
) (found *rewrite.Resource, canMigrate bool, err error) {
	document, err := c.documents.Resources(ctx, resource.GroupVersion())
	if documents.NotServed(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	observation := c.observer.Observe(resource.GroupResource())
	endpoint := &rewrite.Resource{
		GroupVersionResource: resource, Class: observation.Class, DefinedVersions: observation.Defined,
	}
	for _, r := range document.APIResources {
		switch r.Name {
		case resource.Resource:
			found = endpoint
			canMigrate = slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "patch")
		case resource.Resource + "/status":
			endpoint.RetryStatus = slices.Contains(r.Verbs, "patch") &&
				features.DefaultFeatureGate.Enabled(features.StatusSubresourceFallback)
		}
	}
	return found, canMigrate, nil
}
