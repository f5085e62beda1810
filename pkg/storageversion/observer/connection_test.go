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

package observer

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// TestProxyOfConnections has a proxy that is asked about the whole address, as NO_PROXY may name a port or IPv6.
func TestProxyOfConnections(t *testing.T) {
	for _, host := range []string{"https://api.example.com:6443", "https://[fd00::10]:6443"} {
		var asked string
		c, err := newClients(&rest.Config{Host: host, Proxy: func(r *http.Request) (*url.URL, error) {
			asked = r.URL.Scheme + "://" + r.URL.Host
			return nil, errors.New("no way")
		}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.connect(t.Context(), "", false); err == nil || asked != host {
			t.Errorf("the proxy was asked about %q, want %q; error %v", asked, host, err)
		}
	}
}

// TestConnectionThatServerEnds is noticed, and no other connection takes its place.
func TestConnectionThatServerEnds(t *testing.T) {
	for name, start := range map[string]func(*httptest.Server){
		"HTTP/2":      func(s *httptest.Server) { s.EnableHTTP2 = true; s.StartTLS() },
		"HTTP/1":      (*httptest.Server).StartTLS,
		"without TLS": (*httptest.Server).Start,
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprint(w, `{"gitVersion":"v1.34.4"}`)
			}))
			start(s)
			t.Cleanup(s.Close)
			c, err := newClients(&rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
			if err != nil {
				t.Fatal(err)
			}
			one, err := c.connect(t.Context(), s.Listener.Addr().String(), false)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(one.close)
			if _, err := one.reader.ServerVersion(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.CloseClientConnections()
			select {
			case <-one.ended:
			case <-time.After(soon):
				t.Error("nobody noticed the end")
			}
			if _, err := one.reader.ServerVersion(t.Context()); err == nil {
				t.Error("a connection was made again")
			}
		})
	}
}

// TestCredentialPluginThatNeedsItsCluster has a credential plugin that chooses credentials by the configured host.
func TestCredentialPluginThatNeedsItsCluster(t *testing.T) {
	s := newFakeServer(t)
	s.documents["/version"] = `{"gitVersion":"v1.37.1"}`
	plugin := filepath.Join(t.TempDir(), "plugin")
	script := fmt.Sprintf(`#!/bin/sh
case "$KUBERNETES_EXEC_INFO" in
*'"server":"%s"'*) ;;
*) echo "no credentials for this cluster: $KUBERNETES_EXEC_INFO" >&2; exit 1 ;;
esac
echo '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"x"}}'
`, s.URL)
	if err := os.WriteFile(plugin, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	config := s.config()
	config.ExecProvider = &clientcmdapi.ExecConfig{
		Command: plugin, APIVersion: "client.authentication.k8s.io/v1", ProvideClusterInfo: true,
		InteractiveMode: clientcmdapi.NeverExecInteractiveMode,
	}
	c, err := newClients(config)
	if err != nil {
		t.Fatal(err)
	}
	defer c.closeIdleConnections()
	direct, err := c.reader(s.address(), true)
	if err != nil {
		t.Fatal(err)
	}
	one, err := c.connect(t.Context(), s.address(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer one.close()
	for where, from := range map[string]documents.Reader{
		"at the configured host": c.host, "at its own address": direct, "on a connection of its own": one.reader,
	} {
		if _, err := from.ServerVersion(t.Context()); err != nil {
			t.Errorf("%s: %v", where, err)
		}
	}
}
