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

package webhook

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	certutil "k8s.io/client-go/util/cert"
)

const headerTimeout = 10 * time.Second

// Server listens for hooks. Its methods may be called from any goroutine.
type Server struct {
	address     string // with the port
	caBundle    []byte
	certificate tls.Certificate
	switching   sync.Mutex // one Close or Reopen at a time

	mu      sync.Mutex
	hooks   map[string]*Hook // by path
	http    *http.Server     // nil while it is closed
	running sync.WaitGroup   // requests, and the goroutine that accepts them
}

// New starts a server at a free port of an IP address. API servers reach it at ControlPlane.ListenAddress.
func New(address string) (*Server, error) {
	bundle, key, err := certutil.GenerateSelfSignedCertKey(address, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("making the webhook's certificate: %w", err)
	}
	certificate, err := tls.X509KeyPair(bundle, key)
	if err != nil {
		return nil, fmt.Errorf("using the webhook's certificate: %w", err)
	}
	s := &Server{
		address: net.JoinHostPort(address, "0"), caBundle: bundle, certificate: certificate, hooks: map[string]*Hook{},
	}
	return s, s.Reopen()
}

// Start is New for tests. It fails the test if the server does not start, and closes the server after the test.
func Start(t testing.TB, address string) *Server {
	t.Helper()
	s, err := New(address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// CABundle returns the PEM with which clients verify the certificate of the server.
func (s *Server) CABundle() []byte { return s.caBundle }

// Close closes the port and all connections. It does nothing if the server is closed.
func (s *Server) Close() error {
	s.switching.Lock()
	defer s.switching.Unlock()
	s.mu.Lock()
	server := s.http
	s.http = nil
	s.mu.Unlock()
	if server == nil {
		return nil
	}
	err := server.Close()
	s.running.Wait()
	if err != nil {
		return fmt.Errorf("closing the webhook server: %w", err)
	}
	return nil
}

// Reopen opens the same port again. It does nothing if the server is open.
func (s *Server) Reopen() error {
	s.switching.Lock()
	defer s.switching.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http != nil {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", s.address)
	if err != nil {
		return fmt.Errorf("opening the webhook server: %w", err)
	}
	s.address = listener.Addr().String()
	server := &http.Server{
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{s.certificate}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: headerTimeout,
		// Tests make clients end connections early. Do not log that.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(server, w, r) })
	s.http = server
	s.running.Go(func() { _ = server.ServeTLS(listener, "", "") }) // It always returns an error after Close.
	return nil
}

// serve lets a hook answer unless server has been closed. No request may start after Close has started to wait.
func (s *Server) serve(server *http.Server, w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	hook := s.hooks[r.URL.Path]
	open := s.http == server
	if open {
		s.running.Add(1)
	}
	s.mu.Unlock()
	if !open {
		panic(http.ErrAbortHandler)
	}
	defer s.running.Done()
	if hook == nil {
		http.NotFound(w, r)
		return
	}
	hook.serve(w, r)
}

// add makes a hook with a path of its own.
func (s *Server) add(answer answerer) *Hook {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := fmt.Sprintf("/hook-%d", len(s.hooks)+1)
	h := &Hook{url: "https://" + s.address + path, caBundle: s.caBundle, answer: answer, changed: make(chan struct{})}
	s.hooks[path] = h
	return h
}
