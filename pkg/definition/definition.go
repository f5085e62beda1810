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

// The resources of the migration API.
var (
	States     = migrationv1alpha1.SchemeGroupVersion.WithResource("storagestates")
	Migrations = migrationv1alpha1.SchemeGroupVersion.WithResource("storageversionmigrations")
)

// Check finds out whether the API server serves a resource. If this release has a definition of the resource, the one
// of the API server must have all its fields. If it lacks one, missing is the path of that field.
func Check(
	ctx context.Context, client discovery.DiscoveryInterfaceWithContext, resource schema.GroupVersionResource,
) (served bool, missing string, err error) {
	ofRelease, err := ofThisRelease()
	if err != nil {
		return false, "", err
	}
	wanted, defined := ofRelease[resource]
	group := resource.GroupVersion()
	list, err := client.ServerResourcesForGroupVersionWithContext(ctx, group.String())
	switch {
	case apierrors.IsNotFound(err):
		return false, "", nil
	case err != nil:
		return false, "", err
	}
	at := slices.IndexFunc(list.APIResources, func(r metav1.APIResource) bool { return r.Name == resource.Resource })
	if at < 0 || !defined {
		return at >= 0, "", nil
	}
	nodes, err := read(ctx, client, group)
	if err != nil {
		return false, "", fmt.Errorf("reading the OpenAPI document of %s: %w", group, err)
	}
	for _, node := range nodes {
		if slices.Contains(node.Kinds, group.WithKind(list.APIResources[at].Kind)) {
			return true, wanted.missingIn(node), nil
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
var ofThisRelease = sync.OnceValues(func() (map[schema.GroupVersionResource]node, error) {
	manifests, err := crds.Manifests()
	if err != nil {
		return nil, err
	}
	schemas := map[schema.GroupVersionResource]node{}
	for _, manifest := range manifests {
		var definition struct {
			Spec struct {
				Group    string
				Names    struct{ Plural string }
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
			schemas[group.WithResource(definition.Spec.Names.Plural)] = version.Schema.OpenAPIV3Schema
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
