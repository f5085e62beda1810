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
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

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
func Of(ctx context.Context, client discovery.DiscoveryInterfaceWithContext, wanted Wanted) (Found, error) {
	group := wanted.Resource.GroupVersion()
	served, err := client.ServerResourcesForGroupVersionWithContext(ctx, group.String())
	named := func(r metav1.APIResource) bool { return r.Name == wanted.Resource.Resource }
	switch {
	case apierrors.IsNotFound(err):
		return NotServed, nil
	case err != nil:
		return NotServed, err
	case !slices.ContainsFunc(served.APIResources, named):
		return NotServed, nil
	case wanted.Field == "":
		return Fits, nil
	}
	nodes, err := read(ctx, client, group)
	if err != nil {
		return NotServed, fmt.Errorf("reading the OpenAPI document of %s: %w", group, err)
	}
	for _, node := range nodes {
		if !slices.Contains(node.Kinds, group.WithKind(wanted.Kind)) {
			continue
		}
		for name := range strings.SplitSeq(wanted.Field, ".") {
			field, exists := node.Properties[name]
			if !exists {
				return Another, nil
			}
			node = field
		}
		return Fits, nil
	}
	return NotServed, nil
}

// node is what matters of a schema of an OpenAPI document.
type node struct {
	Properties map[string]node
	Kinds      []schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
}

// read reads the schemas of a group version. There are none yet if the resource was defined a moment ago, because the
// API server makes the document a little later. Package openapi3 of client-go would ask without a context.
func read(
	ctx context.Context, client discovery.DiscoveryInterfaceWithContext, group schema.GroupVersion,
) (map[string]node, error) {
	paths, err := client.OpenAPIV3WithContext(ctx).PathsWithContext(ctx)
	if err != nil {
		return nil, err
	}
	path, exists := paths["apis/"+group.String()]
	if !exists {
		return nil, nil
	}
	text, err := path.SchemaWithContext(ctx, runtime.ContentTypeJSON)
	if err != nil {
		return nil, err
	}
	var document struct {
		Components struct{ Schemas map[string]node }
	}
	err = json.Unmarshal(text, &document)
	return document.Components.Schemas, err
}
