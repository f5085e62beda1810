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

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// Where a server registers itself: its endpoint and its identity.
const (
	endpointsNamespace = metav1.NamespaceDefault
	endpointsName      = "kubernetes"
	leaseNamespace     = metav1.NamespaceSystem
	masterLeasePrefix  = "/registry/masterleases/"
	// masterLeaseTTL is what servers give their own entries.
	masterLeaseTTL = 15

	membershipPoll = 250 * time.Millisecond
)

// awaitMembership returns when every server has registered its identity and, where servers have hosts, its endpoint.
func (cp *ControlPlane) awaitMembership(ctx context.Context) error {
	// Not through the balancer, which may not yet have found out who is ready.
	config := cp.Servers()[0].Config(adminUser, adminGroup)
	config.WarningHandler = rest.NoWarnings{} // Endpoints are deprecated, as each use would say
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("making a client: %w", err)
	}
	var last error
	err = wait.PollUntilContextCancel(ctx, membershipPoll, true, func(ctx context.Context) (bool, error) {
		if last = cp.checkIdentities(ctx, client); last == nil && cp.config.Hosts {
			last = cp.joinEndpoints(ctx, client)
		}
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("waiting for the servers to register: %w", errors.Join(err, last))
	}
	return nil
}

func (cp *ControlPlane) checkIdentities(ctx context.Context, client kubernetes.Interface) error {
	for _, s := range cp.Servers() {
		if _, err := client.CoordinationV1().Leases(leaseNamespace).Get(ctx, s.Identity(), metav1.GetOptions{}); err != nil {
			return fmt.Errorf("looking for the identity of %s: %w", s.name, err)
		}
	}
	return nil
}

// joinEndpoints returns nil when the endpoints of the API list all servers. Servers that start together refuse each
// other's writes, of the API's Service, of the record in etcd of who is there, of the list made from that, and try
// again ten seconds later. This does now what they would do then; it is called when all are ready.
func (cp *ControlPlane) joinEndpoints(ctx context.Context, client kubernetes.Interface) error {
	want := sets.New[string]()
	for _, s := range cp.Servers() {
		want.Insert(s.advertised())
		if err := cp.register(ctx, s.advertised()); err != nil {
			return err
		}
	}
	if err := joinLegacyEndpoints(ctx, client, sets.List(want)); err != nil {
		return err
	}
	return joinEndpointSlice(ctx, client, sets.List(want))
}

// register enters a server into the record of who is there, where it has not done so itself. It will renew the entry
// before that expires.
func (cp *ControlPlane) register(ctx context.Context, address string) error {
	// Servers write protobuf, and read JSON as well.
	value := fmt.Sprintf(`{"apiVersion":"v1","kind":"Endpoints","subsets":[{"addresses":[{"ip":%q}]}]}`, address)
	client, key := cp.etcd.client, masterLeasePrefix+address
	present, err := client.Get(ctx, key, clientv3.WithCountOnly())
	if err != nil {
		return fmt.Errorf("looking whether %s has registered: %w", address, err)
	}
	if present.Count > 0 {
		return nil
	}
	lease, err := client.Grant(ctx, masterLeaseTTL)
	if err != nil {
		return fmt.Errorf("registering %s: %w", address, err)
	}
	_, err = client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, value, clientv3.WithLease(lease.ID))).
		Commit()
	if err != nil {
		return fmt.Errorf("registering %s: %w", address, err)
	}
	return nil
}

// joinLegacyEndpoints completes the Endpoints object: servers go by it, and undo what is only in the EndpointSlice.
func joinLegacyEndpoints(ctx context.Context, client kubernetes.Interface, addresses []string) error {
	endpoints, err := client.CoreV1().Endpoints(endpointsNamespace).Get(ctx, endpointsName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the endpoints of the API: %w", err)
	}
	if len(endpoints.Subsets) != 1 {
		return fmt.Errorf("the endpoints of the API have %d subsets instead of one", len(endpoints.Subsets))
	}
	var wanted []corev1.EndpointAddress
	for _, address := range addresses {
		wanted = append(wanted, corev1.EndpointAddress{IP: address})
	}
	equal := func(a, b corev1.EndpointAddress) bool { return a.IP == b.IP }
	if slices.EqualFunc(endpoints.Subsets[0].Addresses, wanted, equal) {
		return nil
	}
	endpoints.Subsets[0].Addresses = wanted
	if _, err := client.CoreV1().Endpoints(endpointsNamespace).Update(ctx, endpoints, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("completing the endpoints of the API: %w", err)
	}
	return nil
}

func joinEndpointSlice(ctx context.Context, client kubernetes.Interface, addresses []string) error {
	endpointSlices := client.DiscoveryV1().EndpointSlices(endpointsNamespace)
	slice, err := endpointSlices.Get(ctx, endpointsName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the endpoint slice of the API: %w", err)
	}
	listed := sets.New[string]()
	for _, endpoint := range slice.Endpoints {
		listed.Insert(endpoint.Addresses...)
	}
	if listed.Equal(sets.New(addresses...)) {
		return nil
	}
	slice.Endpoints = nil
	for _, address := range addresses {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{address},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
		})
	}
	if _, err := endpointSlices.Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("completing the endpoint slice of the API: %w", err)
	}
	return nil
}
