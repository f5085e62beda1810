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

package crds_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"sigs.k8s.io/svm-api/migration/crds"
	"sigs.k8s.io/svm-api/migration/v1alpha1"
)

func TestObjectsAreTheTwoDefinitionsOfTheGroup(t *testing.T) {
	objects, err := crds.Objects()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"storagestates." + v1alpha1.GroupName, "storageversionmigrations." + v1alpha1.GroupName}
	if len(objects) != len(want) {
		t.Fatalf("got %d objects, want %d", len(objects), len(want))
	}
	for i, object := range objects {
		if object.GetKind() != "CustomResourceDefinition" || object.GetName() != want[i] {
			t.Errorf("object %d is %s %q, want CustomResourceDefinition %q", i, object.GetKind(), object.GetName(), want[i])
		}
		if object.GetAnnotations()["api-approved.kubernetes.io"] == "" {
			t.Errorf("%s: no annotation api-approved.kubernetes.io; API servers refuse groups under k8s.io without it",
				object.GetName())
		}
	}
}

func TestLimitsInTheSchemaAreThoseInTheCode(t *testing.T) {
	const migrations, states = "storageversionmigrations", "storagestates"
	for _, limit := range []struct {
		resource, path, keyword string
		want                    int64
	}{
		{migrations, "deniedObjects", "maxItems", v1alpha1.MaxDeniedObjects},
		{migrations, "deniedObjects[].name", "maxLength", v1alpha1.MaxDeniedObjectNameLength},
		{migrations, "deniedObjects[].reason", "maxLength", v1alpha1.MaxDeniedObjectReasonLength},
		{migrations, "deniedObjects[].message", "maxLength", v1alpha1.MaxDeniedObjectMessageLength},
		{migrations, "evidence.servers", "maxItems", v1alpha1.MaxEvidenceServers},
		{migrations, "evidence.endpoints", "maxItems", v1alpha1.MaxEvidenceEndpoints},
		{migrations, "evidence.customResourceDefinition.storedVersions", "maxItems", v1alpha1.MaxEvidenceStoredVersions},
		{states, "evidence.servers", "maxItems", v1alpha1.MaxEvidenceServers},
		{states, "evidence.endpoints", "maxItems", v1alpha1.MaxEvidenceEndpoints},
		{states, "evidence.customResourceDefinition.storedVersions", "maxItems", v1alpha1.MaxEvidenceStoredVersions},
		{states, "persistedStorageVersionHashes", "maxItems", v1alpha1.MaxPersistedStorageVersionHashes},
		{states, "persistedEncodingVersions", "maxItems", v1alpha1.MaxPersistedStorageVersionHashes},
		{states, "encodings", "maxItems", v1alpha1.MaxEncodings},
		{states, "storageSharedWith", "maxItems", v1alpha1.MaxStorageSharedWith},
		{states, "conditions[].message", "maxLength", v1alpha1.MaxConditionMessageLength},
		{states, "lastHandledRetry", "maxLength", v1alpha1.MaxRetryLength},
	} {
		found := false
		walk(property(t, schemaOf(t, limit.resource), "status"), "", func(path string, schema map[string]any) {
			if path != "."+limit.path {
				return
			}
			found = true
			if got := schema[limit.keyword]; got != limit.want {
				t.Errorf("%s: %s of %s is %v, want %d", limit.resource, limit.keyword, limit.path, got, limit.want)
			}
		})
		if !found {
			t.Errorf("%s: no %s", limit.resource, limit.path)
		}
	}
}

// The names that the documents gave, and with which kube-storage-version-migrator stored, may never go.
func TestFieldsOfTheDocumentsAreThere(t *testing.T) {
	for resource, paths := range map[string][][]string{
		"storageversionmigrations": {
			{"spec", "resource", "group"}, {"spec", "resource", "version"}, {"spec", "resource", "resource"},
			{"spec", "continueToken"}, {"status", "conditions"},
		},
		"storagestates": {
			{"spec", "resource", "group"}, {"spec", "resource", "resource"},
			{"status", "persistedStorageVersionHashes"}, {"status", "currentStorageVersionHash"},
			{"status", "lastHeartbeatTime"},
		},
	} {
		for _, path := range paths {
			property(t, schemaOf(t, resource), path...)
		}
	}
	condition, _ := property(t, schemaOf(t, "storageversionmigrations"), "status", "conditions")["items"].(map[string]any)
	for _, name := range []string{"type", "status", "lastUpdateTime", "reason", "message"} {
		property(t, condition, name)
	}
}

// What kubectl explain prints, and what server-side apply and the API server's cost estimates live on.
func TestEverythingIsDescribedAndBounded(t *testing.T) {
	// Fields of the documents have no bounds there. Continue tokens and conditions have to hold whatever servers say.
	unbounded := map[string]bool{
		"storageversionmigrations.spec.continueToken":                 true,
		"storageversionmigrations.status.progress.continueToken":      true,
		"storageversionmigrations.status.conditions":                  true,
		"storageversionmigrations.status.conditions[].type":           true,
		"storageversionmigrations.status.conditions[].status":         true,
		"storageversionmigrations.status.conditions[].reason":         true,
		"storageversionmigrations.status.conditions[].message":        true,
		"storageversionmigrations.status.conditions[].lastUpdateTime": true,
	}
	for _, resource := range []string{"storageversionmigrations", "storagestates"} {
		for _, name := range []string{"spec", "status"} {
			walk(property(t, schemaOf(t, resource), name), resource+"."+name, func(path string, schema map[string]any) {
				if schema["description"] == nil && path[len(path)-1] != ']' {
					t.Errorf("%s has no description", path)
				}
				if problem := unboundedPart(schema); problem != "" && !unbounded[path] {
					t.Errorf("%s has no %s", path, problem)
				}
			})
		}
	}
}

// unboundedPart names the keyword that is missing for schema to have a bound.
func unboundedPart(schema map[string]any) string {
	switch schema["type"] {
	case "string":
		if schema["maxLength"] == nil && schema["enum"] == nil && schema["format"] == nil {
			return "maxLength"
		}
	case "array":
		if schema["x-kubernetes-list-type"] == nil {
			return "x-kubernetes-list-type"
		}
		if schema["maxItems"] == nil {
			return "maxItems"
		}
	}
	return ""
}

func walk(schema map[string]any, path string, visit func(path string, schema map[string]any)) {
	visit(path, schema)
	if properties, ok := schema["properties"].(map[string]any); ok {
		for name, property := range properties {
			walk(property.(map[string]any), path+"."+name, visit)
		}
	}
	if items, ok := schema["items"].(map[string]any); ok {
		walk(items, path+"[]", visit)
	}
}

func schemaOf(t *testing.T, resource string) map[string]any {
	t.Helper()
	objects, err := crds.Objects()
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		if object.GetName() != resource+"."+v1alpha1.GroupName {
			continue
		}
		versions, _, err := unstructured.NestedSlice(object.Object, "spec", "versions")
		if err != nil || len(versions) != 1 {
			t.Fatalf("%s has %d versions, want 1 (%v)", object.GetName(), len(versions), err)
		}
		schema, found, err := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema")
		if err != nil || !found {
			t.Fatalf("%s has no schema (%v)", object.GetName(), err)
		}
		return schema
	}
	t.Fatalf("no definition of %s", resource)
	return nil
}

func property(t *testing.T, schema map[string]any, path ...string) map[string]any {
	t.Helper()
	for _, name := range path {
		found, ok, err := unstructured.NestedMap(schema, "properties", name)
		if err != nil || !ok {
			t.Fatalf("no property %s in the schema", fmt.Sprint(path))
		}
		schema = found
	}
	return schema
}
