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
)

// The newest fields of the migration API. A definition without them is another project's, or is too old.
const (
	NewestFieldOfStates     = "status.currentSinceTime"
	NewestFieldOfMigrations = "spec.suspend"
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

// Of finds out whether the API server serves a resource whose objects have a field. The field is a path with dots. An
// empty one means that any definition fits.
func Of(
	client discovery.DiscoveryInterface, resource schema.GroupVersionResource, kind, field string,
) (Found, error) {
	if served, err := discovery.IsResourceEnabled(client, resource); err != nil || !served {
		return NotServed, err
	}
	if field == "" {
		return Fits, nil
	}
	paths, err := client.OpenAPIV3().Paths()
	if err != nil {
		return NotServed, fmt.Errorf("listing the OpenAPI documents: %w", err)
	}
	path, exists := paths["apis/"+resource.GroupVersion().String()]
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
		case !slices.Contains(node.Kinds, resource.GroupVersion().WithKind(kind)):
		case node.has(strings.Split(field, ".")):
			return Fits, nil
		default:
			return Another, nil
		}
	}
	return NotServed, nil
}
