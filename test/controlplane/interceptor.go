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

package controlplane

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

const (
	interceptorHeaderTimeout = 10 * time.Second
	userHeader               = "X-Remote-User"
	groupHeader              = "X-Remote-Group"
)

var errCut = errors.New("the test cuts this request")

// Interceptor is a proxy in front of API servers that sees each request and can spoil it. Clients are to the servers
// who they are to it: by their certificate, which it vouches for as a front proxy, or by what they send, such as a
// token. It streams, watches too.
type Interceptor struct {
	cp        *ControlPlane
	listener  net.Listener
	server    *http.Server
	target    func() string
	vouching  *http.Transport // as front proxy
	passing   *http.Transport // as nobody
	accepting sync.WaitGroup

	mu    sync.Mutex
	judge func(*http.Request) Verdict
	conns map[net.Conn]bool
}

// connectionKey is the key of a request's connection in its context.
type connectionKey struct{}

// NewInterceptor starts an interceptor in front of server, or of the balancer (without hosts, the only server) if
// server is nil. It lives on the host of that name, which is added if there is none; an empty name is this process. It
// ends with the control plane.
//
// What clients find out about addresses of servers leads around it.
func (cp *ControlPlane) NewInterceptor(host string, server *APIServer) (*Interceptor, error) {
	place := cp.network.home()
	if host != "" {
		var err error
		if place, err = cp.Host(host); err != nil {
			return nil, err
		}
	}
	i := &Interceptor{cp: cp, conns: map[net.Conn]bool{}, target: cp.endpoint}
	if server != nil {
		i.target = server.endpoint
	}
	serving, err := i.certify(place)
	if err != nil {
		return nil, fmt.Errorf("starting an interceptor: %w", err)
	}
	if i.listener, err = place.Listen("tcp", net.JoinHostPort(place.address, "0")); err != nil {
		return nil, fmt.Errorf("starting an interceptor: %w", err)
	}
	i.server = &http.Server{
		Handler:           http.HandlerFunc(i.serve),
		TLSConfig:         serving,
		ReadHeaderTimeout: interceptorHeaderTimeout,
		ConnState:         i.track,
		ConnContext: func(ctx context.Context, conn net.Conn) context.Context {
			return context.WithValue(ctx, connectionKey{}, conn)
		},
		// Clients that end a connection early are what tests are about, not news.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	i.accepting.Go(func() { _ = i.server.ServeTLS(i.listener, "", "") }) // which always ends with an error, after close
	cp.mu.Lock()
	defer cp.mu.Unlock()
	cp.proxies = append(cp.proxies, i)
	return i, nil
}

// certify makes what i is known by to clients and to servers.
func (i *Interceptor) certify(place *Host) (*tls.Config, error) {
	authority := i.cp.authority
	roots := x509.NewCertPool()
	roots.AddCert(authority.certificate)
	servingPair, err := authority.serving("interceptor", i.cp.servingNames(place)...)
	if err != nil {
		return nil, err
	}
	serving, err := tls.X509KeyPair(servingPair.certificate, servingPair.key)
	if err != nil {
		return nil, fmt.Errorf("using its certificate: %w", err)
	}
	proxyPair, err := authority.client(frontProxyUser)
	if err != nil {
		return nil, err
	}
	proxy, err := tls.X509KeyPair(proxyPair.certificate, proxyPair.key)
	if err != nil {
		return nil, fmt.Errorf("using the front proxy's certificate: %w", err)
	}
	transport := func(certificates ...tls.Certificate) *http.Transport {
		return &http.Transport{
			DialContext: place.DialContext,
			TLSClientConfig: &tls.Config{
				RootCAs:      roots,
				Certificates: certificates,
				ServerName:   serverDNSName,
				MinVersion:   tls.VersionTLS12,
			},
			ForceAttemptHTTP2:  true,
			DisableCompression: true, // which is between client and server
		}
	}
	i.vouching, i.passing = transport(proxy), transport()
	return &tls.Config{
		Certificates: []tls.Certificate{
			serving,
		}, ClientCAs: roots, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS12,
	}, nil
}

// Address is where clients connect to.
func (i *Interceptor) Address() string { return i.listener.Addr().String() }

// Config is a configuration for clients that authenticate as user and groups by certificate, through the interceptor.
func (i *Interceptor) Config(user string, groups ...string) *rest.Config {
	return i.cp.configFor(i.Address(), user, groups)
}

// Intercept lets judge decide about every request that comes from now on; nil lets all pass. It is called by many
// requests at a time, and must not read their bodies.
func (i *Interceptor) Intercept(judge func(*http.Request) Verdict) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.judge = judge
}

// CutConnections resets all connections that clients have at the moment. They may come back at once.
func (i *Interceptor) CutConnections() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for conn := range i.conns {
		reset(conn)
	}
}

func (i *Interceptor) close() error {
	err := i.server.Close()
	i.accepting.Wait()
	i.vouching.CloseIdleConnections()
	i.passing.CloseIdleConnections()
	if err != nil {
		return fmt.Errorf("closing an interceptor: %w", err)
	}
	return nil
}

func (i *Interceptor) track(conn net.Conn, state http.ConnState) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch state {
	case http.StateNew:
		i.conns[conn] = true
	case http.StateClosed, http.StateHijacked:
		delete(i.conns, conn)
	}
}

// reset ends a connection without a word: the other side learns it from its system.
func reset(conn net.Conn) {
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	if plain, ok := conn.(*net.TCPConn); ok {
		_ = plain.SetLinger(0) // it may have ended
	}
	closeAll(conn)
}

func (i *Interceptor) serve(w http.ResponseWriter, r *http.Request) {
	var v Verdict
	i.mu.Lock()
	judge := i.judge
	i.mu.Unlock()
	if judge != nil {
		v = judge(r)
	}
	if pause(r.Context(), v.Delay) != nil || v.Cut == CutBefore {
		v.cut(r)
	}
	if v.Status != 0 {
		v.answer(w)
		return
	}
	i.pass(w, r, v)
}

// cut ends a request, and the goroutine's work on it.
func (v Verdict) cut(r *http.Request) {
	if conn, ok := r.Context().Value(connectionKey{}).(net.Conn); ok && v.Connection && v.Cut != CutNever {
		reset(conn)
	}
	panic(http.ErrAbortHandler)
}

func (i *Interceptor) pass(w http.ResponseWriter, r *http.Request, v Verdict) {
	transport := i.passing
	if len(r.TLS.PeerCertificates) > 0 {
		transport = i.vouching
	}
	proxy := &httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // at once: watches wait for every event
		Rewrite: func(request *httputil.ProxyRequest) {
			request.SetURL(&url.URL{Scheme: "https", Host: i.target()})
			vouch(request.Out.Header, r.TLS.PeerCertificates)
		},
		ModifyResponse: func(response *http.Response) error {
			if v.Cut == CutAfter {
				return errCut
			}
			return nil
		},
		// A server that does not answer leaves the client without an answer, as it would if there were no proxy.
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { v.cut(r) },
	}
	proxy.ServeHTTP(w, r)
}

// vouch tells a server who the client is. What the client itself says about that is not believed.
func vouch(header http.Header, certificates []*x509.Certificate) {
	header.Del(userHeader)
	header.Del(groupHeader)
	if len(certificates) == 0 {
		return
	}
	header.Set(userHeader, certificates[0].Subject.CommonName)
	for _, group := range certificates[0].Subject.Organization {
		header.Add(groupHeader, group)
	}
}
