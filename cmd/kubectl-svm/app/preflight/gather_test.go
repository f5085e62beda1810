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
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

// TestSilentServer asks a server that accepts a request and then says nothing.
func TestSilentServer(t *testing.T) {
	for _, silent := range []string{"/version", "/apis"} {
		ctx, interrupt := context.WithCancel(t.Context())
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == silent {
				interrupt()
				<-r.Context().Done()
			}
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"gitVersion":"v1.37.0"}`))
		}))
		o := &Options{}
		o.Clients = &cli.Clients{Config: &rest.Config{}}
		if _, err := o.askServer(ctx, server.URL); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got the error %v", silent, err)
		}
		server.Close()
	}
}
