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

package main

import (
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// write is a kind of request that stores an object again.
type write struct {
	name string
	// manager is its field manager.
	manager string
	// whole means that the answer is the whole object instead of its metadata.
	whole bool
	// put means that body replaces the object. Otherwise body is a patch of type kind.
	put  bool
	kind types.PatchType
	body func(object *unstructured.Unstructured) ([]byte, error)
}

var writes = []write{
	{name: "merge patch of uid and version", manager: "bench-0", kind: types.MergePatchType, body: identity},
	{name: "the same, whole answer", manager: "bench-1", whole: true, kind: types.MergePatchType, body: identity},
	{name: "empty merge patch", manager: "bench-2", kind: types.MergePatchType, body: constant(`{}`)},
	{name: "empty JSON patch", manager: "bench-3", kind: types.JSONPatchType, body: constant(`[]`)},
	{name: "apply of uid and version", manager: "bench-4", kind: types.ApplyPatchType, body: applied},
	{name: "PUT of the whole", manager: "bench-5", whole: true, put: true, body: (*unstructured.Unstructured).MarshalJSON},
}

func identity(object *unstructured.Unstructured) ([]byte, error) {
	const patch = `{"metadata":{"uid":%q,"resourceVersion":%q}}`
	return fmt.Appendf(nil, patch, object.GetUID(), object.GetResourceVersion()), nil
}

func constant(body string) func(*unstructured.Unstructured) ([]byte, error) {
	return func(*unstructured.Unstructured) ([]byte, error) { return []byte(body), nil }
}

func applied(object *unstructured.Unstructured) ([]byte, error) {
	return json.Marshal(map[string]any{
		"apiVersion": object.GetAPIVersion(), "kind": object.GetKind(),
		"metadata": map[string]any{
			"name": object.GetName(), "uid": object.GetUID(), "resourceVersion": object.GetResourceVersion(),
		},
	})
}
