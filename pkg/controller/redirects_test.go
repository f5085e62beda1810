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

package controller

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// TestRedirectedWrites has a server that redirects each request, and answers what it redirected.
func TestRedirectedWrites(t *testing.T) {
	var followed []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, found := strings.CutPrefix(r.URL.Path, "/there")
		if !found {
			http.Redirect(w, r, "/there"+path, http.StatusFound)
			return
		}
		followed = append(followed, r.Method)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"kind":"ConfigMap","apiVersion":"v1"}`))
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, APIPath: "/api", ContentConfig: rest.ContentConfig{
		GroupVersion: &schema.GroupVersion{Version: "v1"}, NegotiatedSerializer: scheme.Codecs,
	}}
	RefuseRedirects(config)
	client, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Get().Resource("configmaps").Name("c").Do(t.Context()).Error(); err != nil {
		t.Errorf("a read: %v", err)
	}
	err = client.Patch(types.MergePatchType).Resource("configmaps").Name("c").Body([]byte("{}")).Do(t.Context()).Error()
	if err == nil || !strings.Contains(err.Error(), `redirect to "/there/api/v1/configmaps/c"`) {
		t.Errorf("a write: %v", err)
	}
	if len(followed) != 1 {
		t.Errorf("followed %q", followed)
	}
}
