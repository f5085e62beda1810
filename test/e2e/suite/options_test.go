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

package suite

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestAmbientCluster has a cluster that only the environment names. Nobody may ask it for anything.
func TestAmbientCluster(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the cluster of the environment was asked for %s", r.URL)
	}))
	defer server.Close()
	ambient := clientcmdapi.NewConfig()
	ambient.Clusters["ambient"] = &clientcmdapi.Cluster{Server: server.URL}
	ambient.Contexts["ambient"] = &clientcmdapi.Context{Cluster: "ambient"}
	ambient.CurrentContext = "ambient"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*ambient, path); err != nil {
		t.Fatal(err)
	}
	t.Setenv(clientcmd.RecommendedConfigPathEnvVar, path)
	skipped := false
	t.Run("suite", func(t *testing.T) {
		defer func() { skipped = t.Skipped() }()
		o := Options{Patience: defaultPatience, Objects: defaultObjects}
		Run(t, o, func(config *rest.Config) (Implementation, error) {
			t.Errorf("the suite is to run on %s", config.Host)
			return claims{}, nil
		}, nil)
	})
	if !skipped {
		t.Error("the suite was not skipped")
	}
}
