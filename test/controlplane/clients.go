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

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Config is a configuration for clients that authenticate as user and groups by certificate, through the load balancer.
// No limit on the client's side applies (QPS -1).
func (cp *ControlPlane) Config(user string, groups ...string) *rest.Config {
	return cp.configFor(cp.endpoint(), user, groups)
}

// AdminConfig is Config for a member of system:masters.
func (cp *ControlPlane) AdminConfig() *rest.Config { return cp.Config(adminUser, adminGroup) }

// ConfigVia is Config through another balancer than the control plane's own. Clients expect the servers' certificates
// to be for kubernetes.default.svc, because a balancer may be where no certificate was made for.
func (cp *ControlPlane) ConfigVia(b *Balancer, user string, groups ...string) *rest.Config {
	config := cp.configFor(b.Address(), user, groups)
	config.ServerName = serverDNSName
	return config
}

// OutsideConfig is Config for programs outside of the namespaces of this process, such as kubectl in another terminal.
// It works from inside as well only where this process has no namespaces of its own.
func (cp *ControlPlane) OutsideConfig(user string, groups ...string) (*rest.Config, error) {
	if !cp.config.Hosts && entered() != nil {
		return cp.Config(user, groups...), nil
	}
	b, err := cp.outsideBalancer()
	if err != nil {
		return nil, fmt.Errorf("reaching the control plane from outside: %w", err)
	}
	return cp.ConfigVia(b, user, groups...), nil
}

// OutsideConfig is ControlPlane.OutsideConfig for this server only. Every call takes one of a few ports.
func (s *APIServer) OutsideConfig(user string, groups ...string) (*rest.Config, error) {
	if !s.cp.config.Hosts && entered() != nil {
		return s.Config(user, groups...), nil
	}
	listener, err := takeOutsideListener()
	if err != nil {
		return nil, fmt.Errorf("reaching %s from outside: %w", s.name, err)
	}
	b := newBalancer(s.cp, listener)
	b.SetBackends(s)
	s.cp.keepBalancer(b)
	return s.cp.ConfigVia(b, user, groups...), nil
}

func (cp *ControlPlane) outsideBalancer() (*Balancer, error) {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	if cp.outside != nil {
		return cp.outside, nil
	}
	listener, err := takeOutsideListener()
	if err != nil {
		return nil, err
	}
	cp.outside = newBalancer(cp, listener)
	cp.balancers = append(cp.balancers, cp.outside)
	return cp.outside, nil
}

// configFor makes a configuration for whoever answers at endpoint. Making certificates of a name fails only if the
// machine has no randomness, which no caller could handle.
func (cp *ControlPlane) configFor(endpoint, user string, groups []string) *rest.Config {
	pair, err := cp.authority.client(user, groups...)
	if err != nil {
		panic(err)
	}
	return &rest.Config{
		Host: "https://" + endpoint,
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   cp.authority.pem,
			CertData: pair.certificate,
			KeyData:  pair.key,
		},
		QPS: -1,
	}
}

// WriteKubeconfig writes cfg as a kubeconfig file, readable by its owner only.
func (cp *ControlPlane) WriteKubeconfig(path string, cfg *rest.Config) error {
	const name = "controlplane"
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters[name] = &clientcmdapi.Cluster{
		Server: cfg.Host, TLSServerName: cfg.ServerName, CertificateAuthorityData: cfg.CAData,
	}
	kubeconfig.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData, Token: cfg.BearerToken,
	}
	kubeconfig.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	kubeconfig.CurrentContext = name
	if err := clientcmd.WriteToFile(*kubeconfig, path); err != nil {
		return fmt.Errorf("writing kubeconfig %s: %w", path, err)
	}
	return nil
}
