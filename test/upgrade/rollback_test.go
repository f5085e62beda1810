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

package upgrade

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// soon is far below the interval at which the manager polls.
const soon = 2 * time.Minute

// addresses are stored as v1beta1 by Kubernetes 1.33, and as v1 by Kubernetes 1.34.
var addresses = schema.GroupResource{Group: "networking.k8s.io", Resource: "ipaddresses"}

// TestRollBack upgrades the only server from 1.33 to 1.34 and rolls it back. Its identity Lease stays the same.
func TestRollBack(t *testing.T) {
	for name, test := range map[string]struct{ hosts, watched bool }{
		"no manager runs":                           {hosts: true},
		"a manager runs":                            {hosts: true, watched: true},
		"a manager runs, and knows no address":      {watched: true},
		"no manager runs, and none knows addresses": {},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, controlplane.Config{Hosts: test.hosts, Servers: []controlplane.Server{
				{Binary: binary(t, "1.34"), AllowAll: true, EmulatedVersion: "1.33"},
			}})
			c.InstallMigrationAPI(t)
			c.create(t, "192.0.2.1")
			first := c.startManager(t, "first")
			framework.Eventually(t, soon, c.migratedAfter(0))
			before, lease := c.state(t), c.lease(t)
			if !test.watched {
				framework.StopManager(t, first)
			}

			// A server that is killed does not give its address up, so nothing but its connections tells.
			end := map[bool]func() error{true: c.Servers()[0].Kill, false: c.Servers()[0].Stop}[test.watched]
			c.restart(t, end, "")
			c.create(t, "192.0.2.2")
			if stored := c.stored(t); !slices.Contains(stored, "networking.k8s.io/v1") {
				t.Fatalf("the new server stores %q", stored)
			}
			c.restart(t, end, "1.33")
			if now := c.lease(t); now != lease {
				t.Fatalf("the Lease is %s, and was %s", now, lease)
			}
			if !test.watched {
				c.startManager(t, "second")
			}
			framework.Eventually(t, soon, func(ctx context.Context) error {
				state, err := c.States().Get(ctx, addresses.String(), metav1.GetOptions{})
				if err == nil && state.Status.Epoch == before.Status.Epoch {
					err = fmt.Errorf("objects are stored as %q, and the state says %q in epoch %d", c.stored(t),
						state.Status.PersistedStorageVersionHashes, state.Status.Epoch)
				}
				return err
			})
			framework.Eventually(t, soon, c.migratedAfter(before.Status.Epoch))
			for _, encoding := range c.stored(t) {
				if encoding != "networking.k8s.io/v1beta1" {
					t.Errorf("the state says that all is migrated, and an object is stored as %s", encoding)
				}
			}
		})
	}
}

func (c *cluster) startManager(t *testing.T, name string) *controlplane.Process {
	t.Helper()
	process, _ := framework.StartManager(t, c.ControlPlane, framework.Process{
		Name: name, Config: c.Config(framework.ManagerUser, framework.Masters),
		Args: []string{
			"-v=4", "--controllers=*", "--leader-elect=false", "--settle-period=2s", "--max-rewrites-per-second=0",
		},
	})
	return process
}

// restart replaces the process of the only server.
func (c *cluster) restart(t *testing.T, end func() error, emulated string) {
	t.Helper()
	if err := end(); err != nil {
		t.Fatal(err)
	}
	if err := c.Servers()[0].Restart(func(s *controlplane.Server) { s.EmulatedVersion = emulated }); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) create(t *testing.T, name string) {
	t.Helper()
	address := &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.IPAddressSpec{
		ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: "kubernetes"},
	}}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		_, err := c.Kube.NetworkingV1().IPAddresses().Create(ctx, address, metav1.CreateOptions{})
		return err
	})
}

// stored returns the encodings in etcd.
func (c *cluster) stored(t *testing.T) []string {
	t.Helper()
	objects, err := c.Stored(t.Context(), addresses)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, object := range objects {
		all = append(all, object.Encoding)
	}
	return all
}

// lease returns what identifies the identity Lease of the server.
func (c *cluster) lease(t *testing.T) string {
	t.Helper()
	lease, err := c.Kube.CoordinationV1().Leases(metav1.NamespaceSystem).Get(t.Context(), c.Servers()[0].Identity(),
		metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s held by %s", lease.UID, *lease.Spec.HolderIdentity)
}

func (c *cluster) state(t *testing.T) *v1alpha1.StorageState {
	t.Helper()
	state, err := c.States().Get(t.Context(), addresses.String(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// migratedAfter wants the state to say in a later epoch that all objects are stored in the one current encoding.
func (c *cluster) migratedAfter(epoch int64) func(context.Context) error {
	return func(ctx context.Context) error {
		state, err := c.States().Get(ctx, addresses.String(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		status := &state.Status
		current := status.CurrentStorageVersionHash
		if status.Epoch <= epoch || current == v1alpha1.Unknown ||
			!slices.Equal(status.PersistedStorageVersionHashes, []string{current}) {
			return fmt.Errorf("epoch %d, current %s, persisted %q, %+v", status.Epoch, current,
				status.PersistedStorageVersionHashes, status.Conditions)
		}
		return nil
	}
}
