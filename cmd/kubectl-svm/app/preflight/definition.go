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

package preflight

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// Definition is a CustomResourceDefinition.
type Definition struct {
	apiextensionsv1.CustomResourceDefinition
}

// slim drops what is large and not needed: a cluster may have thousands of definitions.
func slim(crd *apiextensionsv1.CustomResourceDefinition) Definition {
	crd.ManagedFields, crd.Annotations = nil, nil
	for i := range crd.Spec.Versions {
		crd.Spec.Versions[i].Schema = nil
	}
	return Definition{*crd}
}

// StorageVersion is the version that API servers write.
func (d *Definition) StorageVersion() string {
	version, _ := apihelpers.GetCRDStorageVersion(&d.CustomResourceDefinition) // A definition without one is refused.
	return version
}

// ServedVersions are the versions that API servers serve.
func (d *Definition) ServedVersions() []string {
	var served []string
	for _, v := range d.Spec.Versions {
		if v.Served {
			served = append(served, v.Name)
		}
	}
	return served
}

// Has reports whether the definition has a version, served or not.
func (d *Definition) Has(version string) bool {
	return slices.ContainsFunc(d.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Name == version
	})
}

// hash stands for a version of the definition in a StorageState.
func (d *Definition) hash(version string) string {
	return storageversion.Hash(schema.GroupVersion{Group: d.Spec.Group, Version: version}, d.Spec.Names.Kind)
}

// converts reports whether a webhook converts between versions.
func (d *Definition) converts() bool {
	return d.Spec.Conversion != nil && d.Spec.Conversion.Strategy == apiextensionsv1.WebhookConverter
}

const (
	definitionKind = "CustomResourceDefinition"
	// sniffLength is how many bytes decide whether a file is YAML or JSON.
	sniffLength = 4096
)

// manifests are the definitions of files, and how many objects of other kinds were passed over.
type manifests struct {
	definitions []*unstructured.Unstructured
	others      int
}

// readManifests reads files, directories with all that is in them, and "-" for the standard input.
func readManifests(paths []string, in io.Reader) (manifests, error) {
	var read manifests
	for _, path := range paths {
		if path == "-" {
			if err := read.readFrom(in); err != nil {
				return read, fmt.Errorf("reading the standard input: %w", err)
			}
			continue
		}
		err := filepath.WalkDir(path, func(file string, entry os.DirEntry, err error) error {
			extension := strings.ToLower(filepath.Ext(file))
			isManifest := slices.Contains([]string{".yaml", ".yml", ".json"}, extension)
			if err != nil || entry.IsDir() || !isManifest && file != path {
				return err
			}
			content, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			if err := read.readFrom(bytes.NewReader(content)); err != nil {
				return fmt.Errorf("reading %s: %w", file, err)
			}
			return nil
		})
		if err != nil {
			return read, err
		}
	}
	return read, nil
}

// readFrom reads a stream of documents.
func (m *manifests) readFrom(in io.Reader) error {
	decoder := utilyaml.NewYAMLOrJSONDecoder(in, sniffLength)
	for {
		object := &unstructured.Unstructured{}
		switch err := decoder.Decode(&object.Object); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if err := m.add(object); err != nil {
			return err
		}
	}
}

func (m *manifests) add(object *unstructured.Unstructured) error {
	switch {
	case len(object.Object) == 0: // Templates leave empty documents.
	case object.IsList():
		return object.EachListItem(func(item runtime.Object) error {
			return m.add(item.(*unstructured.Unstructured))
		})
	case object.GetKind() == definitionKind && object.GroupVersionKind().Group == apiextensionsv1.GroupName:
		m.definitions = append(m.definitions, object)
	default:
		m.others++
	}
	return nil
}

// decodeDefinition reads a definition of a file.
func decodeDefinition(object *unstructured.Unstructured) (Definition, error) {
	var d Definition
	err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &d.CustomResourceDefinition)
	if err != nil {
		return Definition{}, fmt.Errorf("reading CustomResourceDefinition %q: %w", object.GetName(), err)
	}
	d.Name = d.Spec.Names.Plural + "." + d.Spec.Group           // The API server refuses another one.
	d.Status = apiextensionsv1.CustomResourceDefinitionStatus{} // A status in a file says nothing.
	return d, nil
}
