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
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/version"
	cliflag "k8s.io/component-base/cli/flag"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// maxServers is far beyond what a machine can bear.
const maxServers = 20

type options struct {
	servers           int
	storageVersionAPI bool
	emulatedVersion   string
	featureGates      map[string]bool
	runtimeConfig     []string
	allowAll          bool
	sampleServer      bool
	controllerManager bool
	dir               string
	kubeconfig        string
}

func newOptions() *options {
	return &options{servers: 1, featureGates: map[string]bool{}}
}

func (o *options) addFlags(fs *pflag.FlagSet) {
	fs.IntVar(&o.servers, "servers", o.servers, "How many API servers to run. More than one need Linux namespaces.")
	fs.BoolVar(&o.storageVersionAPI, "storage-version-api", o.storageVersionAPI,
		"Switch the alpha StorageVersion API on (internal.apiserver.k8s.io/v1alpha1).")
	fs.StringVar(
		&o.emulatedVersion,
		"emulated-version",
		o.emulatedVersion,
		"The Kubernetes version that the last API server emulates, as 1.36; "+
			"the others emulate none, as in a rolling upgrade.",
	)
	fs.Var(
		cliflag.NewMapStringBool(&o.featureGates), "feature-gates", "Feature gates of every API server, as A=true,B=false.",
	)
	fs.StringSliceVar(
		&o.runtimeConfig, "runtime-config", o.runtimeConfig, "Runtime configuration of every API server, as api/all=true.",
	)
	fs.BoolVar(&o.allowAll, "allow-all", o.allowAll,
		"Let everybody do everything, instead of what RBAC says. The API servers start in half the time.")
	fs.BoolVar(
		&o.sampleServer, "sample-apiserver", o.sampleServer, "Run k8s.io/sample-apiserver as an aggregated API server too.",
	)
	fs.BoolVar(&o.controllerManager, "controller-manager", o.controllerManager, "Run kube-controller-manager too.")
	fs.StringVar(
		&o.dir,
		"dir",
		o.dir,
		"An empty or new folder for data, certificates and logs, which is kept. By default a temporary one, which is not.",
	)
	fs.StringVar(
		&o.kubeconfig,
		"kubeconfig",
		o.kubeconfig,
		"Where to write the kubeconfig of an administrator. By default into the folder.",
	)
}

func (o *options) validate() error {
	var errs []error
	if o.servers < 1 || o.servers > maxServers {
		errs = append(errs, fmt.Errorf("--servers=%d: it must be between 1 and %d", o.servers, maxServers))
	}
	if o.emulatedVersion != "" {
		v, err := version.ParseGeneric(o.emulatedVersion)
		if err != nil || v.String() != fmt.Sprintf("%d.%d", v.Major(), v.Minor()) {
			errs = append(
				errs, fmt.Errorf("--emulated-version=%q: it must be a major and a minor version, as 1.36", o.emulatedVersion),
			)
		}
	}
	if o.kubeconfig != "" {
		absolute, err := filepath.Abs(o.kubeconfig)
		if err != nil {
			errs = append(errs, fmt.Errorf("--kubeconfig=%q: %w", o.kubeconfig, err))
		}
		o.kubeconfig = absolute
	}
	return errors.Join(errs...)
}

// binaries are those that will run.
func (o *options) binaries() []string {
	names := []string{"etcd", "kube-apiserver"}
	if o.sampleServer {
		names = append(names, "sample-apiserver")
	}
	if o.controllerManager {
		names = append(names, "kube-controller-manager")
	}
	return names
}

func (o *options) config() controlplane.Config {
	cfg := controlplane.Config{Dir: o.dir}
	for range o.servers {
		s := controlplane.Server{FeatureGates: o.featureGates, RuntimeConfig: o.runtimeConfig, AllowAll: o.allowAll}
		if o.storageVersionAPI {
			s = controlplane.StorageVersionAPI(s)
		}
		cfg.Servers = append(cfg.Servers, s)
	}
	cfg.Servers[o.servers-1].EmulatedVersion = o.emulatedVersion
	return cfg
}
