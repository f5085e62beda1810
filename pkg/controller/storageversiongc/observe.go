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

package storageversiongc

import (
	"context"
	"fmt"
	"slices"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
)

// readTimeout bounds one read of a Lease. An API server that does not answer for longer is in trouble. A living server
// that has to put its Lease back may have the same trouble, so such a read proves nothing.
const readTimeout = time.Second

// suspicious reports, from the caches alone, whether there may be anything to do. Stale caches do no harm: what they do
// not show yet comes with an event, and observe reads again what they show wrongly.
func (c *Controller) suspicious() bool {
	objects, _ := c.storageVersions.List(labels.Everything()) // A cache has no error.
	return slices.ContainsFunc(objects, func(object *apiserverinternalv1alpha1.StorageVersion) bool {
		return len(object.Status.StorageVersions) == 0 || marked(object)
	}) || slices.ContainsFunc(serverIDs(objects...), func(serverID string) bool { return !c.leaseCached(serverID) })
}

// observe reads all StorageVersions and then every Lease that they name. The order matters:
//
//  1. A server publishes its entry only while there is a Lease of its name.
//  2. So the Lease of each entry in the list existed before the list was read.
//  3. So a Lease that is missing after the list has gone. If observe read the Lease before the list, the server could
//     have registered and published between the two reads.
//
// An observation that comes with an error is incomplete, and nothing may be decided on it.
func (c *Controller) observe(ctx context.Context, remembered memory) (observation, error) {
	obs := observation{remembered: remembered, absent: sets.New[string]()}
	list, err := c.client.InternalV1alpha1().StorageVersions().List(ctx, metav1.ListOptions{})
	obs.began = c.clock.Now()
	obs.now = obs.began
	switch {
	case apierrors.IsNotFound(err):
		return obs, nil // The API is off, at least on the server that answered. The objects may still be in etcd.
	case err != nil:
		return obs, fmt.Errorf("listing storage versions: %w", err)
	}
	obs.storageVersions = make([]*apiserverinternalv1alpha1.StorageVersion, 0, len(list.Items))
	for i := range list.Items {
		obs.storageVersions = append(obs.storageVersions, &list.Items[i])
	}
	for _, serverID := range serverIDs(obs.storageVersions...) {
		if c.leaseCached(serverID) {
			continue
		}
		switch err := c.readLease(ctx, serverID); {
		case controller.SaysMissing(err, coordinationv1.Resource("leases"), serverID):
			obs.absent.Insert(serverID)
		case err != nil:
			// One unknown Lease ends the sync. Reading more would only burden an API server in trouble.
			return obs, fmt.Errorf("getting lease %q: %w", serverID, err)
		}
	}
	obs.now = c.clock.Now()
	return obs, nil
}

func (c *Controller) readLease(ctx context.Context, serverID string) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	_, err := c.client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, serverID, metav1.GetOptions{})
	return err
}

// leaseCached reports whether the cache has the Lease of a server. A cache has no other error than that it has not.
func (c *Controller) leaseCached(serverID string) bool {
	_, err := c.leases.Leases(metav1.NamespaceSystem).Get(serverID)
	return err == nil
}
