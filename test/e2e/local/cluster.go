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

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
)

const (
	// controlSocket is where the suite asks for processes to be ended and started.
	controlSocket = "control.sock"
	// interruptedWithin is how long specs that are interrupted may clean up.
	interruptedWithin = 30 * time.Second
)

// cluster is a control plane with an implementation. It is the suite's Control.
type cluster struct {
	*controlplane.ControlPlane
	options *options
	// kubeconfig is that of an administrator.
	kubeconfig string
	// identity is the user name of the implementation.
	identity string
	// start starts the processes of the implementation.
	start func() ([]*controlplane.Process, error)
	// processes are those that run.
	processes []*controlplane.Process
}

// Servers are the names of the API servers.
func (c *cluster) Servers(context.Context) ([]string, error) {
	var names []string
	for _, server := range c.ControlPlane.Servers() {
		names = append(names, server.Name())
	}
	return names, nil
}

func (c *cluster) server(name string) (*controlplane.APIServer, error) {
	servers := c.ControlPlane.Servers()
	i := slices.IndexFunc(servers, func(s *controlplane.APIServer) bool { return s.Name() == name })
	if i < 0 {
		return nil, fmt.Errorf("there is no API server %q", name)
	}
	return servers[i], nil
}

// RestartServer restarts an API server as a release that it emulates, or as its own.
func (c *cluster) RestartServer(_ context.Context, name, release string) error {
	server, err := c.server(name)
	if err != nil {
		return err
	}
	return server.Restart(func(s *controlplane.Server) { s.EmulatedVersion = release })
}

// KillServer ends an API server with SIGKILL.
func (c *cluster) KillServer(_ context.Context, name string) error {
	server, err := c.server(name)
	if err != nil {
		return err
	}
	return server.Kill()
}

// KillImplementation ends all processes of the implementation with SIGKILL.
func (c *cluster) KillImplementation(context.Context) error {
	var errs []error
	for _, process := range c.processes {
		errs = append(errs, process.Kill())
	}
	c.processes = nil
	return errors.Join(errs...)
}

// StartImplementation starts the processes of the implementation.
func (c *cluster) StartImplementation(context.Context) (err error) {
	c.processes, err = c.start()
	return err
}

// runSuite runs the specs, as the ginkgo command does.
func (c *cluster) runSuite(ctx context.Context) error {
	socket := filepath.Join(c.Dir(), controlSocket)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("listening for the suite: %w", err)
	}
	server := &http.Server{Handler: suite.ServeControl(c), ReadHeaderTimeout: time.Minute}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) }) // It always returns an error after Close.
	defer func() {
		_ = server.Close()
		serving.Wait()
	}()
	o := c.options
	args := []string{
		"--procs=" + strconv.Itoa(o.procs), "--label-filter=" + o.labels, "--no-color", "--timeout=3h",
		"--poll-progress-after=30m", "--silence-skips", "--succinct",
	}
	if o.focus != "" {
		args = append(args, "--focus="+o.focus)
	}
	args = append(args, o.suite, "--",
		"--kubeconfig="+c.kubeconfig, "--etcd-endpoints="+c.Etcd().URL(), "--control="+socket,
		"--implementation="+o.implementation, "--identity="+c.identity, "--webhook-address="+c.ListenAddress(),
		"--patience="+o.patience.String(), "--objects="+strconv.Itoa(o.objects),
		"--implementation-version="+o.version, fmt.Sprintf("--mode=local: %d API servers, processes", apiServers),
	)
	if o.reportDir != "" {
		dir, err := filepath.Abs(o.reportDir)
		if err != nil {
			return fmt.Errorf("locating the folder of reports: %w", err)
		}
		args = append(args, "--report-dir="+dir)
	}
	return runGroup(ctx, o.ginkgo, args...)
}

// runGroup runs a program as a group of processes that is interrupted when ctx ends. None of them outlives the call.
func runGroup(ctx context.Context, path string, args ...string) error {
	command := exec.CommandContext(ctx, path, args...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	// The ginkgo command does not pass on signals to the processes that run specs.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	signal := func(s syscall.Signal) error { return syscall.Kill(-command.Process.Pid, s) }
	command.Cancel = func() error { return signal(syscall.SIGINT) }
	command.WaitDelay = interruptedWithin
	err := command.Run()
	if command.Process != nil {
		_ = signal(syscall.SIGKILL) // Usually nobody is left.
	}
	if err != nil {
		return fmt.Errorf("running the suite: %w", err)
	}
	return nil
}
