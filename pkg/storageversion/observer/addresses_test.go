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
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
)

// TestEndpointSlicesOfServers wants those that servers or a mirror of their Endpoints have made, and not those that a
// selector of the Service has made.
func TestEndpointSlicesOfServers(t *testing.T) {
	selector, err := labels.Parse(endpointsSelector)
	if err != nil {
		t.Fatal(err)
	}
	for by, want := range map[string]bool{
		"": true, "endpointslicemirroring-controller.k8s.io": true, "endpointslice-controller.k8s.io": false,
	} {
		slice := labels.Set{discoveryv1.LabelServiceName: "kubernetes"}
		if by != "" {
			slice[discoveryv1.LabelManagedBy] = by
		}
		if selector.Matches(slice) != want {
			t.Errorf("made by %q: want %t", by, want)
		}
	}
}

func TestAddressesInEndpointSlices(t *testing.T) {
	endpoint := func(ready *bool, addresses ...string) discoveryv1.Endpoint {
		return discoveryv1.Endpoint{Addresses: addresses, Conditions: discoveryv1.EndpointConditions{Ready: ready}}
	}
	port := func(name string, number int32, protocol corev1.Protocol) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: &name, Port: &number, Protocol: &protocol}
	}
	https := port("https", 6443, corev1.ProtocolTCP)
	tests := []struct {
		name  string
		slice discoveryv1.EndpointSlice
		want  []string
	}{
		{
			name: "those that are ready, or say nothing of it",
			slice: discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{https}, Endpoints: []discoveryv1.Endpoint{
				endpoint(ptr.To(true), "10.0.0.1"), endpoint(ptr.To(false), "10.0.0.2"), endpoint(nil, "fd00::3")}},
			want: []string{"10.0.0.1:6443", "[fd00::3]:6443"},
		},
		{
			name: "the port of the API among others",
			slice: discoveryv1.EndpointSlice{
				Ports: []discoveryv1.EndpointPort{
					port("quic", 1, corev1.ProtocolUDP), port("konnectivity", 8132, corev1.ProtocolTCP), https},
				Endpoints: []discoveryv1.Endpoint{endpoint(nil, "10.0.0.1")}},
			want: []string{"10.0.0.1:6443"},
		},
		{
			name: "a port without a name",
			slice: discoveryv1.EndpointSlice{Ports: []discoveryv1.EndpointPort{{Port: ptr.To(int32(443))}},
				Endpoints: []discoveryv1.Endpoint{endpoint(nil, "10.0.0.1")}},
			want: []string{"10.0.0.1:443"},
		},
		{name: "no port", slice: discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{endpoint(nil, "10.0.0.1")}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, addressesIn(&test.slice)); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
		})
	}
}
