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

package options

import (
	"cmp"
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	apiserveroptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/kubernetes"
)

// applySecureServing sets up the secure port with delegated authentication and authorization.
//
// The library looks up the authentication configuration of the cluster while it builds the handler, and fails if the
// API server does not answer. This manager may start before the API server. So it gives the library a client CA that it
// looks up later. It leaves out the request headers of a front proxy, because nothing aggregates a controller manager.
func (o *Options) applySecureServing(c *Config) error {
	if err := o.SecureServing.ApplyTo(&c.SecureServing); err != nil {
		return fmt.Errorf("--bind-address and --secure-port: %w", err) // validateServing has checked the rest.
	}
	if c.SecureServing == nil {
		return nil // --secure-port=0
	}

	kubeconfig := o.Generic.ClientConnection.Kubeconfig
	authentication, authorization := *o.Authentication, *o.Authorization
	authentication.RemoteKubeConfigFile = cmp.Or(authentication.RemoteKubeConfigFile, kubeconfig)
	authorization.RemoteKubeConfigFile = cmp.Or(authorization.RemoteKubeConfigFile, kubeconfig)
	noClientCA := authentication.ClientCert == apiserveroptions.ClientCertAuthenticationOptions{}
	if !authentication.SkipInClusterLookup && noClientCA {
		ca, err := clusterClientCA(authentication.RemoteKubeConfigFile, c.Reachable)
		if err != nil {
			return err
		}
		authentication.ClientCert.CAContentProvider = ca
	}
	authentication.SkipInClusterLookup = true
	if err := authentication.ApplyTo(&c.Authentication, c.SecureServing, nil); err != nil {
		return fmt.Errorf("delegated authentication: %w", err)
	}
	if err := authorization.ApplyTo(&c.Authorization); err != nil {
		return fmt.Errorf("delegated authorization: %w", err)
	}
	return nil
}

// clusterClientCA returns the client CA of the cluster. It follows the CA from when the API server answers.
func clusterClientCA(path string, reachable <-chan struct{}) (dynamiccertificates.CAContentProvider, error) {
	kubeconfig, err := loadKubeconfig("--authentication-kubeconfig", path)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--authentication-kubeconfig: %w", err)
	}
	ca, err := dynamiccertificates.NewDynamicCAFromConfigMapController("client-ca",
		metav1.NamespaceSystem, "extension-apiserver-authentication", "client-ca-file", client)
	if err != nil {
		return nil, fmt.Errorf("following the client CA of the cluster: %w", err)
	}
	return patientCA{ConfigMapCAController: ca, reachable: reachable}, nil
}

// patientCA reads its config map only after the API server has answered. Before that, its informer would log an error
// at every try.
type patientCA struct {
	*dynamiccertificates.ConfigMapCAController
	reachable <-chan struct{}
}

// Run follows the config map until ctx ends.
func (p patientCA) Run(ctx context.Context, workers int) {
	select {
	case <-p.reachable:
		p.ConfigMapCAController.Run(ctx, workers)
	case <-ctx.Done():
	}
}
