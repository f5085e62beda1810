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

// Package definition finds out whether the CustomResourceDefinitions that an API server has are those of this release.
// kube-storage-version-migrator has definitions of the same names, with fewer fields.
package definition

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/openapi3"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// Wanted is a resource as a program needs it.
type Wanted struct {
	Resource schema.GroupVersionResource
	// Kind and Field name a field without which a definition of the resource is another project's, or is too old: the
	// kind of the objects, and the path of the field with dots. No field means that any definition will do.
	Kind, Field string
}

// The resources of the migration API, with their newest fields.
var (
	States = Wanted{
		Resource: migrationv1alpha1.SchemeGroupVersion.WithResource("storagestates"),
		Kind:     "StorageState", Field: "status.currentSinceTime",
	}
	Migrations = Wanted{
		Resource: migrationv1alpha1.SchemeGroupVersion.WithResource("storageversionmigrations"),
		Kind:     "StorageVersionMigration", Field: "spec.suspend",
	}
)

// Found is what an API server knows about a kind.
type Found string

const (
	// NotServed: the API server does not serve the resource.
	NotServed Found = "not served"
	// Another: the API server serves the resource, and its objects lack the field.
	Another Found = "another definition"
	// Fits: the API server serves the resource with the field.
	Fits Found = "fits"
)

// Of finds out whether the API server serves a resource as it is wanted.
func Of(client discovery.DiscoveryInterface, wanted Wanted) (Found, error) {
	if served, err := discovery.IsResourceEnabled(client, wanted.Resource); err != nil || !served {
		return NotServed, err
	}
	if wanted.Field == "" {
		return Fits, nil
	}
	group := wanted.Resource.GroupVersion()
	document, err := openapi3.NewRoot(client.OpenAPIV3()).GVSpec(group)
	switch {
	case errors.As(err, new(*openapi3.GroupVersionNotFoundError)):
		return NotServed, nil // The API server makes the document a little later.
	case err != nil:
		return NotServed, fmt.Errorf("reading the OpenAPI document of %s: %w", group, err)
	case document.Components == nil:
		return NotServed, nil
	}
	for _, node := range document.Components.Schemas {
		var kinds []schema.GroupVersionKind
		_ = node.Extensions.GetObject("x-kubernetes-group-version-kind", &kinds) // Other schemas have none.
		if !slices.Contains(kinds, group.WithKind(wanted.Kind)) {
			continue
		}
		for name := range strings.SplitSeq(wanted.Field, ".") {
			field, exists := node.Properties[name]
			if !exists {
				return Another, nil
			}
			node = &field
		}
		return Fits, nil
	}
	return NotServed, nil
}
