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

// The demo shows the manager at work on a real control plane of three API servers, and tears everything down.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const apiServers = 3

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	servers := apiServers
	if err := controlplane.EnterNamespaces(); err != nil {
		if !errors.Is(err, controlplane.ErrNoHosts) {
			return err
		}
		fmt.Printf("One API server instead of %d, because there can be %v\n", servers, err)
		servers = 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	out := newNarrator(os.Stdout)
	out.step("Bringing up etcd and %d kube-apiserver(s), each on a host of its own, with the StorageVersion API on", servers)
	dir, err := os.MkdirTemp("", "svm-demo-")
	if err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	defer func() {
		if err == nil {
			err = os.RemoveAll(dir)
		} else {
			err = fmt.Errorf("%w\nThe logs are in %s", err, filepath.Join(dir, "logs"))
		}
	}()
	config := controlplane.Config{Dir: dir}
	for range servers {
		config.Servers = append(config.Servers, controlplane.StorageVersionAPI(controlplane.Server{}))
	}
	cp, err := controlplane.New(ctx, config)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cp.Close()) }()

	d, err := newDemo(cp, out)
	if err != nil {
		return err
	}
	for _, show := range []func(context.Context) error{d.showServers, d.startManagers, d.removeServer, d.killLeader} {
		if err := show(ctx); err != nil {
			return err
		}
	}
	out.step("Tearing everything down")
	return nil
}
