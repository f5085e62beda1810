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
	// endpointsSelector selects the EndpointSlices in which servers list their own addresses.
	endpointsSelector = discoveryv1.LabelServiceName + "=kubernetes"
	endpointsPort     = "https"
)

// addressWatcher knows at which addresses servers answer.
type addressWatcher struct {
	*sharedLedger
	source *source

	ready []string // the addresses of servers that are ready, in order; guarded by sharedLedger.mu
}

func (w *addressWatcher) run(ctx context.Context) {
	bySlice := map[string][]string{}
	follow(ctx, w.source, func(d delta[*discoveryv1.EndpointSlice]) {
		for _, slice := range d.set {
			bySlice[slice.Name] = addressesIn(slice)
		}
		for _, name := range d.gone {
			delete(bySlice, name)
		}
		ready := slices.Concat(slices.Collect(maps.Values(bySlice))...)
		slices.Sort(ready)
		ready = slices.Compact(ready)
		w.mu.Lock()
		changed := !slices.Equal(w.ready, ready)
		w.ready = ready
		w.mu.Unlock()
		if changed {
			klog.FromContext(ctx).Info("Addresses of API servers changed", "addresses", ready)
			w.serversChanged.raise()
		}
	}, nil)
}

// readyAddresses returns the addresses of servers that are ready, in order.
func (w *addressWatcher) readyAddresses() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ready
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
