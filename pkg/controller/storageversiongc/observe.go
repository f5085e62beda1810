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
	"errors"
	"fmt"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"
)

const (
	// leaseResource is how the API server calls the thing it did not find.
	leaseResource = "leases"

	// readTimeout bounds the reading of one Lease. A server that stops answering for longer is in trouble, and a living
	// server that has to put its Lease back may be in the same: such a reading proves nothing.
	readTimeout = time.Second
)

// suspicious tells from the caches alone whether there may be anything to do. Stale caches are harmless: what they do not
// show yet comes with an event, and what they show wrongly is read again before anything is decided.
func (c *Controller) suspicious() (bool, error) {
	objects, err := c.storageVersions.List(labels.Everything())
	if err != nil {
		return false, fmt.Errorf("listing cached storage versions: %w", err)
	}
	for _, object := range objects {
		if len(object.Status.StorageVersions) == 0 || fenced(object) {
			return true, nil
		}
		for _, entry := range object.Status.StorageVersions {
			cached, err := c.leaseCached(entry.APIServerID)
			if err != nil {
				return false, err
			}
			if !cached {
				return true, nil
			}
		}
	}
	return false, nil
}

// observe reads all StorageVersions and then every Lease they mention, in this order:
//
//  1. A server registers its Lease, then publishes its entry.
//  2. An entry that is in the list was therefore published by a server whose Lease existed before the list.
//  3. So a Lease that is missing after the list is one that was there and went. Were it read before the list, the server
//     could have registered and published between the two readings.
//
// An observation that comes with an error is incomplete and says so: what was not read is unknown in it.
func (c *Controller) observe(ctx context.Context) (observation, error) {
	obs := observation{remembered: c.memory, leases: map[string]presence{}}
	list, err := c.client.InternalV1alpha1().StorageVersions().List(ctx, metav1.ListOptions{})
	obs.began = c.clock.Now()
	obs.now = obs.began
	switch {
	case apierrors.IsNotFound(err):
		// The API is off, or off on the server that answered. The objects are as before, only out of reach.
		obs.unserved = true
		return obs, nil
	case err != nil:
		return obs, fmt.Errorf("listing storage versions: %w", err)
	}
	obs.storageVersions = make([]*apiserverinternalv1alpha1.StorageVersion, 0, len(list.Items))
	for i := range list.Items {
		obs.storageVersions = append(obs.storageVersions, &list.Items[i])
	}
	for _, serverID := range serverIDs(obs.storageVersions) {
		obs.leases[serverID], err = c.lease(ctx, serverID)
		if err != nil {
			// One unknown Lease decides the sync; reading on would only burden a server in trouble.
			break
		}
	}
	obs.now = c.clock.Now()
	return obs, err
}

// lease tells whether the Lease of a server exists. Without an error it is never unknown.
func (c *Controller) lease(ctx context.Context, serverID string) (presence, error) {
	cached, err := c.leaseCached(serverID)
	if err != nil {
		return unknown, err
	}
	if cached {
		return present, nil
	}

	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	_, err = c.client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, serverID, metav1.GetOptions{})
	switch {
	case err == nil:
		klog.FromContext(ctx).V(6).Info("Lease lives although it is not cached", "serverID", serverID)
		return presentUnwatched, nil
	case saysMissing(err, serverID):
		return absent, nil
	default:
		return unknown, fmt.Errorf("getting lease %q: %w", serverID, err)
	}
}

func (c *Controller) leaseCached(serverID string) (bool, error) {
	_, err := c.leases.Leases(metav1.NamespaceSystem).Get(serverID)
	switch {
	case err == nil:
		return true, nil
	case apierrors.IsNotFound(err):
		return false, nil
	default:
		return false, fmt.Errorf("getting cached lease %q: %w", serverID, err)
	}
}

// saysMissing is true only for the API server's own statement that this very Lease does not exist. A 404 can as well
// come from a proxy, or from a server that does not serve the group; both say nothing about the Lease.
func saysMissing(err error, serverID string) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) ||
		apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse) {
		return false
	}
	details := status.Status().Details
	return details != nil && details.Kind == leaseResource && details.Name == serverID
}
