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

package svmigrator

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
	settle = 2 * time.Second
	// soon is how long what takes several steps may take on a busy machine.
	soon = 10 * time.Minute
)

// cluster is a control plane with the migration API.
type cluster struct{ *framework.Cluster }

// part is one of several tests on one control plane.
type part struct {
	name string
	run  func(t *testing.T, c *cluster)
}

// onOne returns a test that has parts.
func onOne(parts ...part) func(t *testing.T) {
	return func(t *testing.T) { startCluster(t).inTurn(t, parts...) }
}

// onHost is onOne for managers that talk to an interceptor. They find the server at the address that it advertises from
// a host of its own. One without is known to them by the address of the interceptor only, at which they do not trust
// what they see for a minute and a half after each start.
func onHost(parts ...part) func(t *testing.T) {
	return func(t *testing.T) {
		cp := controlplane.Start(t, controlplane.Config{Hosts: true, Servers: []controlplane.Server{{AllowAll: true}}})
		useCluster(t, cp, cp.AdminConfig()).inTurn(t, parts...)
	}
}

// inTurn runs parts one after the other.
func (c *cluster) inTurn(t *testing.T, parts ...part) {
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
	c := &cluster{framework.Use(t, cp, cfg)}
	c.InstallMigrationAPI(t)
	return c
}

// startManager runs the migrator alone, without an election or a port, at the settle period of these tests, and as fast
// as the pacer lets it. Later arguments take the place of earlier ones.
func (c *cluster) startManager(t *testing.T, name string, args ...string) *controlplane.Process {
	t.Helper()
	return c.startProcess(
		t, framework.Process{Name: name, Config: c.Config(framework.ManagerUser, framework.Masters), Args: args},
	)
}

// startProcess is startManager for one that runs elsewhere, or talks to somebody else.
func (c *cluster) startProcess(t *testing.T, p framework.Process) *controlplane.Process {
	t.Helper()
	p.Args = append([]string{
		"-v=4", "--controllers=svmigrator", "--leader-elect=false", "--secure-port=0",
		"--settle-period=" + settle.String(), "--max-rewrites-per-second=0",
	}, p.Args...)
	process, _ := c.StartManager(t, p)
	return process
}
