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

package report

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	migrationclient "sigs.k8s.io/svm-api/client/clientset/versioned/typed/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

// TestWithoutPermissions wants a script to see that the report has nothing.
func TestWithoutPermissions(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/version" {
			w.WriteHeader(http.StatusForbidden)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"gitVersion":"v1.37.1"}`))
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	var out bytes.Buffer
	o := &Options{}
	o.Env = &cli.Env{IOStreams: genericiooptions.IOStreams{Out: &out, ErrOut: &out}, Clock: clock.RealClock{}}
	o.Output.Format = cli.YAML
	kube := kubernetes.NewForConfigOrDie(config)
	o.Clients = &cli.Clients{
		Config: config, Kube: kube, Discovery: kube.DiscoveryClient, Dynamic: dynamic.NewForConfigOrDie(config),
		Migration: migrationclient.NewForConfigOrDie(config),
	}
	if err := o.Run(t.Context()); cli.ExitCode(err, o.Env) != cli.ExitError || !strings.Contains(out.String(), "v1.37.1") {
		t.Errorf("got the error %v and\n%s", err, out.String())
	}
}
