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

package framework

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// part is what the test that uses a control plane at present has started.
type part struct {
	prefix   string // of the names of its managers
	managers []*controlplane.Process
}

// As returns the same control plane with clients of another config.
func (c *Cluster) As(t *testing.T, cfg *rest.Config) *Cluster {
	t.Helper()
	other := Use(t, c.ControlPlane, cfg)
	other.part = c.part
	return other
}

// StartManager starts a manager that ends with the part that starts it.
func (c *Cluster) StartManager(t *testing.T, p Process) (process *controlplane.Process, port int) {
	t.Helper()
	p.Name = c.part.prefix + p.Name
	process, port = StartManager(t, c.ControlPlane, p)
	c.part.managers = append(c.part.managers, process)
	return process, port
}

// Part runs one of several tests on this control plane, because each start of one costs seconds. Its managers end with
// it, and the migrations and states go. Names of resources must differ. It reports whether another part may follow: a
// part that failed may have left the servers as no other expects them.
func (c *Cluster) Part(t *testing.T, name string, run func(t *testing.T)) bool {
	t.Helper()
	*c.part = part{prefix: strings.ReplaceAll(name, " ", "-") + "-"}
	passed := t.Run(name, run)
	for _, manager := range c.part.managers {
		if manager.Running() {
			StopManager(t, manager)
		}
	}
	*c.part = part{}
	if !passed {
		return false
	}
	all := metav1.ListOptions{}
	if err := c.Migrations().DeleteCollection(t.Context(), metav1.DeleteOptions{}, all); err != nil {
		t.Fatal(err)
	}
	if err := c.States().DeleteCollection(t.Context(), metav1.DeleteOptions{}, all); err != nil {
		t.Fatal(err)
	}
	return true
}
