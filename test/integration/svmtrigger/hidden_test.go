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
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// testServersBehindALoadBalancer has two servers that advertise the address of their load balancer, so that there is
// one endpoint. One of them is upgraded and taken back. Then the balancer leads to the other one only.
func testServersBehindALoadBalancer(t *testing.T) {
	spec := oldServer()
	spec.AllowAll = true
	cp := controlplane.Start(t, controlplane.Config{
		AdvertiseBalancer: true, Servers: []controlplane.Server{spec, spec},
	})
	c := useCluster(t, cp, cp.AdminConfig())
	startJudge(t, c, policies, bindings, configMaps, flowSchema)
	startMigrator(t, c)
	started := time.Now()
	c.startManager(t, "manager", onlyChosen)
	w := startWriter(t, c.Servers()...)
	framework.EventuallySeen(t, soon, func() error {
		return c.says(flowSchema, v1alpha1.StorageStateAgreed, metav1.ConditionTrue, v1alpha1.StateReasonServersAgree)
	})
	t.Logf("the servers agree %v after the start of the manager", time.Since(started).Round(time.Millisecond))
	framework.EventuallySeen(t, soon, func() error { return c.everythingKnown() })
	t.Logf("everything is known %v after the start of the manager", time.Since(started).Round(time.Millisecond))
	t.Run("an upgrade that is taken back", func(t *testing.T) { testRollback(t, c, w) })

	began := c.mark(t)
	c.Balancer().SetBackends(c.Servers()[0])
	c.restart(t, c.Servers()[1], nil)
	framework.EventuallySeen(t, soon, func() error {
		agreed := meta.FindStatusCondition(c.state(flowSchema.String()).Status.Conditions, v1alpha1.StorageStateAgreed)
		if want := "reached only 1 of them"; !strings.Contains(agreed.Message, want) {
			return fmt.Errorf("no %q in %q", want, agreed.Message)
		}
		return c.serversUnseen()
	})
	framework.During(t, 2*settle, func(context.Context) error {
		for _, life := range c.migrationsAfter(began) {
			return fmt.Errorf("a migration was created: %v", life)
		}
		return c.serversUnseen()
	})
	c.Balancer().SetBackends()
	framework.EventuallySeen(t, soon, func() error { return c.upgraded("v1beta1") })
}

// serversUnseen complains unless the states of built-in resources say that not all servers were seen, and that these
// may write what nobody knows.
func (c *cluster) serversUnseen() error {
	count := 0
	for _, state := range c.allStates() {
		if !isBuiltInState(state) {
			continue
		}
		count++
		agreed := meta.FindStatusCondition(state.Status.Conditions, v1alpha1.StorageStateAgreed)
		if agreed == nil || agreed.Status != metav1.ConditionFalse || agreed.Reason != v1alpha1.StateReasonServersUnseen ||
			agreed.Message == "" {
			return fmt.Errorf("%s, want that servers are unseen", words(state))
		}
		if certain(state) || state.Status.CurrentStorageVersionHash != v1alpha1.Unknown {
			return fmt.Errorf("%s excludes what unseen servers write", words(state))
		}
	}
	if count == 0 {
		return errors.New("there are no states of built-in resources")
	}
	return nil
}

// isBuiltInState says that it is no state of the migration API's own definitions, the only custom resources there.
func isBuiltInState(state *v1alpha1.StorageState) bool {
	return state.Spec.Resource.Group != v1alpha1.GroupName
}
