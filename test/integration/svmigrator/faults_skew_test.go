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
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

var candidates = schema.GroupVersionResource{Group: "coordination.k8s.io", Resource: "leasecandidates"}

// servesCandidates is an element of --runtime-config.
const servesCandidates = "coordination.k8s.io/v1beta1=true"

// testServedByAnotherServer has the server that the manager does not use serve one more resource, as a server of the
// next release does in a rolling upgrade. The migration waits until the manager's own server serves it as well.
func testServedByAnotherServer(t *testing.T, c *lagging) {
	manager := c.startProcess(t, framework.Process{
		Name: "manager", Config: c.Servers()[0].Config(framework.ManagerUser, framework.Masters),
	})
	// A migration that waits for seconds while nobody is known to serve its resource fails.
	framework.AwaitRead(t, soon, manager, c.Servers()...)
	c.migrate(t, "ahead", candidates)
	framework.Eventually(t, soon, func(ctx context.Context) error {
		m, err := c.fetch(ctx, "ahead")
		if err != nil {
			return err
		}
		if m.Finished() {
			t.Fatalf("it has ended: %s", words(m))
		}
		waits := m.Status.Condition(v1alpha1.MigrationWaiting)
		if waits == nil || waits.Status != corev1.ConditionTrue || !strings.Contains(waits.Message, "another API server") {
			return errors.New(words(m))
		}
		return nil
	})
	c.restart(t, func(s *controlplane.Server) { s.RuntimeConfig = append(s.RuntimeConfig, servesCandidates) })
	if m := c.ended(t, "ahead", soon); condition(m, v1alpha1.MigrationSucceeded) == nil {
		t.Errorf("it has not succeeded: %s", words(m))
	}
}
