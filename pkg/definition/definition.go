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
	"encoding/json"
	"fmt"
	"slices"
	"strings"

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

// schemaNode is what an OpenAPI document says about the fields of an object.
type schemaNode struct {
	Properties map[string]schemaNode     `json:"properties"`
	Kinds      []schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
}

// has reports whether the schema has a field.
func (n schemaNode) has(path []string) bool {
	for _, name := range path {
		next, exists := n.Properties[name]
		if !exists {
			return false
		}
		n = next
	}
	return true
}

// Of finds out whether the API server serves a resource as it is wanted.
func Of(client discovery.DiscoveryInterface, wanted Wanted) (Found, error) {
	if served, err := discovery.IsResourceEnabled(client, wanted.Resource); err != nil || !served {
		return NotServed, err
	}
	if wanted.Field == "" {
		return Fits, nil
	}
	paths, err := client.OpenAPIV3().Paths()
	if err != nil {
		return NotServed, fmt.Errorf("listing the OpenAPI documents: %w", err)
	}
	path, exists := paths["apis/"+wanted.Resource.GroupVersion().String()]
	if !exists {
		return NotServed, nil // The API server makes the document a little later.
	}
	raw, err := path.Schema(runtime.ContentTypeJSON)
	if err != nil {
		return NotServed, fmt.Errorf("reading an OpenAPI document: %w", err)
	}
	var document struct {
		Components struct {
			Schemas map[string]schemaNode `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(raw, &document); err != nil {
		return NotServed, fmt.Errorf("decoding an OpenAPI document: %w", err)
	}
	for _, node := range document.Components.Schemas {
		switch {
		case !slices.Contains(node.Kinds, wanted.Resource.GroupVersion().WithKind(wanted.Kind)):
		case node.has(strings.Split(wanted.Field, ".")):
			return Fits, nil
		default:
			return Another, nil
		}
	}
	return NotServed, nil
}
