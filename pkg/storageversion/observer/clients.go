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
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// serverName is what servers verify each other by when they talk at their own addresses.
	serverName = "kubernetes.default.svc"

	// connectTimeout is short: all servers are in one place, and a host that is gone must not hold up what is said of others.
	connectTimeout = 2 * time.Second

	// A look is some 35 requests to each server, which are spread over a second and a half.
	documentsPerSecond = 20
	documentsAtOnce    = 10
)

// clients are all that talk to servers. No limit of the caller's applies: what is watched is listed by one request after
// the other, and documents have a limit of their own.
type clients struct {
	leases, endpointSlices, storageVersions, definitions, apiServices rest.Interface

	// host asks whichever server answers behind the configured host.
	host reader
	// hostAddress names it.
	hostAddress string

	// direct is the configuration for a server at an address of its own, which is the only thing missing in it.
	direct     *rest.Config
	directHTTP *http.Client
	hostHTTP   *http.Client
}

func newClients(config *rest.Config) (*clients, error) {
	config = rest.CopyConfig(config)
	config.RateLimiter, config.QPS, config.Burst = nil, -1, 0
	config.Timeout = 0 // It would end watches; every other request has a timeout of its own.
	config.ContentConfig = rest.ContentConfig{}

	c := &clients{direct: directConfig(config)}
	var err error
	if c.hostHTTP, err = rest.HTTPClientFor(config); err != nil {
		return nil, fmt.Errorf("making a client for the API server: %w", err)
	}
	if c.directHTTP, err = rest.HTTPClientFor(c.direct); err != nil {
		return nil, fmt.Errorf("making a client for single API servers: %w", err)
	}
	if err := c.addWatching(config); err != nil {
		return nil, fmt.Errorf("making a client for the API server: %w", err)
	}
	if c.host, err = newReader(config, c.hostHTTP); err != nil {
		return nil, fmt.Errorf("making a client for the API server: %w", err)
	}
	c.hostAddress = config.Host
	if u, err := url.Parse(config.Host); err == nil && u.Host != "" {
		c.hostAddress = u.Host
	}
	return c, nil
}

func (c *clients) addWatching(config *rest.Config) error {
	compact := rest.CopyConfig(config)
	compact.ContentType = runtime.ContentTypeProtobuf
	compact.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	clientset, err := kubernetes.NewForConfigAndClient(compact, c.hostHTTP)
	if err != nil {
		return err
	}
	c.leases = clientset.CoordinationV1().RESTClient()
	c.endpointSlices = clientset.DiscoveryV1().RESTClient()
	c.storageVersions = clientset.InternalV1alpha1().RESTClient()
	if c.definitions, err = newSlimClient(config, c.hostHTTP, definitionKind.GroupVersion()); err != nil {
		return err
	}
	c.apiServices, err = newSlimClient(config, c.hostHTTP, apiServiceKind.GroupVersion())
	return err
}

// newSlimClient returns a client for the slim types of a group version, which have no protobuf.
func newSlimClient(config *rest.Config, client *http.Client, groupVersion schema.GroupVersion) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.APIPath = "/apis"
	config.GroupVersion = &groupVersion
	config.ContentType = runtime.ContentTypeJSON
	config.NegotiatedSerializer = serializer.NewCodecFactory(slimScheme).WithoutConversion()
	return rest.RESTClientForConfigAndClient(config, client)
}

// directConfig is what config becomes for asking a server at its own address.
//
// The certificate there is the server's own, whatever stands before the configured host: a tls-server-name that was
// configured is about what stands there, and is replaced by the name that the servers use among themselves. The CA stays
// the configured one; if that is only about what stands before the servers, a look fails and says why. Who configured
// not to verify the host gets no more than that at an address either. A proxy is the way to the configured host, not to
// an address inside of the cluster.
func directConfig(config *rest.Config) *rest.Config {
	direct := rest.CopyConfig(config)
	direct.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	if direct.Dial == nil {
		direct.Dial = (&net.Dialer{Timeout: connectTimeout, KeepAlive: 30 * time.Second}).DialContext
	}
	direct.Host = ""
	direct.ServerName = serverName
	return direct
}

// at returns a reader of the server at an address.
func (c *clients) at(address string) (reader, error) {
	config := rest.CopyConfig(c.direct)
	config.Host = (&url.URL{Scheme: "https", Host: address}).String()
	return newReader(config, c.directHTTP)
}

// forgetConnections makes the next look begin with new connections to addresses, so that it is answered by the process that
// listens there now, and not by one that has left and finishes what it began.
func (c *clients) forgetConnections() {
	utilnet.CloseIdleConnectionsFor(c.directHTTP.Transport)
}

func (c *clients) closeIdleConnections() {
	utilnet.CloseIdleConnectionsFor(c.directHTTP.Transport)
	utilnet.CloseIdleConnectionsFor(c.hostHTTP.Transport)
}

// reader reads discovery documents at one address.
type reader struct{ client rest.Interface }

func newReader(config *rest.Config, client *http.Client) (reader, error) {
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	config.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(documentsPerSecond, documentsAtOnce)
	c, err := rest.UnversionedRESTClientForConfigAndClient(config, client)
	return reader{client: c}, err
}

func (r reader) get(ctx context.Context, path, accept string) (body []byte, contentType string, err error) {
	result := r.client.Get().AbsPath(path).SetHeader("Accept", accept).Timeout(requestTimeout).MaxRetries(1).
		Do(ctx).ContentType(&contentType)
	if err := result.Error(); err != nil { // has the API server's words, and that of Raw has not
		return nil, contentType, err
	}
	body, err = result.Raw()
	return body, contentType, err
}
