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

package v1alpha1

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write testdata/wire anew: only for a change of the wire format that is meant")

// The files in testdata/wire are the promise: an object that was stored or sent by any build reads the same in every
// later one. A field may be added (with -update, and a look at the difference); a line that changes or goes breaks
// somebody.
func TestWireFormat(t *testing.T) {
	for name, object := range map[string]runtime.Object{
		"StorageVersionMigration": filledMigration(),
		"StorageState":            filledState(),
	} {
		t.Run(name, func(t *testing.T) {
			encodedJSON, err := json.MarshalIndent(object, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			encodedYAML, err := yaml.Marshal(object)
			if err != nil {
				t.Fatal(err)
			}
			for extension, encoded := range map[string][]byte{".json": append(encodedJSON, '\n'), ".yaml": encodedYAML} {
				path := filepath.Join("testdata", "wire", name+extension)
				if *update {
					if err := os.WriteFile(path, encoded, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				stored, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(string(stored), string(encoded)); diff != "" {
					t.Errorf("the wire format changed, which breaks stored objects and other programs; "+
						"if it is meant, run the test with -update. %s (-stored +now):\n%s", path, diff)
				}
				decoded := decodeStrictly(t, stored)
				if diff := cmp.Diff(object, decoded); diff != "" {
					t.Errorf("%s reads as another object (-want +got):\n%s", path, diff)
				}
			}
		})
	}
}

func TestFillerLeavesNoFieldEmpty(t *testing.T) {
	migration, state := filledMigration(), filledState()
	for name, v := range map[string]any{
		"migration.spec": migration.Spec, "migration.status": migration.Status,
		"state.spec": state.Spec, "state.status": state.Status,
	} {
		requireFilled(t, name, reflect.ValueOf(v))
	}
}

func requireFilled(t *testing.T, path string, v reflect.Value) {
	t.Helper()
	if v.IsZero() || (v.Kind() == reflect.Slice && v.Len() == 0) {
		t.Errorf("%s is empty", path)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		requireFilled(t, path, v.Elem())
	case reflect.Slice:
		for i := range v.Len() {
			requireFilled(t, path, v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if field := v.Type().Field(i); field.IsExported() && field.Tag.Get("json") != "" {
				requireFilled(t, path+"."+field.Name, v.Field(i))
			}
		}
	}
}

// The objects in testdata/kube-storage-version-migrator have the shapes that kube-storage-version-migrator, its
// initializer, its trigger and its users' manifests have left in clusters.
func TestObjectsOfKubeStorageVersionMigratorPassUnchanged(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("testdata", "kube-storage-version-migrator", "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(paths) == 0 {
		t.Fatal("no files")
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) {
			stored, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var want any
			if err := yaml.Unmarshal(stored, &want); err != nil {
				t.Fatal(err)
			}
			encoded, err := json.Marshal(decodeStrictly(t, stored))
			if err != nil {
				t.Fatal(err)
			}
			var got any
			if err := json.Unmarshal(encoded, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("reading and writing changes the object (-stored +written):\n%s", diff)
			}
		})
	}
}

func TestStorageStateName(t *testing.T) {
	for want, resource := range map[string]GroupResource{
		"deployments.apps":               {Group: "apps", Resource: "deployments"},
		"pods":                           {Resource: "pods"},
		"storagestates.migration.k8s.io": {Group: GroupName, Resource: "storagestates"},
	} {
		if got := resource.StorageStateName(); got != want {
			t.Errorf("%+v: got %q, want %q", resource, got, want)
		}
	}
}

// decodeStrictly decodes JSON or YAML and fails the test on a field that the types do not have, or have twice.
func decodeStrictly(t *testing.T, data []byte) runtime.Object {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	object, _, err := codecs.UniversalDeserializer().Decode(data, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return object
}
