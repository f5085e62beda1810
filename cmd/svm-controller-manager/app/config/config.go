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

// Package config has what the manager runs with: flags that were checked, and the clients and servers made from them.
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
	// Generic is what every controller manager of Kubernetes has: the controllers to run, leader election, leader
	// migration, and settings of clients.
	Generic cmconfig.GenericControllerManagerConfiguration

	// SecureServing is nil if the secure port is off.
	SecureServing  *apiserver.SecureServingInfo
	Authentication apiserver.AuthenticationInfo
	Authorization  apiserver.AuthorizationInfo

	// Kubeconfig is what the configurations of all clients are copied from.
	Kubeconfig *restclient.Config
	// Client is for the manager itself: for leader election, for events, and to see whether the API server answers.
	Client kubernetes.Interface

	// Reachable is closed once the API server has answered.
	Reachable chan struct{}

	Observation Observation

	// ShutdownTimeout is how long the manager waits for controllers to end. Zero is for ever.
	ShutdownTimeout time.Duration

	// Flags is what the flagz page shows.
	Flags flagz.Reader
}

// Observation says how to observe what the API servers write. All controllers share one observer.
type Observation struct {
	// SettlePeriod is how long the servers must write one encoding before they count as agreed.
	SettlePeriod time.Duration
	// PollInterval is how often the observer reads what no event announces.
	PollInterval time.Duration
}
