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
	"maps"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/svm-api/migration/crds"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// Wanted is a resource as a program needs it.
type Wanted struct {
	Resource schema.GroupVersionResource
	// Kind is the kind of the objects. Its definition must have every field that the definition of this release has.
	// Without a kind, any definition will do.
	Kind string
}

// The resources of the migration API.
var (
	States = Wanted{
		Resource: migrationv1alpha1.SchemeGroupVersion.WithResource("storagestates"),
		Kind:     "StorageState",
	}
	Migrations = Wanted{
		Resource: migrationv1alpha1.SchemeGroupVersion.WithResource("storageversionmigrations"),
		Kind:     "StorageVersionMigration",
	}
)

// Check finds out whether the API server serves a resource, and whether its definition is the one that is wanted. If it
// is another one, missing is the path of a field that it lacks.
func Check(
	ctx context.Context, client discovery.DiscoveryInterfaceWithContext, wanted Wanted,
) (served bool, missing string, err error) {
	group := wanted.Resource.GroupVersion()
	list, err := client.ServerResourcesForGroupVersionWithContext(ctx, group.String())
	named := func(r metav1.APIResource) bool { return r.Name == wanted.Resource.Resource }
	switch {
	case apierrors.IsNotFound(err):
		return false, "", nil
	case err != nil:
		return false, "", err
	case !slices.ContainsFunc(list.APIResources, named):
		return false, "", nil
	case wanted.Kind == "":
		return true, "", nil
	}
	nodes, err := read(ctx, client, group)
	if err != nil {
		return false, "", fmt.Errorf("reading the OpenAPI document of %s: %w", group, err)
	}
	ofRelease, err := ofThisRelease()
	if err != nil {
		return false, "", err
	}
	for _, node := range nodes {
		if slices.Contains(node.Kinds, group.WithKind(wanted.Kind)) {
			return true, ofRelease[group.WithKind(wanted.Kind)].missingIn(node), nil
		}
	}
	return false, "", nil
}

// node is what matters of a schema, in an OpenAPI document or in a definition.
type node struct {
	Properties map[string]node
	Items      *node
	Kinds      []schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
}

// missingIn returns the path of the first field that another schema lacks, or "".
func (n node) missingIn(other node) string {
	if n.Items != nil {
		return n.Items.missingIn(ptr.Deref(other.Items, node{}))
	}
	for _, name := range slices.Sorted(maps.Keys(n.Properties)) {
		field, exists := other.Properties[name]
		if !exists {
			return name
		}
		if missing := n.Properties[name].missingIn(field); missing != "" {
			return name + "." + missing
		}
	}
	return ""
}

// ofThisRelease returns the schemas of the definitions of this release.
var ofThisRelease = sync.OnceValues(func() (map[schema.GroupVersionKind]node, error) {
	manifests, err := crds.Manifests()
	if err != nil {
		return nil, err
	}
	schemas := map[schema.GroupVersionKind]node{}
	for _, manifest := range manifests {
		var definition struct {
			Spec struct {
				Group    string
				Names    struct{ Kind string }
				Versions []struct {
					Name   string
					Schema struct{ OpenAPIV3Schema node }
				}
			}
		}
		if err := yaml.Unmarshal(manifest.YAML, &definition); err != nil {
			return nil, fmt.Errorf("decoding %s: %w", manifest.FileName, err)
		}
		for _, version := range definition.Spec.Versions {
			group := schema.GroupVersion{Group: definition.Spec.Group, Version: version.Name}
			schemas[group.WithKind(definition.Spec.Names.Kind)] = version.Schema.OpenAPIV3Schema
		}
	}
	return schemas, nil
})

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
