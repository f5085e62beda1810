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
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

var (
	errMixed   = errors.New("requests on one connection reached several processes")
	errNoStart = errors.New("the answer does not show when the process started")
)

// connection reaches one process, whichever it is: a balancer that passes TLS through has chosen it when the connection
// began. When the connection ends there is no other one, because that may reach another process.
type connection struct {
	address string
	reader  documents.Reader
	conn    *http.ClientConn
	ended   chan struct{}           // closed when the connection ended
	who     storageversion.Document // who answers: see identify. A meeting first finds out only Started.
}

// connect makes a connection outside the transports of client-go, which are shared, and with them their connections.
func (c *clients) connect(ctx context.Context, address string, direct bool) (*connection, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	config, at, to := c.hostConfig, c.hostConfig, c.host.Client.Get().URL()
	if direct {
		config, at, to = c.directConfig, c.directTo(address), &url.URL{Scheme: "https", Host: address}
	}
	if to.Port() == "" {
		to.Host += ":" // This stands for the port of the scheme.
	}
	dial := config.Dial
	if dial == nil {
		dial = (&net.Dialer{Timeout: connectTimeout}).DialContext
	}
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	through := utilnet.SetTransportDefaults(&http.Transport{
		TLSClientConfig: tlsConfig, Proxy: config.Proxy, DialContext: dial, DisableCompression: config.DisableCompression,
	})
	proxy := through.Proxy // NewClientConn would ask it about the host without the port.
	through.Proxy = func(*http.Request) (*url.URL, error) { return proxy(&http.Request{URL: to}) }
	conn, err := through.NewClientConn(ctx, to.Scheme, to.Host)
	if err != nil {
		return nil, err
	}
	one := &connection{address: address, conn: conn, ended: make(chan struct{})}
	end := sync.OnceFunc(func() { close(one.ended) })
	conn.SetStateHook(func(conn *http.ClientConn) {
		if conn.Err() != nil {
			end()
		}
	})
	transport, err := rest.HTTPWrappersForConfig(config, wholeAnswers{conn})
	if err == nil {
		one.reader, err = newReader(at, &http.Client{Transport: transport})
	}
	if err != nil {
		one.close()
	}
	return one, err
}

func (c *connection) close() { _ = c.conn.Close() } // It may have ended already.

// startMetric is a counter that every API server creates when its process starts. As protobuf, the metric has that time
// in nanoseconds. An API server does not tell its identity, and the start time in /statusz has whole seconds, in which
// several servers may start.
const startMetric = "apiserver_audit_event_total"

// startTimeout bounds that request. Before it answers, an API server gathers all of its metrics, which are many if
// there are many definitions, and takes longer if it is busy.
const startTimeout = 15 * time.Second

// readStart returns when the process at the other end started. Two processes that started in the same nanosecond look
// like one. One process does not look like two.
func readStart(ctx context.Context, from documents.Reader) (time.Time, error) {
	from.Timeout = startTimeout
	families, err := from.Families(ctx, startMetric)
	if err != nil {
		return time.Time{}, err
	}
	for _, metric := range families[startMetric].GetMetric() {
		if created := metric.GetCounter().GetCreatedTimestamp(); created != nil {
			return created.AsTime(), nil
		}
	}
	return time.Time{}, fmt.Errorf("getting /metrics: %w", errNoStart)
}

// confirm returns an error unless the process still answers, and no other one does. It is called when all processes of
// a meeting were met, so it shows that they live at the same time. Without it a server that restarted during the
// meeting, or whose clock was set, could count as two.
func (c *connection) confirm(ctx context.Context, times int) error {
	for range times {
		again, err := readStart(ctx, c.reader)
		if err != nil {
			return err
		}
		if !again.Equal(c.who.Started) {
			return errMixed
		}
	}
	return nil
}

// isLasting reports whether the server would answer a repeated question with the same error. An answer that was cut off
// is not such an error.
func isLasting(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsNotFound(err) || errors.Is(err, errNoStart) ||
		errors.Is(err, proto.Error)
}

// wholeAnswers reads each answer of HTTP/1 to its end before it closes the body. Otherwise the connection would end.
type wholeAnswers struct{ http.RoundTripper }

func (w wholeAnswers) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := w.RoundTripper.RoundTrip(request)
	if err == nil && response.ProtoMajor == 1 {
		response.Body = wholeBody{response.Body}
	}
	return response, err
}

type wholeBody struct{ io.ReadCloser }

func (b wholeBody) Close() error {
	_, err := io.Copy(io.Discard, b.ReadCloser) // The context of the request bounds it.
	return errors.Join(err, b.ReadCloser.Close())
}
