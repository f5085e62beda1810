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
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// kube-controller-manager has a migrator too: the in-tree migrator. Two migrators of one resource would send twice the
// requests. A success of the in-tree migrator proves nothing here, because it does not check that all servers agree.

const (
	inTreeGroup    = "storagemigration.k8s.io"
	inTreeResource = "storageversionmigrations." + inTreeGroup
	// inTreeRetry is how often the migrator checks whether an in-tree migration has ended.
	inTreeRetry = 10 * time.Second
)

// runningInTree returns the name of a running in-tree migration of the resource, or an empty string. It reads in-tree
// migrations at any version, because the fields that it needs are the same in all versions. It returns an empty string
// also if in-tree migrations are not served, or cannot be listed. One that no API server can read any more, because it
// was stored at a version of an earlier release, would hold up all migrations otherwise.
func (e *environment) runningInTree(ctx context.Context, resource schema.GroupResource) string {
	list, err := e.listInTree(ctx)
	switch {
	case documents.IsNotServed(err), ctx.Err() != nil: // A run that must stop says nothing about them.
		return ""
	case err != nil:
		e.inTree.Failed(ctx, "unlisted "+string(apierrors.ReasonForError(err)), "The migrations of "+
			"kube-controller-manager cannot be listed, so the migrator does not wait for them. Allow it to list them, or "+
			"delete those that nobody can read", "resource", inTreeResource, "err", err)
		return ""
	}
	e.inTree.Succeeded(ctx, "Migrations of kube-controller-manager can be listed")
	for _, m := range list.Items {
		is := func(condition storagemigrationv1.MigrationConditionType) bool {
			return meta.IsStatusConditionTrue(m.Status.Conditions, string(condition))
		}
		// The in-tree migrator leaves Running True for a moment when a migration has ended.
		ended := is(storagemigrationv1.MigrationSucceeded) || is(storagemigrationv1.MigrationFailed)
		if schema.GroupResource(m.Spec.Resource) == resource && is(storagemigrationv1.MigrationRunning) && !ended {
			return m.Name
		}
	}
	return ""
}

func (e *environment) listInTree(ctx context.Context) (*storagemigrationv1.StorageVersionMigrationList, error) {
	list := &storagemigrationv1.StorageVersionMigrationList{}
	versions, err := e.documents.Versions(ctx, inTreeGroup)
	if err != nil || len(versions) == 0 {
		return list, err
	}
	path := "/apis/" + inTreeGroup + "/" + versions[0] + "/storageversionmigrations"
	return list, e.documents.Decode(ctx, path, nil, runtime.ContentTypeJSON, "StorageVersionMigrationList", list)
}

// checkInTree returns an error while kube-controller-manager migrates the resource.
func (r *migrationRun) checkInTree(ctx context.Context) error {
	if name := r.env.runningInTree(ctx, r.resource); name != "" {
		return r.postponeForInTree(ctx, "the migration %q of kube-controller-manager rewrites the same objects. This one "+
			"continues when that one has ended. If it does not end, delete it: kubectl delete %s %s",
			name, inTreeResource, name)
	}
	return nil
}

// checkInTreeEnd returns an error while the definition says that kube-controller-manager migrates the resource. At the
// end of its migration, kube-controller-manager prunes status.storedVersions too.
func (r *migrationRun) checkInTreeEnd(ctx context.Context, definition *documents.Definition) error {
	if !definition.StorageMigrating() {
		return nil
	}
	return r.postponeForInTree(ctx, "all objects are done, but the CustomResourceDefinition has the condition "+
		"StorageMigrating, which kube-controller-manager sets while it migrates the resource. status.storedVersions is "+
		"pruned when the condition is False. If no %s of the resource is left, create one, or set the condition to False",
		inTreeResource)
}

// postponeForInTree postpones a migration until kube-controller-manager has migrated the resource.
func (r *migrationRun) postponeForInTree(ctx context.Context, format string, args ...any) error {
	return r.postpone(ctx, inTreeRetry, waitDecision(migrationv1alpha1.MigrationReasonAwaitingInTree, format, args...))
}
