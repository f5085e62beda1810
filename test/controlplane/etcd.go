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
	"strconv"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	etcdPort             = 2379
	etcdPeerPort         = 2380
	etcdSecurePort       = 2381
	pollInterval         = 100 * time.Millisecond
	attemptTimeout       = 10 * time.Second
	etcdDialTimeout      = 5 * time.Second
	etcdKeepAliveTime    = 6 * time.Second
	etcdKeepAliveTimeout = 20 * time.Second
	// etcdQuota is more than any test stores, so that none runs into it.
	etcdQuota = 8 << 30
)

// Etcd is the one etcd of a control plane. API servers reach it without encryption or authentication on the wire. Its
// data survives Kill and Restart.
type Etcd struct {
	cp               *ControlPlane
	host             *Host
	binary           string
	port, peerPort   int
	securePort       int
	client           *clientv3.Client
	startTimeout     time.Duration
	dataDir, logPath string

	mu      sync.Mutex
	config  EtcdConfig
	process *Process
}

func newEtcd(cp *ControlPlane, host *Host) (*Etcd, error) {
	e := &Etcd{
		cp: cp, host: host, config: cp.config.Etcd, startTimeout: cp.config.StartTimeout,
		port: etcdPort, peerPort: etcdPeerPort, securePort: etcdSecurePort,
		dataDir: filepath.Join(cp.dir, etcdDataDir), logPath: cp.logPath(etcdHostName),
	}
	var err error
	if e.binary, err = findBinary(cp.config.BinDir, etcdBinary); err != nil {
		return nil, err
	}
	if !cp.config.Hosts {
		if e.port, err = host.freePort(); err != nil {
			return nil, err
		}
		if e.peerPort, err = host.freePort(); err != nil {
			return nil, err
		}
		if e.securePort, err = host.freePort(); err != nil {
			return nil, err
		}
	}
	if err := e.writeCertificates(); err != nil {
		return nil, err
	}
	e.client, err = clientv3.New(clientv3.Config{
		Endpoints:   []string{e.URL()},
		DialTimeout: etcdDialTimeout,
		// A connection that was cut is noticed, not waited for; etcd allows no more than one such question in five seconds.
		DialKeepAliveTime:    etcdKeepAliveTime,
		DialKeepAliveTimeout: etcdKeepAliveTimeout,
		Logger:               zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("making a client of etcd: %w", err)
	}
	return e, nil
}

// URL is where clients reach etcd.
func (e *Etcd) URL() string {
	return "http://" + net.JoinHostPort(e.host.address, strconv.Itoa(e.port))
}

// SecureURL is where clients with a certificate reach etcd, if it was configured with TLS.
func (e *Etcd) SecureURL() string {
	return "https://" + net.JoinHostPort(e.host.address, strconv.Itoa(e.securePort))
}

// ClientFiles are the files with which a client reaches SecureURL: the authority, the certificate and its key.
func (e *Etcd) ClientFiles() (ca, certificate, key string) {
	return e.cp.pkiPath("ca.crt"), e.cp.pkiPath(etcdClientName + ".crt"), e.cp.pkiPath(etcdClientName + ".key")
}

// writeCertificates creates the certificates of etcd and of its clients.
func (e *Etcd) writeCertificates() error {
	if !e.config.TLS {
		return nil
	}
	serving, err := e.cp.authority.serving(etcdHostName, e.host.address)
	if err != nil {
		return err
	}
	client, err := e.cp.authority.client(etcdClientName)
	if err != nil {
		return err
	}
	return errors.Join(serving.write(e.cp.pkiPath(""), etcdHostName), client.write(e.cp.pkiPath(""), etcdClientName))
}

// Client is a client of etcd; it is closed with the control plane.
func (e *Etcd) Client() *clientv3.Client { return e.client }

// Host is the name of etcd's host.
func (e *Etcd) Host() string { return e.host.name }

// Address is the IP address of etcd's host.
func (e *Etcd) Address() string { return e.host.address }

// Process is the process that runs now, or ran last.
func (e *Etcd) Process() *Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.process
}

// Kill ends etcd with SIGKILL.
func (e *Etcd) Kill() error { return e.Process().Kill() }

// Stop ends etcd with SIGTERM.
func (e *Etcd) Stop() error { return e.Process().Stop() }

// Pause stops etcd with SIGSTOP; connections stay open and silent.
func (e *Etcd) Pause() error { return e.Process().Pause() }

// Resume lets a paused etcd go on.
func (e *Etcd) Resume() error { return e.Process().Resume() }

// Cut unplugs etcd's host.
func (e *Etcd) Cut() error { return e.host.Cut() }

// Heal plugs etcd's host in again.
func (e *Etcd) Heal() error { return e.host.Heal() }

// Restart starts etcd again, on the same data, after stopping it if it runs, and waits until it is ready. change, which
// may be nil, changes how it is run.
func (e *Etcd) Restart(change func(*EtcdConfig)) error {
	if err := e.Stop(); err != nil && e.Process().Running() {
		return err
	}
	if change != nil {
		e.mu.Lock()
		change(&e.config)
		e.mu.Unlock()
	}
	if err := e.start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), e.startTimeout)
	defer cancel()
	return e.Ready(ctx)
}

// Save stops etcd, copies its data to a folder, and starts it again.
func (e *Etcd) Save(folder string) error {
	if err := e.Stop(); err != nil {
		return err
	}
	if err := os.CopyFS(folder, os.DirFS(e.dataDir)); err != nil {
		return fmt.Errorf("copying the data of etcd: %w", err)
	}
	return e.Restart(nil)
}

// Restore stops etcd, puts back the data that Save copied, and starts it again. Its revisions begin anew where they
// were then. API servers must be restarted, because their caches have what is gone.
func (e *Etcd) Restore(folder string) error {
	if err := e.Stop(); err != nil {
		return err
	}
	if err := os.RemoveAll(e.dataDir); err != nil {
		return fmt.Errorf("removing the data of etcd: %w", err)
	}
	if err := os.CopyFS(e.dataDir, os.DirFS(folder)); err != nil {
		return fmt.Errorf("putting back the data of etcd: %w", err)
	}
	return e.Restart(nil)
}

func (e *Etcd) start() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	program := Program{Name: etcdHostName, Path: e.binary, Args: e.arguments(), Env: e.cp.config.Environment}
	process, err := startProcess(e.host, program, e.logPath)
	if err != nil {
		return err
	}
	e.process = process
	return nil
}

func (e *Etcd) arguments() arguments {
	peer := "http://" + net.JoinHostPort(e.host.address, strconv.Itoa(e.peerPort))
	return arguments{
		"--name=" + etcdHostName,
		"--data-dir=" + e.dataDir,
		"--listen-client-urls=" + e.URL(),
		"--advertise-client-urls=" + e.URL(),
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=" + etcdHostName + "=" + peer,
		"--unsafe-no-fsync=true", // a test outlives a kill of etcd, not a power cut
		"--quota-backend-bytes=" + strconv.FormatInt(etcdQuota, 10),
		// The only member waits for up to one election timeout at every start. Two of them and five seconds are how long
		// etcd waits for a write, so that this is longer than a busy machine stands still. Then it answers that the request
		// timed out, although it may yet do what was asked for.
		"--heartbeat-interval=400", // at most a fifth of the timeout; each one takes processor time
		"--election-timeout=2000",
		"--log-level=warn",
	}.with(e.tlsArguments()...).with(e.config.ExtraArgs...)
}

func (e *Etcd) tlsArguments() []string {
	if !e.config.TLS {
		return nil
	}
	return []string{
		"--listen-client-urls=" + e.URL() + "," + e.SecureURL(),
		"--cert-file=" + e.cp.pkiPath(etcdHostName+".crt"),
		"--key-file=" + e.cp.pkiPath(etcdHostName+".key"),
		"--trusted-ca-file=" + e.cp.pkiPath("ca.crt"),
		"--client-cert-auth=true",
	}
}

// Ready waits until etcd answers a linearizable read.
func (e *Etcd) Ready(ctx context.Context) error {
	process := e.Process()
	var last error
	err := wait.PollUntilContextCancel(ctx, pollInterval, true, func(ctx context.Context) (bool, error) {
		if !process.Running() {
			return false, fmt.Errorf("etcd ended: %w\n%s", process.Wait(), process.tail())
		}
		// The client itself backs off for longer than etcd takes to start.
		if last = dialOnce(ctx, net.JoinHostPort(e.host.address, strconv.Itoa(e.port))); last != nil {
			return false, nil
		}
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		defer cancel()
		_, last = e.client.Get(attempt, "ready", clientv3.WithCountOnly())
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for etcd: %w", errors.Join(err, last))
	}
	return nil
}

func dialOnce(ctx context.Context, address string) error {
	conn, err := (&net.Dialer{Timeout: attemptTimeout}).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}
