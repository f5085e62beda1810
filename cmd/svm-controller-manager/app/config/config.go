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

// Package config is what the manager runs with: flags that were checked and turned into clients and servers.
package config

import (
	"time"

	apiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	cmconfig "k8s.io/controller-manager/config"
)

// Config is everything that Run needs.
type Config struct {
	// Generic is the part that every controller manager of Kubernetes has: the controllers to run, leader election,
	// leader migration, client settings.
	Generic cmconfig.GenericControllerManagerConfiguration

	// SecureServing is nil where the secure port is switched off.
	SecureServing  *apiserver.SecureServingInfo
	Authentication apiserver.AuthenticationInfo
	Authorization  apiserver.AuthorizationInfo

	// Kubeconfig is the skeleton of every client's configuration.
	Kubeconfig *restclient.Config
	// Client serves the manager itself: leader election, events, the look whether the API server is there.
	Client kubernetes.Interface

	// Reachable is closed once the API server has answered.
	Reachable chan struct{}

	Observation Observation

	// ShutdownTimeout bounds the wait for controllers to end.
	ShutdownTimeout time.Duration

	// Flags is what the flagz page shows.
	Flags flagz.Reader
}

// Observation says how what the API servers write is observed. All controllers that go by it share one observer.
type Observation struct {
	// SettlePeriod is how long what the servers write must stand before it counts.
	SettlePeriod time.Duration
	// PollInterval is how often that is looked at what no event tells of.
	PollInterval time.Duration
}
