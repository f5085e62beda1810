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
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const (
	// serverDNSName is what every server's certificate is for.
	serverDNSName        = "kubernetes.default.svc"
	serviceAccountIssuer = "https://" + serverDNSName
	// Services must not meet the addresses of hosts.
	serviceSubnet     = "10.96.0.0/16"
	firstService      = "10.96.0.1"
	serviceSubnetIPv6 = "fd96::/112"
	firstServiceIPv6  = "fd96::1"
)

// serverFiles are the files that one API server is started with.
type serverFiles struct {
	dir  string
	args arguments // the part that never changes
}

func newServerFiles(cp *ControlPlane, s *APIServer) (serverFiles, error) {
	f := serverFiles{dir: filepath.Join(cp.dir, "servers", s.name)}
	if err := os.MkdirAll(f.dir, 0o700); err != nil {
		return f, fmt.Errorf("making a folder: %w", err)
	}
	serving, err := cp.authority.serving(s.name, cp.servingNames(s.host)...)
	if err != nil {
		return f, err
	}
	if err := serving.write(f.dir, "serving"); err != nil {
		return f, err
	}
	reconciler := "none" // which is what lets the server advertise a loopback address
	if cp.config.Hosts {
		reconciler = "lease"
	}
	services := serviceSubnet
	if cp.config.IPv6 {
		services = serviceSubnetIPv6
	}
	ca := cp.pkiPath(caCertificate)
	f.args = arguments{
		"--etcd-servers=" + cp.etcd.URL(),
		"--bind-address=" + s.host.address,
		"--advertise-address=" + s.advertised(),
		"--secure-port=" + strconv.Itoa(s.port),
		"--endpoint-reconciler-type=" + reconciler,
		"--service-cluster-ip-range=" + services,
		"--tls-cert-file=" + filepath.Join(f.dir, "serving.crt"),
		"--tls-private-key-file=" + filepath.Join(f.dir, "serving.key"),
		"--client-ca-file=" + ca,
		"--requestheader-client-ca-file=" + ca,
		"--requestheader-allowed-names=" + frontProxyUser,
		"--requestheader-username-headers=" + userHeader,
		"--requestheader-group-headers=" + groupHeader,
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + cp.pkiPath(frontProxyName+".crt"),
		"--proxy-client-key-file=" + cp.pkiPath(frontProxyName+".key"),
		"--service-account-issuer=" + serviceAccountIssuer,
		"--service-account-key-file=" + cp.pkiPath(serviceAccountPublic),
		"--service-account-signing-key-file=" + cp.pkiPath(serviceAccountPrivate),
		"--authorization-mode=RBAC",
		// Without kube-controller-manager no namespace has a default service account, and every pod would be refused.
		"--disable-admission-plugins=ServiceAccount",
		"--allow-privileged=true",
		// Without it a server with a single watch open takes a minute to stop.
		"--shutdown-watch-termination-grace-period=200ms",
		"--audit-log-path=" + cp.auditPath(s.name),
		// By default a log of 100 MB is put aside, and what counts requests would not see it anymore.
		"--audit-log-maxsize=0",
		"--audit-policy-file=" + filepath.Join(f.dir, "audit-policy.yaml"),
	}
	return f, nil
}

// servingNames are all the names by which clients may call a server, the balancers' among them.
func (cp *ControlPlane) servingNames(h *Host) []string {
	return []string{
		serverDNSName, "kubernetes.default", "kubernetes", "localhost", h.name,
		h.address, cp.network.gateway(), "127.0.0.1", firstService, firstServiceIPv6,
	}
}

// arguments writes the files that spec needs and returns all arguments of the server.
func (f serverFiles) arguments(spec Server) (arguments, error) {
	policy := spec.AuditPolicy
	if policy == "" {
		policy = defaultAuditPolicy
	}
	if err := f.write("audit-policy.yaml", policy); err != nil {
		return nil, err
	}
	args := f.args
	if len(spec.FeatureGates) > 0 {
		args = args.with("--feature-gates=" + joinGates(spec.FeatureGates))
	}
	if len(spec.RuntimeConfig) > 0 {
		args = args.with("--runtime-config=" + strings.Join(spec.RuntimeConfig, ","))
	}
	if spec.AllowAll {
		args = args.with("--authorization-mode=AlwaysAllow")
	}
	if spec.EmulatedVersion != "" {
		args = args.with("--emulated-version=" + spec.EmulatedVersion)
	}
	if spec.EncryptionConfig != "" {
		if err := f.write(encryptionFile, spec.EncryptionConfig); err != nil {
			return nil, err
		}
		args = args.with("--encryption-provider-config=" + filepath.Join(f.dir, encryptionFile))
	}
	return args.with(spec.ExtraArgs...), nil
}

func (f serverFiles) write(name, content string) error {
	if err := os.WriteFile(filepath.Join(f.dir, name), []byte(content), 0o600); err != nil {
		return fmt.Errorf("writing %s: %w", name, err)
	}
	return nil
}
