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
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/releases"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// This file says whether the resource of a migration is served, and what follows for the migration if it is not.

const (
	// servedPatience is how long a new migration waits for its resource to be served. Somebody may be creating a
	// definition and its migration together.
	servedPatience = 15 * time.Second
	// begunPatience is how long one that has begun waits. Somebody may be replacing an APIService, or upgrading servers.
	begunPatience = time.Hour
)

// requested is the resource of a migration as it is observed, at the version that the migration names, if any.
func (e *environment) requested(m *migrationv1alpha1.StorageVersionMigration) rewrite.Resource {
	observation, version := e.observer.Observe(m.GroupResource()), m.Spec.Resource.Version
	if (m.Begun() || m.HasEpoch()) && observation.Class == storageversion.Custom {
		version = "" // Custom resources are rewritten at the storage version. This one may have been withdrawn meanwhile.
	}
	return rewrite.Resource{
		GroupVersionResource: m.GroupResource().WithVersion(version),
		Class:                observation.Class,
	}
}

// locate sets r.served to the resource as it is served, preferably at the version of the target. If it is not served,
// or cannot be migrated, the error is a PermanentError.
func (r *migrationRun) locate(ctx context.Context, target *migrationv1alpha1.MigrationTarget) error {
	preferred := ""
	if version, err := schema.ParseGroupVersion(target.EncodingVersion); err == nil && version.Group == r.resource.Group {
		preferred = version.Version
	}
	requested := r.env.requested(r.status.stored)
	found, err := FindToRewrite(ctx, r.env.documents, requested, preferred)
	if cannot, is := errors.AsType[*rewrite.PermanentError](err); is && r.status.stored.Begun() &&
		cannot.Reason == migrationv1alpha1.MigrationReasonVersionNotServed {
		requested.Version = "" // It was served when the migration began.
		found, err = FindToRewrite(ctx, r.env.documents, requested, preferred)
	}
	if err == nil {
		r.served = *found
		r.served.MayUseStatus = found.MayUseStatus && r.env.options.UseStatus
	}
	return err
}

// failIfNotServed returns a decision to fail if a person created the migration, and its resource does not exist or is
// not stored: such a migration might wait forever. In all other cases, and while the migration is suspended, it returns
// the decision to wait that it was given, with the time to look again. The resource of a migration of the trigger was
// served and stored, so servers were rolled back since. Such a migration waits. When the servers are upgraded again,
// the trigger replaces it.
func (c *Controller) failIfNotServed(
	ctx context.Context, m *migrationv1alpha1.StorageVersionMigration, wait Decision,
) Decision {
	resource := m.GroupResource()
	observation, now := c.env.observer.Observe(resource), c.env.clock.Now()
	switch {
	case observation.Presence == storageversion.Served, m.HasEpoch(),
		wait.Reason == migrationv1alpha1.MigrationReasonSuspended:
		return wait
	case observation.Presence == storageversion.PresenceUnknown && !releases.BuiltIn(resource.Group):
		// Perhaps an aggregated server was not read. If it hangs, another request would hold up other migrations.
		return wait.untilAtMost(now.Add(maxRequeue))
	}
	requested := c.env.requested(m)
	if m.Begun() {
		requested.Version = "" // It was served when the migration began.
	}
	_, err := findServed(ctx, c.env.documents, requested, "")
	if err == nil && observation.Presence == storageversion.NotServed && observation.Class != storageversion.Custom {
		// All servers were read, and none has a storage version of the resource that the API server does serve.
		err = NotStored(resource)
	}
	missing, isMissing := errors.AsType[*rewrite.PermanentError](err)
	othersMayServe := observation.Presence == storageversion.PresenceUnknown && isMissing &&
		missing.Reason != migrationv1alpha1.MigrationReasonVerbsNotSupported
	if !isMissing || othersMayServe {
		klog.FromContext(ctx).V(4).Info("It is not known whether the resource is served and stored", "err", err)
		// The reason to wait is true in any case.
		return wait.untilAtMost(now.Add(maxRequeue))
	}
	failsAt := m.CreationTimestamp.Add(servedPatience)
	if m.Begun() {
		failsAt = cmp.Or(waitingSince(&m.Status, wait), now).Add(begunPatience)
	}
	mayAppear := missing.Reason == migrationv1alpha1.MigrationReasonResourceNotServed ||
		missing.Reason == migrationv1alpha1.MigrationReasonInvalidResource
	if mayAppear && now.Before(failsAt) {
		return wait.untilAtMost(failsAt)
	}
	return Decision{Verdict: Fail, Reason: missing.Reason, Message: missing.Message}
}

// servedElsewhere reports whether the resource is served, although err says that the manager's own API server does not
// list it. That happens while API servers of two releases run, and when an API server has just started and has many
// definitions.
func (r *migrationRun) servedElsewhere(err error) bool {
	return isNotServed(err) && r.env.observer.Observe(r.resource).Presence == storageversion.Served
}

// isNotServed reports whether err says that the manager's own API server does not list the resource.
func isNotServed(err error) bool {
	missing, is := errors.AsType[*rewrite.PermanentError](err)
	return is && missing.Reason == migrationv1alpha1.MigrationReasonResourceNotServed
}
