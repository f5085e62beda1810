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
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

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
	case object.GetKind() == definitionKind && object.GroupVersionKind().Group == documents.DefinitionsV1.Group:
		m.definitions = append(m.definitions, object)
	default:
		m.others++
	}
	return nil
}

// decodeDefinition reads a definition of a file.
func decodeDefinition(object *unstructured.Unstructured) (d documents.Definition, err error) {
	content, err := object.MarshalJSON()
	if err == nil {
		err = json.Unmarshal(content, &d)
	}
	if err != nil {
		return d, fmt.Errorf("reading CustomResourceDefinition %q: %w", object.GetName(), err)
	}
	d.Status.StoredVersions, d.Status.Conditions = nil, nil // A status in a file says nothing.
	return d, nil
}
