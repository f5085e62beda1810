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
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// TestOf asks a server with one group, whose OpenAPI document says this about the fields of its kinds.
func TestOf(t *testing.T) {
	const (
		group  = "/apis/migration.k8s.io/v1alpha1"
		states = `{"components":{"schemas":{
			"io.k8s.migration.v1alpha1.Other":{"properties":{"spec":{"properties":{"suspend":{"type":"boolean"}}}}},
			"io.k8s.migration.v1alpha1.StorageState":{
				"properties":{"status":{"type":"object","properties":{%q:{"type":"string"}}}},
				"x-kubernetes-group-version-kind":[
					{"group":"migration.k8s.io","kind":"StorageState","version":"v1alpha1"}]}}}}`
	)
	newest := fmt.Sprintf(states, "currentSinceTime")
	for _, test := range []struct {
		name     string
		wanted   Wanted
		document string
		want     Found
		fails    bool
	}{
		{name: "it has the field", wanted: States, document: newest, want: Fits},
		{name: "it lacks the field", wanted: States, document: fmt.Sprintf(states, "lastHeartbeatTime"), want: Another},
		{name: "no document yet", wanted: States, want: NotServed},
		{name: "no schemas yet", wanted: States, document: "{}", want: NotServed},
		{name: "no schema of the kind", wanted: Wanted{States.Resource, "Other", "spec.suspend"}, document: newest,
			want: NotServed},
		{name: "no field is wanted", wanted: Wanted{Resource: States.Resource}, want: Fits},
		{name: "another resource", wanted: Migrations, document: newest, want: NotServed},
		{name: "half a document", wanted: States, document: newest[:20], want: NotServed, fails: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			answers := map[string]string{
				group: `{"kind":"APIResourceList","groupVersion":"migration.k8s.io/v1alpha1","resources":[
					{"name":"storagestates","kind":"StorageState","verbs":["list"]}]}`,
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
			found, err := Of(t.Context(), client, test.wanted)
			if found != test.want || (err != nil) != test.fails {
				t.Errorf("got %q and the error %v, want %q", found, err, test.want)
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
		if _, err := Of(ctx, client, States); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got the error %v", silent, err)
		}
		server.Close()
	}
}
