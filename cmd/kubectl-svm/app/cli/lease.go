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

package cli

import (
	"context"
	"errors"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// ManagerLease is the lease for which managers compete, unless their flags say otherwise, as NAMESPACE/NAME.
const ManagerLease = "kube-system/svm-controller-manager"

// ValidateLease returns an error if a flag does not name a lease.
func ValidateLease(key string) error {
	if namespace, name, err := cache.SplitMetaNamespaceKey(key); err != nil || namespace == "" || name == "" {
		return errors.New("--manager-lease must be NAMESPACE/NAME, for example " + ManagerLease)
	}
	return nil
}

// Lease reads a lease. It returns nil if there is none.
func (c *Clients) Lease(ctx context.Context, key string) (*coordinationv1.Lease, error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return nil, err
	}
	lease, err := c.Kube.CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return lease, nil
}
