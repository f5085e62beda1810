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

package rewrite

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
)

// This file compares whole objects. As a tree of maps, an object may need twenty times as much memory as its JSON:
// whoever may create NetworkPolicies can write one that needs more than a hundred megabytes. So all migrations together
// have the trees of one comparison at a time, and objects whose JSON is the same have none.

// whole is an object as an API server sent it.
type whole struct {
	metav1.PartialObjectMetadata
	json []byte
}

func decode(answer rest.Result) (*whole, error) {
	if err := answer.Error(); err != nil {
		return nil, err
	}
	w := &whole{}
	w.json, _ = answer.Raw() // Error has returned its error, with more of the API server's answer.
	// This one does not take a field Metadata for the metadata.
	if err := utiljson.Unmarshal(w.json, &w.PartialObjectMetadata); err != nil {
		return nil, fmt.Errorf("decoding an object: %w", err)
	}
	if w.UID == "" {
		return nil, errors.New("the answer is not an object")
	}
	return w, nil
}

// tree returns all fields of the object that count in a comparison, and its distinct owners.
func (w *whole) tree() (map[string]any, error) {
	object := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(w.json, &object.Object); err != nil { // This one rounds no integers.
		return nil, fmt.Errorf("decoding an object: %w", err)
	}
	if owners := distinct(w.OwnerReferences); len(owners) < len(w.OwnerReferences) {
		object.SetOwnerReferences(owners)
	}
	for _, name := range ofEachWrite {
		unstructured.RemoveNestedField(object.Object, "metadata", name)
	}
	return object.Object, nil
}

// sameJSON reports whether two objects have the same JSON, but for what each write may change.
func sameJSON(a, b *whole) bool {
	return reflect.DeepEqual(a.fields(), b.fields())
}

// fields returns the JSON of each field of the object, and of each field of its metadata.
func (w *whole) fields() (all struct{ ofObject, ofMetadata map[string]json.RawMessage }) {
	_ = json.Unmarshal(w.json, &all.ofObject) // It was decoded before.
	_ = json.Unmarshal(all.ofObject["metadata"], &all.ofMetadata)
	delete(all.ofObject, "metadata")
	for _, name := range ofEachWrite {
		delete(all.ofMetadata, name)
	}
	return all
}

// ofEachWrite are the fields of metadata that do not count in a comparison.
var ofEachWrite = []string{"resourceVersion", "managedFields"}

// difference returns the path of the first field that differs, and whether there is one. It does not return values,
// because they may be secret. A field that is null counts as absent. With onlyLosses it counts as a field, and fields
// of maps that only after has do not count. The path is made on the way back: an object may be thousands of fields
// deep. Of a long path, the end is cut off.
func difference(before, after any, onlyLosses bool) (path string, differs bool) {
	switch a := before.(type) {
	case map[string]any:
		b, same := after.(map[string]any)
		if !same {
			return "", true
		}
		names := sets.KeySet(a)
		if !onlyLosses {
			names = names.Union(sets.KeySet(b))
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			if _, kept := b[name]; onlyLosses && !kept {
				return "." + name, true
			}
			if below, found := difference(a[name], b[name], onlyLosses); found {
				return truncate("."+name+below, maxPath), true
			}
		}
		return "", false
	case []any:
		b, same := after.([]any)
		if !same {
			return "", true
		}
		for i := range max(len(a), len(b)) {
			if i >= len(a) || i >= len(b) {
				return item(i), true
			}
			if below, found := difference(a[i], b[i], onlyLosses); found {
				return truncate(item(i)+below, maxPath), true
			}
		}
		return "", false
	}
	return "", !reflect.DeepEqual(before, after)
}

// maxPath is how many characters of a path are worth reading.
const maxPath = 256

func item(i int) string { return "[" + strconv.Itoa(i) + "]" }
