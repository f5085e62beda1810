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
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
)

const (
	etcdDataDir    = "etcd"
	encryptionFile = "encryption.yaml"
	// encryptionHistory keeps every encryption configuration that any server ever had.
	encryptionHistory = "encryption"
)

var errClosed = errors.New("the control plane is closed")

// ControlPlane is etcd and API servers, running. Its methods may be called from any goroutine.
type ControlPlane struct {
	config    Config
	dir       string
	temporary bool // dir is ours to remove
	leave     func()
	authority *authority
	network   network
	etcd      *Etcd
	balancer  *Balancer // nil for the only server without a host of its own

	mu        sync.Mutex
	servers   []*APIServer
	hosts     map[string]*Host
	balancers []*Balancer // all but balancer
	outside   *Balancer   // one of balancers
	proxies   []*Interceptor
	processes []*Process // all but etcd's and the servers'
	closed    bool
}

// New starts a control plane and returns when all its servers are ready. Close ends it; nothing of it outlives this
// process in any case. It wraps ErrNoHosts in its error if only that is the matter.
func New(ctx context.Context, cfg Config) (*ControlPlane, error) {
	return newWhen(ctx, cfg, func(context.Context) (func(), error) { return func() {}, nil })
}

// newWhen is New. It waits for calm first, and calls what calm returned after the control plane has ended.
func newWhen(
	ctx context.Context, cfg Config, calm func(context.Context) (leave func(), err error),
) (*ControlPlane, error) {
	if err := checkPlatform(); err != nil {
		return nil, err
	}
	cfg, err := cfg.complete()
	if err != nil {
		return nil, fmt.Errorf("configuration of the control plane: %w", err)
	}
	// Before the time for the start begins to run: a first build takes longer.
	if err := buildMissing(cfg.BinDir, etcdBinary, serverBinary); err != nil {
		return nil, err
	}
	// Before the turn: a server that starts again must not wait for a calm machine.
	leave, err := calm(ctx)
	if err != nil {
		return nil, err
	}
	release, err := takeTurn(ctx, starts())
	if err != nil {
		leave()
		return nil, err
	}
	defer release()
	cp := &ControlPlane{config: cfg, leave: leave, hosts: map[string]*Host{}}
	if err := cp.start(ctx); err != nil {
		if cp.temporary {
			err = fmt.Errorf("%w (the logs are kept in %s)", err, cp.dir)
		}
		return nil, errors.Join(fmt.Errorf("starting the control plane: %w", err), cp.close(cp.dir != ""))
	}
	return cp, nil
}

// starts is how many control planes and servers start at a time. A server that starts needs a processor for seconds. If
// many start at once, hooks of theirs take too long, they end and are started again, and none of them gets anywhere.
func starts() int { return runtime.NumCPU() }

func (cp *ControlPlane) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cp.config.StartTimeout)
	defer cancel()
	if err := cp.makeNetwork(); err != nil {
		return err
	}
	if err := cp.makeDir(); err != nil {
		return err
	}
	if err := cp.writePKI(); err != nil {
		return err
	}
	if err := cp.startEtcd(ctx); err != nil {
		return err
	}
	for _, spec := range cp.config.Servers {
		if _, err := cp.startServer(spec); err != nil {
			return err
		}
	}
	// Started together, waited for one after the other: the last one decides.
	for _, s := range cp.servers {
		if err := s.comeUp(ctx); err != nil {
			return err
		}
	}
	if err := cp.startBalancer(ctx); err != nil {
		return err
	}
	return cp.awaitMembership(ctx)
}

func (cp *ControlPlane) makeNetwork() (err error) {
	if cp.config.Hosts {
		cp.network, err = newBridge(cp.config.IPv6)
	} else {
		cp.network, err = newLoopback()
	}
	return err
}

// newBridge keeps a nil pointer from becoming a network that is not nil.
func newBridge(ipv6 bool) (network, error) {
	n, err := newBridgeNetwork(ipv6)
	if err != nil {
		return nil, err
	}
	return n, nil
}

func (cp *ControlPlane) makeDir() error {
	dir := cp.config.Dir
	if dir == "" {
		temporary, err := os.MkdirTemp("", "svm-controlplane-")
		if err != nil {
			return fmt.Errorf("making a folder: %w", err)
		}
		cp.dir, cp.temporary = temporary, true
	} else {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("looking into the folder of the control plane: %w", err)
		}
		if len(entries) > 0 {
			return fmt.Errorf("the folder %s is not empty: name an empty or a new one", dir)
		}
		if cp.dir, err = filepath.Abs(dir); err != nil {
			return fmt.Errorf("locating the folder of the control plane: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Join(cp.dir, "logs"), 0o700); err != nil {
		return fmt.Errorf("making a folder for logs: %w", err)
	}
	return nil
}

func (cp *ControlPlane) startEtcd(ctx context.Context) error {
	host, err := cp.Host(etcdHostName)
	if err != nil {
		return err
	}
	if cp.etcd, err = newEtcd(cp, host); err != nil {
		return err
	}
	if err := cp.etcd.start(); err != nil {
		return err
	}
	return cp.etcd.Ready(ctx)
}

func (cp *ControlPlane) startServer(spec Server) (*APIServer, error) {
	host, err := cp.Host(spec.Name)
	if err != nil {
		return nil, err
	}
	s, err := newAPIServer(cp, host, spec)
	if err != nil {
		return nil, err
	}
	if err := s.start(); err != nil {
		return nil, err
	}
	cp.mu.Lock()
	defer cp.mu.Unlock()
	cp.servers = append(cp.servers, s)
	return s, nil
}

func (cp *ControlPlane) startBalancer(ctx context.Context) error {
	if !cp.config.Hosts {
		return nil
	}
	listener, err := (&net.ListenConfig{}).Listen(
		ctx, "tcp", net.JoinHostPort(cp.network.gateway(), strconv.Itoa(securePort)),
	)
	if err != nil {
		return fmt.Errorf("starting the balancer: %w", err)
	}
	cp.balancer = newBalancer(cp, listener)
	return nil
}

// AddServer adds an API server to a running control plane with hosts, and returns when it is ready.
func (cp *ControlPlane) AddServer(ctx context.Context, spec Server) (*APIServer, error) {
	spec = spec.clone()
	if !cp.config.Hosts {
		return nil, fmt.Errorf("adding a server to one on loopback: %w: start with Hosts", ErrNoHosts)
	}
	if spec.Name == "" {
		spec.Name = fmt.Sprintf("apiserver-%d", len(cp.Servers())+1)
	}
	if taken := slices.ContainsFunc(cp.Servers(), func(s *APIServer) bool { return s.name == spec.Name }); taken {
		return nil, fmt.Errorf("adding a server: the name %q is taken", spec.Name)
	}
	release, err := takeTurn(ctx, starts())
	if err != nil {
		return nil, err
	}
	defer release()
	s, err := cp.startServer(spec)
	if err != nil {
		return nil, fmt.Errorf("adding server %s: %w", spec.Name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, cp.config.StartTimeout)
	defer cancel()
	return s, s.comeUp(ctx)
}

// Host returns the host of that name, and adds it if there is none. Without hosts of their own there is only this
// machine, under its own name and that of every server.
func (cp *ControlPlane) Host(name string) (*Host, error) {
	if err := checkHostName(name); err != nil {
		return nil, err
	}
	cp.mu.Lock()
	defer cp.mu.Unlock()
	if cp.closed {
		return nil, errClosed
	}
	if h, ok := cp.hosts[name]; ok {
		return h, nil
	}
	h, err := cp.network.add(name)
	if err != nil {
		return nil, err
	}
	cp.hosts[name] = h
	return h, nil
}

// Home is the host that this process is on, and with it the balancers, and interceptors that are not elsewhere.
func (cp *ControlPlane) Home() *Host { return cp.network.home() }

// Servers are the API servers, in the order of Config.Servers.
func (cp *ControlPlane) Servers() []*APIServer {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	return slices.Clone(cp.servers)
}

// Etcd is the etcd of all servers.
func (cp *ControlPlane) Etcd() *Etcd { return cp.etcd }

// Balancer is the load balancer that Config goes through; nil for the only server of a control plane without hosts.
func (cp *ControlPlane) Balancer() *Balancer { return cp.balancer }

// Dir is the folder with the logs, certificates and data of the control plane.
func (cp *ControlPlane) Dir() string { return cp.dir }

// ListenAddress is the IP address at which the servers, and programs on hosts, reach what listens in this process,
// webhooks for example.
func (cp *ControlPlane) ListenAddress() string { return cp.network.gateway() }

// endpoint is where clients find the API.
func (cp *ControlPlane) endpoint() string {
	if cp.balancer != nil {
		return cp.balancer.Address()
	}
	return cp.Servers()[0].endpoint()
}

func (cp *ControlPlane) logPath(name string) string {
	return filepath.Join(cp.dir, "logs", name+".log")
}

func (cp *ControlPlane) auditPath(name string) string {
	return filepath.Join(cp.dir, "logs", name+".audit")
}

// Close ends every process of the control plane, and removes its folder if it was a temporary one. Later calls do
// nothing.
func (cp *ControlPlane) Close() error { return cp.close(false) }

// close keeps the logs of a temporary folder on demand.
func (cp *ControlPlane) close(keepLogs bool) error {
	cp.mu.Lock()
	if cp.closed {
		cp.mu.Unlock()
		return nil
	}
	cp.closed = true
	defer cp.leave()
	balancers, proxies, processes, servers := cp.balancers, cp.proxies, cp.processes, cp.servers
	cp.mu.Unlock()

	if cp.balancer != nil {
		balancers = append(balancers, cp.balancer)
	}
	var errs []error
	for _, i := range proxies {
		errs = append(errs, i.close())
	}
	for _, b := range balancers {
		errs = append(errs, b.close())
	}
	for _, s := range servers {
		processes = append(processes, s.Process())
		s.client.CloseIdleConnections()
	}
	if cp.etcd != nil {
		processes = append(processes, cp.etcd.Process())
		errs = append(errs, cp.etcd.client.Close())
	}
	errs = append(errs, killAll(processes))
	if cp.network != nil {
		errs = append(errs, cp.network.close())
	}
	errs = append(errs, cp.tidy(keepLogs))
	return errors.Join(errs...)
}

func killAll(processes []*Process) error {
	var errs []error
	for _, p := range processes {
		if p == nil {
			continue
		}
		if err := p.Kill(); err != nil && !errors.Is(err, ErrNotRunning) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (cp *ControlPlane) tidy(keepLogs bool) error {
	if !cp.temporary {
		return nil
	}
	path := cp.dir
	if keepLogs {
		path = filepath.Join(cp.dir, etcdDataDir)
	}
	if err := os.RemoveAll(path); err != nil {
		return fmt.Errorf("removing the folder of the control plane: %w", err)
	}
	return nil
}

func (cp *ControlPlane) keepBalancer(b *Balancer) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	cp.balancers = append(cp.balancers, b)
}
