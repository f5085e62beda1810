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
	"io"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// The administrator that the kubeconfig authenticates as.
const (
	adminUser  = "admin"
	adminGroup = "system:masters"
)

// managerUser is the user that the roles and the fence in build/manifests/overlays/static-pod are for.
const managerUser = "system:svm-controller-manager"

// run brings the control plane up, tells how to use it, and waits to be interrupted.
func run(ctx context.Context, o *options, out, errOut io.Writer) (err error) {
	// Inside of the namespaces there is no Internet to build from.
	for _, name := range o.binaries() {
		if _, err := controlplane.Binary(name); err != nil {
			return err
		}
	}
	if o.servers > 1 {
		if err := controlplane.EnterNamespaces(); err != nil {
			if !errors.Is(err, controlplane.ErrNoHosts) {
				return err
			}
			fmt.Fprintf(errOut, "Running one API server instead of %d, because there can be %v\n", o.servers, err)
			o.servers = 1
		}
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	cp, err := controlplane.New(ctx, o.config())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cp.Close()) }()
	if err := startExtras(ctx, cp, o); err != nil {
		return err
	}
	if err := describe(cp, o, out); err != nil {
		return err
	}
	<-ctx.Done()
	fmt.Fprintln(out, "Ending the control plane.")
	return nil
}

func startExtras(ctx context.Context, cp *controlplane.ControlPlane, o *options) error {
	if o.sampleServer {
		if _, err := cp.StartSampleServer(ctx, ""); err != nil {
			return err
		}
	}
	if o.controllerManager {
		if _, err := cp.StartControllerManager(); err != nil {
			return err
		}
	}
	return nil
}

func describe(cp *controlplane.ControlPlane, o *options, out io.Writer) error {
	config, err := cp.OutsideConfig(adminUser, adminGroup)
	if err != nil {
		return err
	}
	path := o.kubeconfig
	if path == "" {
		path = filepath.Join(cp.Dir(), "kubeconfig")
	}
	if err := cp.WriteKubeconfig(path, config); err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "API SERVER\tADDRESS\tIDENTITY\tPROCESS")
	for _, s := range cp.Servers() {
		fmt.Fprintf(table, "%s\t%s\t%s\t%d\n", s.Host(), s.Address(), s.Identity(), s.Process().Pid())
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	example := "kubectl get --raw /readyz"
	if o.storageVersionAPI {
		example = "kubectl get storageversions"
	}
	_, err = fmt.Fprintf(out, `
The control plane is up at %s. In another terminal:

  export KUBECONFIG=%s
  %s

`, config.Host, path, example)
	if err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	if err := describeInside(cp, o, out); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\nLogs are in %s. Interrupt (Ctrl-C) to end it.\n", filepath.Join(cp.Dir(), "logs"))
	if err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}

// describeInside tells how to run what has to reach each API server, or etcd: on the host of a server, if there are
// hosts.
func describeInside(cp *controlplane.ControlPlane, o *options, out io.Writer) error {
	kubeconfig := filepath.Join(cp.Dir(), "svm-controller-manager.kubeconfig")
	if err := cp.WriteKubeconfig(kubeconfig, cp.Config(managerUser)); err != nil {
		return err
	}
	enter := ""
	if o.servers > 1 {
		enter = fmt.Sprintf("nsenter --target %d --net --uts ", cp.Servers()[0].Process().Pid())
	}
	_, err := fmt.Fprintf(out, `To run a manager (first see test/controlplane/README.md), and to count what etcd has:

  %[1]s_output/bin/svm-controller-manager --kubeconfig=%[2]s
  %[1]s_output/bin/kubectl-svm verify --etcd-endpoints=%[3]s
`, enter, kubeconfig, cp.Etcd().URL())
	if err != nil {
		return fmt.Errorf("printing: %w", err)
	}
	return nil
}
