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
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// testLeaderChange kills the leader in the middle of a first installation, between its writes.
func testLeaderChange(t *testing.T, c *cluster) {
	startJudge(t, c, configMaps, flowSchema)
	startMigrator(t, c)
	const resources = 24
	expected := migratable(t, c)[:resources]
	args := slices.Clone(framework.PatientElection)
	for _, gr := range expected {
		args = append(args, "--auto-migrate="+gr.String())
	}

	quarter := c.letCreate(t, len(expected)/4)
	leader := c.startManagerAt(t, quarter.Config(framework.ManagerUser, framework.Masters), "first-leader", args...)
	framework.EventuallySeen(t, soon, func() error {
		if len(c.allStates()) == 0 {
			return errors.New("the first leads not")
		}
		return nil
	})
	c.startManager(t, "heir", args...)
	framework.EventuallySeen(t, soon, func() error {
		if created := len(c.migrationsAfter(0)); created < len(expected)/4 {
			return fmt.Errorf("only %d migrations are created", created)
		}
		return nil
	})
	if err := leader.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := c.mark(t)
	// The heir need not wait until the lease expires, which would be for minutes.
	leases := c.Kube.CoordinationV1().Leases(metav1.NamespaceSystem)
	if err := leases.Delete(t.Context(), framework.Manager, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Logf("the leader was killed when %d of %d migrations were created", len(c.migrationsAfter(0)), len(expected))
	framework.EventuallySeen(t, soon, func() error { return c.allMigrated(expected) })
	for _, gr := range expected {
		if err := c.migrationCount(resource{GroupResource: gr}, 0, 1); err != nil {
			t.Error(err)
		}
	}
	if len(c.migrationsAfter(killed)) == 0 {
		t.Error("the leader was killed when all was done")
	}
}

// letCreate returns an interceptor for a manager that may create that many migrations, and asks it to wait with others.
func (c *cluster) letCreate(t *testing.T, most int) *controlplane.Interceptor {
	t.Helper()
	gate, err := c.NewInterceptor("", nil)
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	gate.Intercept(func(r *http.Request) controlplane.Verdict {
		creates := r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/storageversionmigrations")
		if creates && asked.Add(1) > int64(most) {
			return controlplane.TooManyRequests("1")
		}
		return controlplane.Verdict{}
	})
	return gate
}
