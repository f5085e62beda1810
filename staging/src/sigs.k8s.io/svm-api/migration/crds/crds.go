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

// Package crds holds the CustomResourceDefinitions of the migration.k8s.io API, for programs that install them.
//
// They come as the YAML that was generated, so that the module needs nothing of apiextensions. A program that has its
// types decodes the YAML into them; one that has not takes them as unstructured objects.
package crds

import (
	"embed"
	"fmt"
	"io/fs"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

//go:embed *.yaml
var files embed.FS

// Manifest is one CustomResourceDefinition.
type Manifest struct {
	// FileName is the name of the file that it comes from, as in build/manifests/crds.
	FileName string
	// YAML is the content of the file: one document.
	YAML []byte
}

// Manifests returns all CustomResourceDefinitions in the order of their file names. The caller may change what it gets.
func Manifests() ([]Manifest, error) {
	// ReadDir sorts.
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return nil, fmt.Errorf("listing embedded CustomResourceDefinitions: %w", err)
	}
	manifests := make([]Manifest, 0, len(entries))
	for _, entry := range entries {
		data, err := files.ReadFile(entry.Name())
		if err != nil {
			return nil, fmt.Errorf("reading embedded CustomResourceDefinition %q: %w", entry.Name(), err)
		}
		manifests = append(manifests, Manifest{FileName: entry.Name(), YAML: data})
	}
	return manifests, nil
}

// Objects returns all CustomResourceDefinitions decoded, in the order of Manifests.
func Objects() ([]*unstructured.Unstructured, error) {
	manifests, err := Manifests()
	if err != nil {
		return nil, err
	}
	objects := make([]*unstructured.Unstructured, 0, len(manifests))
	for _, manifest := range manifests {
		// Through JSON by way of UnmarshalJSON, which turns numbers into int64 as unstructured objects want them.
		data, err := yaml.YAMLToJSON(manifest.YAML)
		if err != nil {
			return nil, fmt.Errorf("decoding embedded CustomResourceDefinition %q: %w", manifest.FileName, err)
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(data); err != nil {
			return nil, fmt.Errorf("decoding embedded CustomResourceDefinition %q: %w", manifest.FileName, err)
		}
		objects = append(objects, object)
	}
	return objects, nil
}
