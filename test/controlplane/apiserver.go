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
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

const (
	securePort = 6443
	adminUser  = "admin"
	adminGroup = "system:masters"
	// loopbackUser is who an API server is to itself.
	loopbackUser = "system:apiserver"
)

// APIServer is one kube-apiserver of a control plane. Its address, host name and identity stay the same whatever
// happens to it.
type APIServer struct {
	cp     *ControlPlane
	host   *Host
	name   string
	port   int
	client *http.Client // of an administrator
	files  serverFiles

	mu      sync.Mutex
	spec    Server
	process *Process
	starts  int
}

func newAPIServer(cp *ControlPlane, host *Host, spec Server) (*APIServer, error) {
	s := &APIServer{cp: cp, host: host, name: spec.Name, spec: spec, port: securePort}
	var err error
	if !cp.config.Hosts {
		if s.port, err = host.freePort(); err != nil {
			return nil, err
		}
	}
	if s.client, err = cp.adminClient(); err != nil {
		return nil, err
	}
	if s.files, err = newServerFiles(cp, s); err != nil {
		return nil, fmt.Errorf("preparing %s: %w", s.name, err)
	}
	return s, nil
}

// Name is the name the server was given; its log is called after it.
func (s *APIServer) Name() string { return s.name }

// Host is the host name of the server, from which its identity follows.
func (s *APIServer) Host() string { return s.host.name }

// Address is the IP address of the server.
func (s *APIServer) Address() string { return s.host.address }

// advertised is the IP address at which the server tells others to reach it.
func (s *APIServer) advertised() string {
	if s.cp.config.AdvertiseBalancer {
		return s.cp.network.gateway()
	}
	return s.host.address
}

// URL is where clients reach this server.
func (s *APIServer) URL() string { return "https://" + s.endpoint() }

func (s *APIServer) endpoint() string {
	return net.JoinHostPort(s.host.address, strconv.Itoa(s.port))
}

// Identity is the name of the server's identity Lease in kube-system.
func (s *APIServer) Identity() string {
	var source []byte
	for _, part := range []string{s.host.name, serverBinary} {
		source = binary.BigEndian.AppendUint16(source, uint16(len(part))) // keeps the parts apart
		source = append(source, part...)
	}
	hash := sha256.Sum256(source)
	return "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash[:16]))
}

// Config is a configuration for clients of this server, around the load balancer, as user.
func (s *APIServer) Config(user string, groups ...string) *rest.Config {
	return s.cp.configFor(s.endpoint(), user, groups)
}

// Process is the process that runs now, or ran last.
func (s *APIServer) Process() *Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// Kill ends the server with SIGKILL.
func (s *APIServer) Kill() error { return s.Process().Kill() }

// Stop ends the server with SIGTERM.
func (s *APIServer) Stop() error { return s.Process().Stop() }

// Pause stops the server with SIGSTOP; connections stay open and silent.
func (s *APIServer) Pause() error { return s.Process().Pause() }

// Resume lets a paused server go on.
func (s *APIServer) Resume() error { return s.Process().Resume() }

// Cut unplugs the server's host: from clients, and from etcd too.
func (s *APIServer) Cut() error { return s.host.Cut() }

// Heal plugs the server's host in again.
func (s *APIServer) Heal() error { return s.host.Heal() }

// Restart starts the server again, after stopping it if it runs, and waits until it is ready. change, which may be nil,
// changes how it is run; a new name is ignored.
func (s *APIServer) Restart(change func(*Server)) error {
	// While it waits for its turn the server still runs.
	release, err := takeTurn(context.Background(), starts())
	if err != nil {
		return err
	}
	defer release()
	if err := s.Stop(); err != nil && s.Process().Running() {
		return err
	}
	if change != nil {
		s.mu.Lock()
		spec := s.spec.clone()
		change(&spec)
		s.spec = spec
		s.mu.Unlock()
	}
	if err := s.start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.cp.config.StartTimeout)
	defer cancel()
	return s.comeUp(ctx)
}

// comeUp waits until the server is ready. On a slow machine kube-apiserver ends if one of its hooks takes too long. It
// is started again then, as a kubelet does.
func (s *APIServer) comeUp(ctx context.Context) error {
	const most = 3
	for n := 1; ; n++ {
		err := s.Ready(ctx)
		hook := err != nil && !s.Process().Running() && strings.Contains(err.Error(), "PostStartHook")
		if !hook || n == most {
			return err
		}
		if err := s.start(); err != nil {
			return err
		}
	}
}

func (s *APIServer) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := s.spec.Binary
	if path == "" {
		var err error
		if path, err = findBinary(s.cp.config.BinDir, serverBinary); err != nil {
			return err
		}
	}
	args, err := s.files.arguments(s.spec)
	if err != nil {
		return fmt.Errorf("preparing %s: %w", s.name, err)
	}
	if err := s.cp.rememberEncryption(s.spec.EncryptionConfig); err != nil {
		return fmt.Errorf("preparing %s: %w", s.name, err)
	}
	if err := completeLines(s.cp.auditPath(s.name)); err != nil {
		return fmt.Errorf("preparing %s: %w", s.name, err)
	}
	process, err := startProcess(
		s.host, Program{Name: s.name, Path: path, Args: args, Env: s.cp.config.Environment}, s.cp.logPath(s.name),
	)
	if err != nil {
		return err
	}
	s.process = process
	s.starts++
	return nil
}

// Starts is how many processes of the server were started. A restart takes several if hooks are slow.
func (s *APIServer) Starts() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.starts
}

// Ready waits until the server itself says that it is ready, and fails when the server ends or ctx does.
func (s *APIServer) Ready(ctx context.Context) error {
	process := s.Process()
	var last error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		if !process.Running() {
			return false, fmt.Errorf("the server ended: %w\n%s", process.Wait(), process.tail())
		}
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		defer cancel()
		last = s.checkReady(attempt)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for %s: %w", s.name, errors.Join(err, last))
	}
	return nil
}

// errNotReady is the error of a server that says that it is not ready.
var errNotReady = errors.New("not ready")

// checkReady asks the server once.
func (s *APIServer) checkReady(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+"/readyz", nil)
	if err != nil {
		return fmt.Errorf("asking %s whether it is ready: %w", s.name, err)
	}
	response, err := s.client.Do(request)
	if err != nil {
		// A connection may be to a process that is gone, or lost in a cut network.
		s.client.CloseIdleConnections()
		return fmt.Errorf("asking %s whether it is ready: %w", s.name, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("asking %s whether it is ready: %w", s.name, err)
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s is %w: %s: %s", s.name, errNotReady, response.Status, body)
	}
	return nil
}

// adminClient is an HTTP client with an administrator's certificate and connections of its own.
func (cp *ControlPlane) adminClient() (*http.Client, error) {
	pair, err := cp.authority.client(adminUser, adminGroup)
	if err != nil {
		return nil, err
	}
	certificate, err := tls.X509KeyPair(pair.certificate, pair.key)
	if err != nil {
		return nil, fmt.Errorf("using the administrator's certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cp.authority.certificate)
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{
			RootCAs:      roots,
			Certificates: []tls.Certificate{certificate},
			MinVersion:   tls.VersionTLS12,
		},
	}}, nil
}
