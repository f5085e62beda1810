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

package app

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

const kubeconfigOfNobody = `{apiVersion: v1, kind: Config, current-context: c,
  clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}], contexts: [{name: c, context: {cluster: c}}]}`

func TestPages(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(kubeconfigOfNobody), 0o600); err != nil {
		t.Fatal(err)
	}
	o, _ := newOptions()
	o.Generic.ClientConnection.Kubeconfig = kubeconfig
	o.Authentication.SkipInClusterLookup = true
	o.Authorization.AlwaysAllowPaths = []string{"/*"}
	var err error
	if o.SecureServing.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	c, err := o.Config()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	closed, err := serve(ctx, c, newHealth(nil, c.Reachable))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { cancel(); <-closed }()
	client := &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
	}
	for page, want := range map[string]int{"/livez": 200, "/metrics": 200, "/configz": 404} {
		response, err := client.Get("https://" + o.SecureServing.Listener.Addr().String() + page)
		if err != nil {
			t.Fatal(err)
		}
		if err := response.Body.Close(); err != nil || response.StatusCode != want {
			t.Errorf("%s answers %d, want %d (%v)", page, response.StatusCode, want, err)
		}
	}
}
