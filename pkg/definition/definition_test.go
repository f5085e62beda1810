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

package definition

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-api/migration/crds"
)

// document is an OpenAPI document with the schema of StorageStates of this release, without one field.
func document(t *testing.T, without ...string) string {
	t.Helper()
	definitions, err := crds.Objects()
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range definitions {
		kind, _, _ := unstructured.NestedString(object.Object, "spec", "names", "kind")
		plural, _, _ := unstructured.NestedString(object.Object, "spec", "names", "plural")
		versions, _, _ := unstructured.NestedSlice(object.Object, "spec", "versions")
		fields, _, _ := unstructured.NestedMap(versions[0].(map[string]any), "schema", "openAPIV3Schema")
		if plural != States.Resource {
			continue
		}
		if len(without) > 0 {
			unstructured.RemoveNestedField(fields, without...)
		}
		fields["x-kubernetes-group-version-kind"] = []any{
			map[string]any{"group": "migration.k8s.io", "kind": kind, "version": "v1alpha1"},
		}
		schemas := map[string]any{"io.k8s.migration.v1alpha1." + kind: fields}
		text, err := json.Marshal(map[string]any{"components": map[string]any{"schemas": schemas}})
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	t.Fatal("there is no definition of StorageStates")
	return ""
}

// TestCheck asks a server with one group, whose OpenAPI document says this about the fields of its kinds.
func TestCheck(t *testing.T) {
	const group = "/apis/migration.k8s.io/v1alpha1"
	complete := document(t)
	for _, test := range []struct {
		name     string
		wanted   schema.GroupVersionResource
		document string
		want     bool
		missing  string
		fails    bool
	}{
		{name: "it has all fields", wanted: States, document: complete, want: true},
		{name: "it lacks a field", wanted: States, want: true, missing: "status.epoch",
			document: document(t, "properties", "status", "properties", "epoch")},
		{name: "it lacks a field in a list", wanted: States, want: true, missing: "status.conditions.observedGeneration",
			document: document(t, "properties", "status", "properties", "conditions", "items", "properties",
				"observedGeneration")},
		{name: "no document yet", wanted: States},
		{name: "no schemas yet", wanted: States, document: "{}"},
		{name: "no schema of the kind", wanted: States, document: strings.ReplaceAll(complete, "StorageState", "Other")},
		{name: "any definition will do", wanted: States.GroupVersion().WithResource("others"), want: true},
		{name: "another resource", wanted: Migrations, document: complete},
		{name: "half a document", wanted: States, document: complete[:20], fails: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			answers := map[string]string{
				group: `{"kind":"APIResourceList","groupVersion":"migration.k8s.io/v1alpha1","resources":[
					{"name":"others","kind":"Other"}, {"name":"storagestates","kind":"StorageState","verbs":["list"]}]}`,
				"/openapi/v3": `{"paths":{}}`,
			}
			if test.document != "" {
				answers["/openapi/v3"] = `{"paths":{"apis/migration.k8s.io/v1alpha1":{"serverRelativeURL":"/openapi/v3` + group +
					`?hash=1"}}}`
				answers["/openapi/v3"+group] = test.document
			}
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				answer, known := answers[r.URL.Path]
				if !known {
					http.NotFound(w, r)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprint(w, answer)
			}))
			defer server.Close()
			client := discovery.NewDiscoveryClientForConfigOrDie(&rest.Config{Host: server.URL})
			served, missing, err := Check(t.Context(), client, test.wanted)
			if served != test.want || missing != test.missing || (err != nil) != test.fails {
				t.Errorf("served: %t, without %q, and the error %v; want served: %t", served, missing, err, test.want)
			}
		})
	}
}

// TestOfSilentServer asks a server that accepts a request and then says nothing.
func TestOfSilentServer(t *testing.T) {
	for _, silent := range []string{"/apis/migration.k8s.io/v1alpha1", "/openapi/v3"} {
		ctx, interrupt := context.WithCancel(t.Context())
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == silent {
				interrupt()
				<-r.Context().Done()
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprint(w, `{"kind":"APIResourceList","resources":[{"name":"storagestates"}]}`)
		}))
		client := discovery.NewDiscoveryClientForConfigOrDie(&rest.Config{Host: server.URL})
		if _, _, err := Check(ctx, client, States); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got the error %v", silent, err)
		}
		server.Close()
	}
}
