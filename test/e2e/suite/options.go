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

package suite

import (
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	defaultPatience = 5 * time.Minute
	defaultObjects  = 1100
	leastObjects    = 100
	etcdDialTimeout = 10 * time.Second
)

// Options are what a run is given.
type Options struct {
	// Kubeconfig is the path of a kubeconfig of an administrator. Without it no spec runs: the cluster that KUBECONFIG or
	// the home directory name may be one that nobody wants to try things on.
	Kubeconfig string
	// EtcdEndpoints are addresses of etcd, with commas in between. With them the judge reads the bytes in etcd.
	EtcdEndpoints string
	// EtcdCA, EtcdCert and EtcdKey are files for TLS to etcd.
	EtcdCA, EtcdCert, EtcdKey string
	// EtcdPrefix is --etcd-prefix of kube-apiserver.
	EtcdPrefix string
	// Control is the path of the socket of somebody who ends and starts API servers and the implementation.
	Control string
	// Identity is the user name of the implementation.
	Identity string
	// WebhookAddress is an IP address of this machine where API servers reach webhooks.
	WebhookAddress string
	// Patience is how long to wait for what the implementation does in its own time.
	Patience time.Duration
	// Objects is how many objects a large list has.
	Objects int
	// ImplementationVersion and Mode are only for the report.
	ImplementationVersion, Mode string
	// ReportDir is the folder that reports are written to.
	ReportDir string
}

// AddFlags adds the options as flags.
func (o *Options) AddFlags(flags *flag.FlagSet) {
	flags.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig of an administrator; no spec runs without it")
	flags.StringVar(&o.EtcdEndpoints, "etcd-endpoints", "", "addresses of etcd, with commas in between")
	flags.StringVar(&o.EtcdCA, "etcd-cafile", "", "certificate of the CA of etcd")
	flags.StringVar(&o.EtcdCert, "etcd-certfile", "", "client certificate for etcd")
	flags.StringVar(&o.EtcdKey, "etcd-keyfile", "", "key of the client certificate for etcd")
	flags.StringVar(&o.EtcdPrefix, "etcd-prefix", "/registry", "--etcd-prefix of kube-apiserver")
	flags.StringVar(&o.Control, "control", "", "socket of who ends and starts processes, for disruptive specs")
	flags.StringVar(&o.Identity, "identity", "", "user name of the implementation, for specs about permissions")
	flags.StringVar(&o.WebhookAddress, "webhook-address", "", "IP address of this machine that API servers reach")
	flags.DurationVar(&o.Patience, "patience", defaultPatience, "how long to wait for the implementation")
	flags.IntVar(&o.Objects, "objects", defaultObjects, "how many objects a large list has, at least 100")
	flags.StringVar(&o.ImplementationVersion, "implementation-version", "", "its version, for the report")
	flags.StringVar(&o.Mode, "mode", "", "how the implementation is run, for the report")
	flags.StringVar(&o.ReportDir, "report-dir", "", "folder for report.yaml and junit.xml; none are written without it")
}

// config is the configuration for clients of an administrator.
func (o *Options) config() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("reading the kubeconfig: %w", err)
	}
	config.QPS = -1
	config.UserAgent = "svm-conformance"
	config.WarningHandler = rest.NoWarnings{}
	return config, nil
}

// etcdClient is a client of etcd; nil if the run may not read it.
func (o *Options) etcdClient() (*clientv3.Client, error) {
	if o.EtcdEndpoints == "" {
		return nil, nil
	}
	var secured *tls.Config
	if o.EtcdCA != "" || o.EtcdCert != "" {
		info := transport.TLSInfo{TrustedCAFile: o.EtcdCA, CertFile: o.EtcdCert, KeyFile: o.EtcdKey}
		var err error
		if secured, err = info.ClientConfig(); err != nil {
			return nil, fmt.Errorf("reading the certificates for etcd: %w", err)
		}
	}
	client, err := clientv3.New(clientv3.Config{
		Endpoints: strings.Split(o.EtcdEndpoints, ","), TLS: secured, DialTimeout: etcdDialTimeout, Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("making a client of etcd: %w", err)
	}
	return client, nil
}

func (o *Options) validate() error {
	var errs []error
	if (o.EtcdCert == "") != (o.EtcdKey == "") {
		errs = append(errs, errors.New("--etcd-certfile and --etcd-keyfile belong together"))
	}
	if o.Patience <= 0 {
		errs = append(errs, errors.New("--patience must be positive"))
	}
	if o.Objects < leastObjects {
		errs = append(errs, fmt.Errorf("--objects must be at least %d, so that a migration can be interrupted", leastObjects))
	}
	return errors.Join(errs...)
}
