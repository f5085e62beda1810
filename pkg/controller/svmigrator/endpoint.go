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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// endpoint is how to reach a resource.
type endpoint struct {
	resource schema.GroupVersionResource
	// status says that it has a status subresource that can be patched.
	status bool
	// served are the versions at which it is served, of a custom resource whose managedFields are cleaned.
	served []string
	// hash is that of the encoding it is written in, as the API server says that answered.
	hash string
}

// find looks for the resource of a migration in the documents of whichever API server answers. It returns a decision to
// fail where there is nothing that could be migrated.
func find(ctx context.Context, client rest.Interface, m *migrationv1alpha1.StorageVersionMigration, preferred string) (*endpoint, *Decision, error) {
	wanted, resource := m.Spec.Resource.Version, resourceOf(m)
	versions, err := versionsOf(ctx, client, resource.Group)
	if err != nil {
		return nil, nil, err
	}
	candidates := versions
	switch {
	case wanted != "":
		candidates = slices.DeleteFunc(slices.Clone(versions), func(version string) bool { return version != wanted })
	case slices.Contains(versions, preferred):
		candidates = append([]string{preferred}, versions...)
	}
	for _, version := range candidates {
		found, err := findIn(ctx, client, resource.WithVersion(version))
		if err != nil {
			return nil, nil, err
		}
		if found == nil {
			continue
		}
		if !found.migratable {
			d := fails(migrationv1alpha1.MigrationReasonVerbsNotSupported,
				"%q cannot be listed and patched, which a migration does: its objects have to be rewritten in another way.", resource)
			return nil, &d, nil
		}
		return &found.endpoint, nil, nil
	}
	d, err := notFound(ctx, client, resource, wanted, versions)
	return nil, d, err
}

// notFound tells a version that is not served from a resource that is not.
func notFound(ctx context.Context, client rest.Interface, resource schema.GroupResource, wanted string, versions []string) (*Decision, error) {
	var served []string
	for _, version := range versions {
		// Another resource of the group may be what is served at a version.
		found, err := findIn(ctx, client, resource.WithVersion(version))
		if err != nil {
			return nil, err
		}
		if found != nil {
			served = append(served, version)
		}
	}
	d := fails(migrationv1alpha1.MigrationReasonVersionNotServed,
		"%q is not served at version %q, only at %q: create another migration, best without a version.", resource, wanted, served)
	if len(served) == 0 || wanted == "" {
		d = fails(migrationv1alpha1.MigrationReasonResourceNotServed, "no server serves %q: check spec.resource, whose resource is a plural, and whose group is empty only for the core group.", resource)
	}
	return &d, nil
}

// versionsOf returns the versions at which a group is served, the preferred one first.
func versionsOf(ctx context.Context, client rest.Interface, group string) ([]string, error) {
	if group == "" {
		return []string{"v1"}, nil
	}
	document := &metav1.APIGroup{}
	if found, err := read(ctx, client, document, "apis", group); err != nil || !found {
		return nil, err
	}
	versions := []string{document.PreferredVersion.Version}
	for _, version := range document.Versions {
		if version.Version != document.PreferredVersion.Version {
			versions = append(versions, version.Version)
		}
	}
	return versions, nil
}

type foundEndpoint struct {
	endpoint
	migratable bool
}

func findIn(ctx context.Context, client rest.Interface, resource schema.GroupVersionResource) (*foundEndpoint, error) {
	path := []string{"apis", resource.Group, resource.Version}
	if resource.Group == "" {
		path = []string{"api", resource.Version}
	}
	document := &metav1.APIResourceList{}
	if found, err := read(ctx, client, document, path...); err != nil || !found {
		return nil, err
	}
	var result *foundEndpoint
	for _, r := range document.APIResources {
		switch r.Name {
		case resource.Resource:
			if result == nil {
				result = &foundEndpoint{}
			}
			result.resource, result.hash = resource, r.StorageVersionHash
			result.migratable = slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "patch")
		case resource.Resource + "/status":
			if result == nil {
				result = &foundEndpoint{}
			}
			result.status = slices.Contains(r.Verbs, "patch")
		}
	}
	if result == nil || result.resource.Empty() {
		return nil, nil
	}
	return result, nil
}

// read reads a document of the API server. The error is nil where there is none.
func read(ctx context.Context, client rest.Interface, into runtime.Object, path ...string) (found bool, err error) {
	// Without the accept header the document would be an aggregated one, which has no hashes.
	err = client.Get().AbsPath(path...).SetHeader("Accept", runtime.ContentTypeJSON).MaxRetries(0).Timeout(readTimeout).Do(ctx).Into(into)
	if err == nil {
		return true, nil
	}
	if classify(err, "").kind == resourceGone {
		return false, nil
	}
	return false, fmt.Errorf("reading /%v: %w", path, err)
}
