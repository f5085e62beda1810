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

// The demo shows the manager at work on a real control plane, with the manifests, the identity and the permissions of
// an installation: the storage version of a CRD changes, all objects are rewritten, and the old version is dropped; a
// rule that would change objects is noticed; the servers are upgraded. At the end it removes everything that it
// created, unless KEEP is set.
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

const (
	apiServers = 3
	// administrator and masters are who the demo is to the API servers.
	administrator, masters = "administrator", "system:masters"
	// keepVariable leaves everything running at the end.
	keepVariable = "KEEP"
	// interruptedCode is the exit code that shells use for programs that were ended with Ctrl-C.
	interruptedCode = 130
)

var errInterrupted = errors.New("interrupted, everything was torn down")

func main() {
	err := run()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "demo:", err)
	if errors.Is(err, errInterrupted) {
		os.Exit(interruptedCode)
	}
	os.Exit(1)
}

func run() (err error) {
	out := newNarrator(os.Stdout)
	servers := apiServers
	if err := controlplane.EnterNamespaces(); err != nil {
		if !errors.Is(err, controlplane.ErrNoHosts) {
			return err
		}
		out.explain("One API server instead of %d, because there can be %v", servers, err)
		servers = 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()

	dir, err := os.MkdirTemp("", "svm-demo-")
	if err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	defer func() {
		switch {
		case err != nil && ctx.Err() != nil:
			err = errors.Join(errInterrupted, os.RemoveAll(dir))
		case err != nil:
			err = fmt.Errorf("%w\nThe logs are in %s", err, filepath.Join(dir, "logs"))
		default:
			err = os.RemoveAll(dir)
		}
	}()
	return play(ctx, out, dir, servers)
}

// play runs all steps. When it returns, none of the processes that it started runs any more.
func play(ctx context.Context, out *narrator, dir string, servers int) (err error) {
	out.step("Bringing up etcd and kube-apiservers (%d), each on a host of its own", servers)
	config := controlplane.Config{Dir: dir}
	for range servers {
		config.Servers = append(config.Servers, controlplane.StorageVersionAPI(
			controlplane.Server{EmulatedVersion: oldRelease, RuntimeConfig: []string{"api/all=true"}}))
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
	for _, show := range []func(context.Context) error{
		d.showServers,
		d.showManagers,
		d.showCrontabs,
		d.showChange,
		d.showFirstAttempt,
		d.showRefusal,
		d.showSecondAttempt,
		d.showRemoval,
		d.showFence,
		d.showUpgrade,
	} {
		if err := show(ctx); err != nil {
			return err
		}
	}
	if os.Getenv(keepVariable) != "" {
		if err := d.keep(ctx); err != nil {
			return err
		}
	}
	out.step("Tearing everything down")
	if err := cp.Close(); err != nil {
		return err
	}
	out.saw("nothing is left of it")
	return nil
}
