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

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/releases"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// PlanDryRun returns what a new migration of a resource would rewrite, for a dry run. If it would rewrite nothing, the
// error is a PermanentError. PlanDryRun does not observe all servers. It reads what one of them
// writes, so the migration may wait for others, or come to another decision.
func PlanDryRun(
	ctx context.Context, client rest.Interface, resource schema.GroupResource,
) (*rewrite.Resource, error) {
	if storageversion.Expires(resource) {
		expire := objectsExpire()
		return nil, &rewrite.PermanentError{Reason: expire.Reason, Message: expire.Message}
	}
	reader := documents.Reader{Client: client, Timeout: readTimeout}
	class, definition, err := classify(ctx, reader, resource)
	if err != nil {
		return nil, err
	}
	requested := rewrite.Resource{GroupVersionResource: resource.WithVersion(""), Class: class, DryRun: true}
	if class == storageversion.Custom {
		return findToRewrite(ctx, reader, requested, definition.StorageVersion())
	}
	written, stored, err := publishedVersion(ctx, reader, resource)
	if err != nil {
		return nil, err
	}
	found, err := findToRewrite(ctx, reader, requested, written)
	if err == nil && class == storageversion.Aggregated && !stored {
		return nil, notStored(resource)
	}
	return found, err
}

// classify returns which kind of server serves a resource, and the definition of a custom one.
func classify(
	ctx context.Context, reader documents.Reader, resource schema.GroupResource,
) (storageversion.Class, *documents.Definition, error) {
	if releases.BuiltIn(resource.Group) {
		return storageversion.BuiltIn, nil, nil
	}
	definition, err := reader.Definition(ctx, resource)
	if documents.IsNotServed(err) {
		return storageversion.Aggregated, nil, nil
	}
	return storageversion.Custom, definition, err
}

// publishedVersion returns the version in which a server writes a resource, as the hash in its discovery documents
// shows. It is empty if that version is not served. stored is false if the documents have no hash.
func publishedVersion(
	ctx context.Context, reader documents.Reader, resource schema.GroupResource,
) (version string, stored bool, err error) {
	versions, err := reader.Versions(ctx, resource.Group)
	if err != nil && !documents.IsNotServed(err) {
		return "", false, err
	}
	hash, served := "", map[storageversion.Encoding]string{}
	for _, version := range versions {
		at := resource.WithVersion(version)
		one, err := reader.ServedAt(ctx, at)
		if err != nil {
			return "", false, err
		}
		if one != nil {
			hash, served[storageversion.Hash(at.GroupVersion(), one.Kind)] = cmp.Or(hash, one.StorageVersionHash), version
		}
	}
	return served[hash], hash != "", nil
}
