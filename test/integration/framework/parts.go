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

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// StartManager starts a manager that ends with the part that starts it. It ends with the test that starts it if that
// fails, so that it does not migrate for the next test too.
func (c *Cluster) StartManager(t *testing.T, p Process) (process *controlplane.Process, port int) {
	t.Helper()
	p.Name = strings.ReplaceAll(t.Name(), "/", "-") + "-" + p.Name // Names of logs must differ.
	process, port = StartManager(t, c.ControlPlane, p)
	stop := func(t *testing.T) {
		if process.Running() {
			StopManager(t, process)
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			stop(t)
		}
	})
	if part := c.part; part != nil {
		part.Cleanup(func() { stop(part) })
	}
	return process, port
}

// Part runs one of several tests on this control plane, because each start of one costs seconds. It begins without the
// migrations and states of the part before it. Names of resources must differ. It reports whether another part may
// follow: a part that failed may have left the servers as no other expects them.
func (c *Cluster) Part(t *testing.T, name string, run func(t *testing.T)) bool {
	t.Helper()
	if c.part != nil {
		all := metav1.ListOptions{}
		if err := c.Migrations().DeleteCollection(t.Context(), metav1.DeleteOptions{}, all); err != nil {
			t.Fatal(err)
		}
		if err := c.States().DeleteCollection(t.Context(), metav1.DeleteOptions{}, all); err != nil {
			t.Fatal(err)
		}
	}
	return t.Run(name, func(t *testing.T) {
		c.part = t
		run(t)
	})
}
