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

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// This file finds a resource in discovery documents, and the version at which its objects are rewritten. It needs
// nothing but a reader of documents.

// FindToRewrite is findServed, but a resource that is not built-in is migrated at its storage version, whatever version
// the migration names. At another one each write could remove the fields that this version does not have, also from
// objects that are current already. Of a custom resource it reads the storage version from the definition, which may be
// newer than what the caller knows. Of an aggregated one it is preferred, if that is served.
func FindToRewrite(
	ctx context.Context, reader documents.Reader, requested rewrite.Resource, preferred string,
) (*rewrite.Resource, error) {
	found, err := findServed(ctx, reader, requested, preferred)
	switch {
	case err != nil:
		return nil, err
	case found.Class == storageversion.Aggregated && preferred != "" && found.Version != preferred:
		at, verbs, err := servedAt(ctx, reader, *found, preferred)
		if err == nil && canMigrate(verbs) {
			found = at
		}
		return found, err
	case found.Class == storageversion.Custom:
		if found.Schemas, err = reader.Schemas(ctx, found.GroupResource()); err != nil {
			return nil, err
		}
		return atStorageVersion(ctx, reader, found)
	}
	return found, nil
}

func canMigrate(verbs []string) bool {
	return slices.Contains(verbs, "list") && slices.Contains(verbs, "patch")
}

// findServed looks for a resource in the discovery documents. If it is not served, or cannot be migrated, the error is
// a PermanentError. preferred is the version to take if requested has none.
func findServed(
	ctx context.Context, reader documents.Reader, requested rewrite.Resource, preferred string,
) (*rewrite.Resource, error) {
	resource, wanted := requested.GroupResource(), requested.Version
	versions, err := reader.Versions(ctx, resource.Group)
	if err != nil && !documents.IsNotServed(err) {
		return nil, err
	}
	if wanted == "" && slices.Contains(versions, preferred) {
		versions = slices.Insert(versions, 0, preferred)
	}
	var served []string
	var unread error
	for _, version := range versions {
		found, verbs, err := servedAt(ctx, reader, requested, version)
		switch {
		case err != nil && wanted != "" && version != wanted:
			unread = err // An aggregated server that is away may serve it.
		case err != nil:
			return nil, err
		case found == nil: // The group may serve only other resources at this version.
		case wanted != "" && version != wanted:
			served = append(served, version)
		case found.Class == storageversion.Custom && slices.Contains(verbs, "delete") && !slices.Contains(verbs, "update"):
			// So API servers serve custom resources while their definition waits for the deletion of the objects.
			return nil, fmt.Errorf("the CustomResourceDefinition of %q is being deleted", resource)
		case !canMigrate(verbs):
			return nil, cannotRewrite(migrationv1alpha1.MigrationReasonVerbsNotSupported,
				"%q cannot be both listed and patched. Its objects must be rewritten in another way", resource)
		default:
			return found, nil
		}
	}
	if unread != nil {
		return nil, unread
	}
	if len(served) == 0 {
		return nil, cannotRewrite(migrationv1alpha1.MigrationReasonResourceNotServed,
			"no server serves %q. Check spec.resource: resource is the plural name, and group is empty only for the core group",
			resource)
	}
	return nil, cannotRewrite(migrationv1alpha1.MigrationReasonVersionNotServed,
		"%q is not served at version %q, only at %q. Create a migration without a version", resource, wanted, served)
}

// servedAt returns the resource at one version, and its verbs, or nil if the API server does not serve it at that
// version.
func servedAt(
	ctx context.Context, reader documents.Reader, candidate rewrite.Resource, version string,
) (found *rewrite.Resource, verbs []string, err error) {
	candidate.Version = version
	served, err := reader.ServedAt(ctx, candidate.GroupVersionResource)
	if served == nil || err != nil {
		return nil, nil, err
	}
	candidate.Namespaced = &served.Namespaced
	candidate.MayUseStatus = slices.Contains(served.StatusVerbs, "patch")
	return &candidate, served.Verbs, nil
}

// atStorageVersion returns a custom resource at its storage version. If that is not served, it returns the resource as
// it was found if a webhook converts the objects, otherwise a PermanentError.
func atStorageVersion(
	ctx context.Context, reader documents.Reader, found *rewrite.Resource,
) (*rewrite.Resource, error) {
	resource, storage := found.GroupResource(), found.Schemas.Storage
	switch {
	case found.Version == storage:
		return found, nil
	case found.Schemas.StorageServed:
		at, _, err := servedAt(ctx, reader, *found, storage)
		if err == nil && at == nil {
			err = fmt.Errorf("discovery does not show yet that %s is served at %s", resource, storage)
		}
		return at, err
	case found.Schemas.Webhook:
		return found, nil
	}
	return nil, cannotRewrite(migrationv1alpha1.MigrationReasonVersionNotServed,
		"%q is stored at version %q, which is not served, and no webhook converts the objects. Written at another version "+
			"they would lose the fields that only %s has. Serve %s, or add a conversion webhook",
		resource, storage, storage, storage)
}

// NotStored returns the error of a resource that is served but not stored.
func NotStored(resource schema.GroupResource) error {
	return cannotRewrite(migrationv1alpha1.MigrationReasonInvalidResource,
		"the server of %q publishes no storage version of it, so it stores no objects that could be migrated", resource)
}

// cannotRewrite returns the error of a resource whose objects cannot be rewritten.
func cannotRewrite(reason, format string, args ...any) error {
	return &rewrite.PermanentError{Reason: reason, Message: controller.Sentence(fmt.Sprintf(format, args...))}
}
