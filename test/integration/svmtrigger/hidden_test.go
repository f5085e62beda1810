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
	"net"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// testServersBehindALoadBalancer has three servers that were restarted to advertise the address of their load balancer.
// So there is one endpoint, behind which nobody can tell who answers, and what the others write is not known.
func testServersBehindALoadBalancer(t *testing.T) {
	c := startCluster(t, controlplane.Server{}, controlplane.Server{}, controlplane.Server{})
	startJudge(t, c, configMaps, flowSchema)
	startMigrator(t, c)
	c.startManager(t, "manager")
	framework.Eventually(t, soon, func(context.Context) error { return c.everythingMigrated() })

	began := c.mark(t)
	c.hideServers(t)
	framework.Eventually(t, soon, func(context.Context) error { return c.serversUnseen() })
	agreed := meta.FindStatusCondition(c.state(flowSchema.String()).Status.Conditions, v1alpha1.StorageStateAgreed)
	t.Logf("told: %s", agreed.Message)
	framework.During(t, 2*settle, func(context.Context) error {
		for _, life := range c.migrationsAfter(began) {
			return fmt.Errorf("a migration was created: %v", life)
		}
		return c.serversUnseen()
	})
}

// hideServers makes all servers advertise their load balancer.
func (c *cluster) hideServers(t *testing.T) {
	t.Helper()
	host, _, err := net.SplitHostPort(c.Balancer().Address())
	if err != nil {
		t.Fatal(err)
	}
	var restarts sync.WaitGroup
	for _, server := range c.Servers() {
		restarts.Go(func() {
			if err := server.Restart(func(s *controlplane.Server) {
				s.ExtraArgs = []string{"--advertise-address=" + host}
			}); err != nil {
				t.Error(err)
			}
		})
	}
	restarts.Wait()
	framework.Eventually(t, soon, func(ctx context.Context) error {
		slice, err := c.Kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(slice.Endpoints) != 1 || slice.Endpoints[0].Addresses[0] != host {
			return fmt.Errorf("the endpoints are %v", slice.Endpoints)
		}
		return nil
	})
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
		if certain(state) {
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
