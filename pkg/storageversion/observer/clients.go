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
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

const (
	// serverName is the name by which servers verify each other at their own addresses.
	serverName = "kubernetes.default.svc"

	// connectTimeout is short: all servers are in one place, and a host that is gone must not delay reading the others.
	connectTimeout = 2 * time.Second

	// requestTimeout bounds every request for a document.
	requestTimeout = 5 * time.Second

	// A look takes some 30 requests to each server. The limit spreads them over a second and a half. It holds for all
	// requests to an address together, or else thousands of custom resources, whose servers are asked one resource after
	// the other, would cost each server a thousand requests a second. A connection to one process has a limit of its own.
	documentsPerSecond = 20
	documentsAtOnce    = 10
)

// clients are all that talk to servers. The caller's rate limit does not apply: a watch sends one request after the
// other, and documents have a limit of their own.
type clients struct {
	leases, endpointSlices, storageVersions, definitions, apiServices *watchedList

	// host asks whichever server answers behind the configured host. objects does the same for what is no document, so
	// without the limit.
	host, objects documents.Reader

	// hostConfig is the configuration for the configured host, directConfig that for a server at its own address. It keeps
	// the configured host instead of an address, because a credential plugin may choose credentials by it.
	hostConfig   *rest.Config
	directConfig *rest.Config
	directHTTP   *http.Client
	hostHTTP     *http.Client

	readersMu sync.Mutex
	readers   map[string]documents.Reader // of servers, by their own addresses
}

func newClients(config *rest.Config) (*clients, error) {
	config = rest.CopyConfig(config)
	config.RateLimiter, config.QPS, config.Burst = nil, -1, 0
	config.Timeout = 0 // It would end watches. Every other request has its own timeout.
	config.ContentConfig = rest.ContentConfig{}

	c := &clients{hostConfig: config, directConfig: directConfig(config), readers: map[string]documents.Reader{}}
	var err error
	if c.hostHTTP, err = rest.HTTPClientFor(config); err != nil {
		return nil, err
	}
	if c.directHTTP, err = rest.HTTPClientFor(c.directConfig); err != nil {
		return nil, err
	}
	if c.host, err = newReader(config, c.hostHTTP); err != nil {
		return nil, err
	}
	lists, err := documents.NewClient(config, c.hostHTTP)
	if err != nil {
		return nil, err
	}
	c.objects = documents.Reader{Client: lists, Timeout: 2 * requestTimeout, Retries: 10}
	c.leases = newWatchedList(lists, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases",
		IdentityLabel+"="+kubeAPIServer)
	c.endpointSlices = newWatchedList(lists, slicesPath(metav1.NamespaceDefault), endpointsSelector)
	c.storageVersions = newWatchedList(lists, "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions", "")
	c.definitions = newWatchedList(lists, documents.DefinitionsPath, "")
	c.apiServices = newWatchedList(lists, "/apis/apiregistration.k8s.io/v1/apiservices", "")
	return c, nil
}

// directConfig returns the configuration for asking a server at its own address.
//
// There the server shows its own certificate, whatever stands in front of the configured host. A configured
// tls-server-name is about what stands in front, so the name that servers use among themselves replaces it. The CA
// stays the configured one. If it is only the CA of what stands in front, the request fails and says why. If the
// configuration does not verify the host, it does not verify the address either. A proxy leads to the configured
// host, and not to an address inside the cluster.
func directConfig(config *rest.Config) *rest.Config {
	direct := rest.CopyConfig(config)
	direct.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	if direct.Dial == nil {
		direct.Dial = (&net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second}).DialContext
	}
	direct.ServerName = serverName
	return direct
}

// addresses returns those to ask: of the servers that are ready or, if there are none, that of the configured host.
// direct says that each is a server's own address.
func (c *clients) addresses(ready []string) (addresses []string, direct bool) {
	if len(ready) > 0 {
		return ready, true
	}
	return []string{c.host.Client.Get().URL().Host}, false
}

// reader returns the reader of the server at its own address, or else of whichever server answers behind the host. It
// is the same one for each request to an address, because it limits the rate of these requests.
func (c *clients) reader(address string, direct bool) (documents.Reader, error) {
	if !direct {
		return c.host, nil
	}
	c.readersMu.Lock()
	defer c.readersMu.Unlock()
	if known, ok := c.readers[address]; ok {
		return known, nil
	}
	reader, err := newReader(c.directTo(address), c.directHTTP)
	if err == nil {
		c.readers[address] = reader
	}
	return reader, err
}

// forgetOthers forgets the readers of all other addresses. Where API servers come and go, addresses do so too.
func (c *clients) forgetOthers(addresses []string) {
	c.readersMu.Lock()
	defer c.readersMu.Unlock()
	maps.DeleteFunc(c.readers, func(address string, _ documents.Reader) bool {
		return !slices.Contains(addresses, address)
	})
}

// directTo returns the configuration for a server at its own address.
func (c *clients) directTo(address string) *rest.Config {
	config := rest.CopyConfig(c.directConfig)
	config.Host = (&url.URL{Scheme: "https", Host: address}).String()
	return config
}

// forgetConnections makes the next requests to addresses use new connections. The process that listens there now then
// answers them, and not one that has stopped listening and finishes what it began.
func (c *clients) forgetConnections() {
	utilnet.CloseIdleConnectionsFor(c.directHTTP.Transport)
}

func (c *clients) closeIdleConnections() {
	utilnet.CloseIdleConnectionsFor(c.directHTTP.Transport)
	utilnet.CloseIdleConnectionsFor(c.hostHTTP.Transport)
}

func newReader(config *rest.Config, client *http.Client) (documents.Reader, error) {
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(documentsPerSecond, documentsAtOnce)
	c, err := rest.UnversionedRESTClientForConfigAndClient(config, client)
	return documents.Reader{Client: c, Timeout: requestTimeout, Retries: 1}, err
}
