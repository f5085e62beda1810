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
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/pkg/install"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/e2e/implementations"
	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
)

const (
	// usualControllers are those of kube-controller-manager that every cluster needs for the suite. None empties
	// namespaces: nothing in them outlives the control plane.
	usualControllers = "clusterrole-aggregation-controller,serviceaccount-token-controller"
	// migrating are those that migrate and collect garbage. The migrator works on the cache of the second one.
	migrating = "storage-version-migrator-controller,garbage-collector-controller," +
		"storageversion-garbage-collector-controller"

	overlay = "build/manifests/overlays/static-pod"
)

// install installs an implementation, and finds out how to start it.
func (c *cluster) install(ctx context.Context) error {
	c.kubeconfig = filepath.Join(c.Dir(), "administrator.kubeconfig")
	config := c.Config(administrator, masters)
	if err := c.WriteKubeconfig(c.kubeconfig, config); err != nil {
		return err
	}
	if c.options.implementation == implementations.NameInTree {
		c.identity = "system:serviceaccount:kube-system:storage-version-migrator-controller"
		c.start = c.startControllerManager
		return nil
	}
	if _, err := c.StartControllerManager("--controllers=" + usualControllers); err != nil {
		return err
	}
	if c.options.implementation == implementations.NameKSVM {
		c.identity = "system:serviceaccount:kube-storage-migration:default"
		c.start = c.startKSVM
		return c.installKSVM(ctx)
	}
	c.identity = "system:svm-controller-manager"
	selection, err := allButBuiltIn(config)
	if err != nil {
		return err
	}
	c.start = func() ([]*controlplane.Process, error) { return c.startSVM(selection) }
	if err := c.kubectl(ctx, "apply", "--server-side", "-k", overlay); err != nil {
		return err
	}
	return c.awaitDefinitions(ctx)
}

func (c *cluster) awaitDefinitions(ctx context.Context) error {
	return c.kubectl(ctx, "wait", "--for=condition=Established", "--timeout=10m", "crd",
		"storagestates.migration.k8s.io", "storageversionmigrations.migration.k8s.io")
}

// allButBuiltIn selects what is defined later for automatic migrations. No spec is about those of built-in resources.
func allButBuiltIn(config *rest.Config) (string, error) {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return "", fmt.Errorf("making a client: %w", err)
	}
	_, documents, err := client.ServerGroupsAndResources()
	if err != nil {
		return "", fmt.Errorf("reading the discovery documents: %w", err)
	}
	selection := "*"
	for _, resource := range install.Resources(documents) {
		selection += ",-" + resource.String()
	}
	return selection, nil
}

// startSVM starts the manager with the arguments of the static pod, and some that make it quicker.
func (c *cluster) startSVM(selection string) ([]*controlplane.Process, error) {
	port, err := controlplane.FreePort()
	if err != nil {
		return nil, err
	}
	return c.run("svm-controller-manager", c.options.manager,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		// A busy machine must not end it. A spec that kills it waits until its lease expires, so this is shorter than the
		// patience of a spec.
		"--leader-elect-lease-duration=60s", "--leader-elect-renew-deadline=50s", "--leader-elect-retry-period=3s",
		"--auto-migrate="+selection, "--settle-period=2s", "--migration-chunk-size=50", "-v=2")
}

func (c *cluster) startControllerManager() ([]*controlplane.Process, error) {
	process, err := c.StartControllerManager(
		"--controllers="+usualControllers+","+migrating, "--feature-gates=StorageVersionAPI=true", "-v=2")
	return []*controlplane.Process{process}, err
}

// installKSVM applies the definitions and the permissions of its manifests.
func (c *cluster) installKSVM(ctx context.Context) error {
	if c.options.binaries == "" {
		return errors.New("--ksvm must name the folder with migrator, trigger and manifests")
	}
	manifests := filepath.Join(c.options.binaries, "manifests")
	for _, name := range []string{"namespace-rbac.yaml", "storage_migration_crd.yaml", "storage_state_crd.yaml"} {
		if err := c.kubectl(ctx, "apply", "-f", filepath.Join(manifests, name)); err != nil {
			return err
		}
	}
	return c.awaitDefinitions(ctx)
}

// startKSVM starts the programs with the arguments of their manifests.
func (c *cluster) startKSVM() ([]*controlplane.Process, error) {
	migrator, err := c.run("migrator", filepath.Join(c.options.binaries, "migrator"),
		"--kube-api-qps=40", "--kube-api-burst=1000", "-v=2")
	if err != nil {
		return nil, err
	}
	trigger, err := c.run("trigger", filepath.Join(c.options.binaries, "trigger"), "-v=2")
	return append(migrator, trigger...), err
}

// run starts a program as the identity of the implementation.
func (c *cluster) run(name, path string, args ...string) ([]*controlplane.Process, error) {
	kubeconfig := filepath.Join(c.Dir(), name+".kubeconfig")
	err := c.WriteKubeconfig(kubeconfig, c.Config(c.identity, suite.GroupsOf(c.identity)...))
	if err != nil {
		return nil, err
	}
	process, err := c.StartProcess(controlplane.Program{
		Name: name, Path: path, Args: append([]string{"--kubeconfig=" + kubeconfig}, args...),
	})
	return []*controlplane.Process{process}, err
}

// kubectl runs a command as the administrator.
func (c *cluster) kubectl(ctx context.Context, args ...string) error {
	binary, err := controlplane.Binary("kubectl")
	if err != nil {
		return err
	}
	command := exec.CommandContext(ctx, binary, args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig)
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("running kubectl %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
