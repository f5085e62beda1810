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
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
)

const (
	defaultStartTimeout = 6 * time.Minute

	// etcdHostName is the host name of etcd where every server has a host of its own.
	etcdHostName = "etcd"
	// etcdClientName is the name in the certificate of the clients of etcd, and that of its files.
	etcdClientName = "etcd-client"

	// defaultAuditPolicy records who did what to which object, once a request, and leaves out the health checks, and what
	// servers ask themselves and tests ask as the administrator: these are many, and never what a test counts.
	defaultAuditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  nonResourceURLs: ["/readyz*", "/livez*", "/healthz*"]
- level: None
  users: ["` + loopbackUser + `", "` + adminUser + `"]
- level: Metadata
`
)

// Config describes a control plane. The zero value is one API server of default settings on loopback.
type Config struct {
	// Servers are the API servers. None means one default server. More than one implies Hosts, because two API servers
	// on one host would share one identity.
	Servers []Server
	// Hosts gives every API server, and etcd, a host of its own: network, address, host name. It needs namespaces: see
	// Main and EnterNamespaces.
	Hosts bool
	// IPv6 gives the hosts addresses of IPv6 instead of IPv4. It implies Hosts.
	IPv6 bool
	// AdvertiseBalancer makes all servers advertise the address of the balancer, so that the EndpointSlices of the API
	// have that address only. It implies Hosts.
	AdvertiseBalancer bool
	// Etcd says how etcd is run.
	Etcd EtcdConfig
	// Dir is where data, certificates and logs go. It must be empty or absent, and it is left as it is at the end.
	// Empty means a temporary folder, of which only the logs survive a failed test, and nothing a passed one.
	Dir string
	// BinDir holds the binaries of etcd and the servers. Empty means _output/bin of this repository, which is filled by
	// hack/build-controlplane.sh when something is missing.
	BinDir string
	// StartTimeout bounds how long everything may take to become ready: six minutes if zero.
	StartTimeout time.Duration

	// Environment is added to that of etcd and the servers.
	Environment []string
}

// EtcdConfig says how etcd is run.
type EtcdConfig struct {
	// TLS lets etcd also serve at Etcd.SecureURL, as it does in production: encrypted, and only clients that have a
	// certificate.
	TLS bool
	// ExtraArgs are appended to etcd's arguments; one that is set by default too takes its place.
	ExtraArgs []string
}

// Server says how one kube-apiserver is run. The zero value is the default server.
type Server struct {
	// Name is the host name of the server, from which its identity follows; "apiserver-1" and so on if empty. Without
	// hosts of its own the server has the machine's host name and this names only its logs.
	Name string
	// FeatureGates become --feature-gates.
	FeatureGates map[string]bool
	// RuntimeConfig are the elements of --runtime-config, for example "api/all=true".
	RuntimeConfig []string
	// EmulatedVersion becomes --emulated-version, for example "1.36".
	EmulatedVersion string
	// EncryptionConfig is the YAML of an EncryptionConfiguration; empty stores everything in the clear.
	EncryptionConfig string
	// AllowAll lets everybody do everything, by --authorization-mode=AlwaysAllow. RBAC is the default; its first start
	// takes twice the processor time, because the server creates more than a hundred roles.
	AllowAll bool
	// AuditPolicy is the YAML of an audit Policy. The default records the metadata of every request but health checks,
	// those of AdminConfig's user, and those that the server sends to itself.
	AuditPolicy string
	// ExtraArgs are appended to the server's arguments; one that is set by default too takes its place.
	ExtraArgs []string
	// Binary is the path of another kube-apiserver than that of Config.BinDir, for clusters of several versions.
	Binary string
}

// StorageVersionAPI returns s with the alpha StorageVersion API switched on.
func StorageVersionAPI(s Server) Server {
	s = s.clone()
	if s.FeatureGates == nil {
		s.FeatureGates = map[string]bool{}
	}
	s.FeatureGates["StorageVersionAPI"] = true
	s.RuntimeConfig = append(s.RuntimeConfig, "internal.apiserver.k8s.io/v1alpha1=true")
	return s
}

func (s Server) clone() Server {
	s.FeatureGates = maps.Clone(s.FeatureGates)
	s.RuntimeConfig = slices.Clone(s.RuntimeConfig)
	s.ExtraArgs = slices.Clone(s.ExtraArgs)
	return s
}

// complete returns cfg with every default filled in, or says what is wrong with it.
func (cfg Config) complete() (Config, error) {
	servers := cfg.Servers
	if len(servers) == 0 {
		servers = []Server{{}}
	}
	cfg.Servers = make([]Server, 0, len(servers))
	cfg.Hosts = cfg.Hosts || cfg.IPv6 || cfg.AdvertiseBalancer || len(servers) > 1
	if cfg.StartTimeout == 0 {
		cfg.StartTimeout = defaultStartTimeout
	}
	names := sets.New(etcdHostName)
	for i, s := range servers {
		s = s.clone()
		if s.Name == "" {
			s.Name = fmt.Sprintf("apiserver-%d", i+1)
		}
		if err := checkHostName(s.Name); err != nil {
			return Config{}, fmt.Errorf("server %d: %w", i+1, err)
		}
		if names.Has(s.Name) {
			return Config{}, fmt.Errorf("server %d: the name %q is taken", i+1, s.Name)
		}
		names.Insert(s.Name)
		cfg.Servers = append(cfg.Servers, s)
	}
	return cfg, nil
}

func checkHostName(name string) error {
	if problems := validation.IsDNS1123Label(name); len(problems) > 0 {
		return fmt.Errorf("host name %q: %s", name, problems[0])
	}
	return nil
}
