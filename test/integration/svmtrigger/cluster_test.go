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

package svmtrigger

import (
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const (
	clockFormat = "15:04:05.000"

	// settle is the settle period of the managers in these tests, which state what is promised by themselves.
	settle = 5 * time.Second
	// soon is how long what takes several steps may take on a busy machine. It is less than the poll interval, so what
	// happens by then was shown by a watch.
	soon = 8 * time.Minute
)

// cluster is a control plane with the migration API, and the history of that API.
type cluster struct {
	*framework.Cluster
	*history
	slowest time.Duration // of the restarts of servers
}

// part is one of several tests on one control plane.
type part struct {
	name string
	run  func(t *testing.T, c *cluster)
}

// onOne returns a test that runs parts one after the other on one control plane with that many servers.
func onOne(servers int, parts ...part) func(t *testing.T) {
	return func(t *testing.T) {
		startCluster(t, make([]controlplane.Server, servers)...).run(t, parts)
	}
}

// onHost returns a test that runs parts one after the other on a server with a host, so that a manager that talks to an
// interceptor finds the server at the address that it advertises.
func onHost(parts ...part) func(t *testing.T) {
	return func(t *testing.T) {
		cp := controlplane.Start(t, controlplane.Config{Hosts: true, Servers: []controlplane.Server{{AllowAll: true}}})
		useCluster(t, cp, cp.AdminConfig()).run(t, parts)
	}
}

func (c *cluster) run(t *testing.T, parts []part) {
	t.Helper()
	for _, one := range parts {
		if !c.Part(t, one.name, func(t *testing.T) { one.run(t, c) }) {
			return
		}
	}
}

// startCluster starts servers, and installs the definitions of the migration API. The managers of these tests are
// administrators, whom RBAC lets do everything too.
func startCluster(t *testing.T, servers ...controlplane.Server) *cluster {
	t.Helper()
	if len(servers) == 0 {
		servers = []controlplane.Server{{}}
	}
	for i := range servers {
		servers[i].AllowAll = true
	}
	cp := controlplane.Start(t, controlplane.Config{Servers: servers})
	return useCluster(t, cp, cp.AdminConfig())
}

// useCluster makes clients of cfg for a control plane that has no migration API yet.
func useCluster(t *testing.T, cp *controlplane.ControlPlane, cfg *rest.Config) *cluster {
	t.Helper()
	c := &cluster{Cluster: framework.Use(t, cp, cfg), history: startHistory(t, cp)}
	c.InstallMigrationAPI(t)
	return c
}

// mark is the present revision of etcd: what is written later has a greater one.
func (c *cluster) mark(t *testing.T) int64 {
	t.Helper()
	response, err := c.Etcd().Client().Get(t.Context(), "mark")
	if err != nil {
		t.Fatal(err)
	}
	return response.Header.Revision
}

// startManager runs the trigger controller alone, without an election or a port, at the settle period of these tests.
// Later arguments take the place of earlier ones.
func (c *cluster) startManager(t *testing.T, name string, args ...string) *controlplane.Process {
	t.Helper()
	return c.startManagerAt(t, c.Config(framework.ManagerUser, framework.Masters), name, args...)
}

// startManagerAt is startManager for a manager that talks to where cfg leads.
func (c *cluster) startManagerAt(t *testing.T, cfg *rest.Config, name string, args ...string) *controlplane.Process {
	t.Helper()
	process, _ := c.StartManager(t, framework.Process{Name: name, Config: cfg, Args: append([]string{
		"-v=4", "--controllers=svmtrigger", "--leader-elect=false", "--secure-port=0", "--settle-period=" + settle.String(),
	}, args...)})
	return process
}
