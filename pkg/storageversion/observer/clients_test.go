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
	"net"
	"net/http"
	"net/url"
	"testing"

	"k8s.io/client-go/rest"
)

func TestClientsOfSingleServers(t *testing.T) {
	wrap := func(next http.RoundTripper) http.RoundTripper { return next }
	configured := &rest.Config{
		Host:            "https://api.example.com/clusters/one",
		BearerTokenFile: "/token",
		TLSClientConfig: rest.TLSClientConfig{
			ServerName: "api.example.com", CAData: []byte("ca"), CertFile: "/cert", KeyFile: "/key"},
		Proxy:         http.ProxyURL(&url.URL{Scheme: "http", Host: "proxy:3128"}),
		WrapTransport: wrap,
		Impersonate:   rest.ImpersonationConfig{UserName: "somebody"},
	}
	direct := directConfig(configured)
	if direct.ServerName != "kubernetes.default.svc" || direct.Host != configured.Host {
		t.Errorf("server name %q, host %q", direct.ServerName, direct.Host)
	}
	request := &http.Request{URL: &url.URL{Scheme: "https", Host: "10.0.0.1"}}
	if proxy, err := direct.Proxy(request); proxy != nil || err != nil {
		t.Errorf("proxy %v, error %v", proxy, err)
	}
	if direct.BearerTokenFile != "/token" || string(direct.CAData) != "ca" || direct.CertFile != "/cert" ||
		direct.KeyFile != "/key" || direct.WrapTransport == nil || direct.Impersonate.UserName != "somebody" {
		t.Error("credentials, CA or wrappers are lost")
	}
	if configured.ServerName != "api.example.com" || configured.Dial != nil {
		t.Error("the caller's configuration was changed")
	}

	insecure := directConfig(&rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if !insecure.Insecure {
		t.Error("who is not verified at the host is verified at addresses")
	}
	if own := directConfig(&rest.Config{Dial: (&net.Dialer{}).DialContext}); own.Dial == nil {
		t.Error("the dialer is lost")
	}
}

func TestReadersOfAddressesThatAreGone(t *testing.T) {
	c, err := newClients(&rest.Config{Host: "https://api.example.com"})
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"10.0.0.1:443", "10.0.0.2:443"} {
		if _, err := c.reader(address, true); err != nil {
			t.Fatal(err)
		}
	}
	before := c.readers["10.0.0.2:443"]
	c.forgetOthers([]string{"10.0.0.2:443"})
	if kept, err := c.reader("10.0.0.2:443", true); err != nil || kept != before || len(c.readers) != 1 {
		t.Errorf("readers %v, error %v", c.readers, err)
	}
}
