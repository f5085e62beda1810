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

package observer

import (
	"context"
	"maps"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

const (
	// endpointsSelector selects the EndpointSlices in which servers list their own addresses. Whoever may edit the Service
	// can give it a selector. Then a controller adds an EndpointSlice of Pods.
	endpointsSelector = discoveryv1.LabelServiceName + "=kubernetes," +
		discoveryv1.LabelManagedBy + "!=endpointslice-controller.k8s.io"
	endpointsPort = "https"
)

// slicesPath is where an API server serves the EndpointSlices of a namespace.
func slicesPath(namespace string) string {
	return "/apis/discovery.k8s.io/v1/namespaces/" + namespace + "/endpointslices"
}

// followAddresses keeps the addresses of servers that are ready.
func (s *sharedLedger) followAddresses(ctx context.Context, from *watchedList) {
	bySlice := map[string][]string{}
	follow(ctx, from, func(d delta[*discoveryv1.EndpointSlice]) {
		for _, slice := range d.set {
			bySlice[slice.Name] = addressesIn(slice)
		}
		for _, name := range d.gone {
			delete(bySlice, name)
		}
		ready := slices.Concat(slices.Collect(maps.Values(bySlice))...)
		slices.Sort(ready)
		ready = slices.Compact(ready)
		s.mu.Lock()
		changed := !slices.Equal(s.ready, ready)
		s.ready = ready
		s.mu.Unlock()
		if changed {
			klog.FromContext(ctx).Info("Addresses of API servers changed", "addresses", ready)
			s.serversChanged.raise()
		}
	}, func(error) {})
}

// readyAddresses returns the addresses of servers that are ready, in order.
func (s *sharedLedger) readyAddresses() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ready
}

// addressesIn returns the addresses of servers that are ready, each with the port.
func addressesIn(slice *discoveryv1.EndpointSlice) []string {
	port := int32(0)
	for _, p := range slice.Ports {
		tcp := ptr.Deref(p.Protocol, corev1.ProtocolTCP) == corev1.ProtocolTCP
		if p.Port != nil && tcp && (port == 0 || ptr.Deref(p.Name, "") == endpointsPort) {
			port = *p.Port
		}
	}
	if port == 0 {
		return nil
	}
	var addresses []string
	for _, endpoint := range slice.Endpoints {
		if ptr.Deref(endpoint.Conditions.Ready, true) {
			for _, address := range endpoint.Addresses {
				addresses = append(addresses, net.JoinHostPort(address, strconv.Itoa(int(port))))
			}
		}
	}
	return addresses
}
