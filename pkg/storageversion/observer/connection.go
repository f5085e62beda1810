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
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

var (
	errConnectionEnded = errors.New("the connection has ended")
	errMixed           = errors.New("requests on one connection reached several processes")
	errNoStart         = errors.New("the answer does not show when the process started")
)

// connection reaches one process, whichever it is: a balancer that passes TLS through has chosen it when the connection
// began. When the connection ends there is no other one, because that may reach another process.
type connection struct {
	address string
	reader  documents.Reader
	dial    func(ctx context.Context, network, address string) (net.Conn, error)

	// ended is closed when the connection ended.
	ended chan struct{}
	end   func()

	mu     sync.Mutex
	begun  bool
	closed bool
	conn   net.Conn // nil until it is there
}

// closeNotifier calls closed when the transport closes the connection. The transport does so as soon as the other end
// has.
type closeNotifier struct {
	net.Conn
	closed func()
}

func (n *closeNotifier) Close() error {
	defer n.closed()
	return n.Conn.Close()
}

// connect returns a connection that begins with the first request.
func (c *clients) connect(address string, direct bool) (*connection, error) {
	config := rest.CopyConfig(c.hostConfig)
	if direct {
		config = c.directTo(address)
	}
	one := &connection{address: address, dial: config.Dial, ended: make(chan struct{})}
	one.end = sync.OnceFunc(func() { close(one.ended) })
	if one.dial == nil {
		one.dial = (&net.Dialer{Timeout: connectTimeout}).DialContext
	}
	// The transports of client-go are shared, and with them their connections.
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	transport, err := rest.HTTPWrappersForConfig(config, utilnet.SetTransportDefaults(&http.Transport{
		TLSClientConfig: tlsConfig, Proxy: config.Proxy, DialContext: one.dialOnce,
	}))
	if err != nil {
		return nil, err
	}
	one.reader, err = newReader(config, &http.Client{Transport: transport})
	return one, err
}

func (c *connection) dialOnce(ctx context.Context, network, address string) (net.Conn, error) {
	c.mu.Lock()
	begun := c.begun
	c.begun = true
	c.mu.Unlock()
	if begun {
		return nil, errConnectionEnded
	}
	conn, err := c.dial(ctx, network, address)
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errors.Join(errConnectionEnded, conn.Close())
	}
	c.conn = &closeNotifier{Conn: conn, closed: c.end}
	return c.conn, nil
}

func (c *connection) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	if c.conn != nil {
		_ = c.conn.Close() // It may have ended already.
	}
}

// startMetric is a counter that every API server creates when its process starts. As protobuf, the metric has that time
// in nanoseconds. An API server does not tell its identity, and the start time in /statusz has whole seconds, in which
// several servers may start.
const startMetric = "apiserver_audit_event_total"

// readStart returns when the process at the other end started. Two processes that started in the same nanosecond look
// like one. One process does not look like two.
func readStart(ctx context.Context, from documents.Reader) (string, error) {
	families, err := from.Families(ctx, startMetric)
	if err != nil {
		return "", err
	}
	for _, metric := range families[startMetric].GetMetric() {
		if created := metric.GetCounter().GetCreatedTimestamp(); created != nil {
			return created.AsTime().Format(time.RFC3339Nano), nil
		}
	}
	return "", fmt.Errorf("getting /metrics: %w", errNoStart)
}

// refused reports whether it is of no use to ask again. An answer that was cut off is no reason not to.
func refused(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || apierrors.IsNotFound(err) ||
		errors.Is(err, errNoStart) || errors.Is(err, proto.Error)
}
