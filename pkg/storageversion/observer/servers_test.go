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
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

var noon = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)

func leaseOf(identity, holder, component string, renewed time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: identity, Labels: map[string]string{identityLabel: component}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To(holder), LeaseDurationSeconds: ptr.To(int32(3600)), RenewTime: ptr.To(metav1.NewMicroTime(renewed)),
		},
	}
}

func TestWhichProcessesLive(t *testing.T) {
	a, b := storageversion.Server{Identity: "a", Incarnation: "a_1"}, storageversion.Server{Identity: "b", Incarnation: "b_1"}
	eternal := leaseOf("b", "b_1", kubeAPIServer, noon.Add(-24*time.Hour))
	eternal.Spec.LeaseDurationSeconds = nil
	tests := []struct {
		name       string
		listed     []*coordinationv1.Lease
		at         time.Time
		then       func(p *processes)
		want       []storageversion.Server
		wantOthers map[string]string
	}{
		{
			name:       "in order, apart from servers of another kind",
			listed:     []*coordinationv1.Lease{leaseOf("b", "b_1", kubeAPIServer, noon), leaseOf("s", "s_1", "sample", noon), leaseOf("a", "a_1", kubeAPIServer, noon)},
			at:         noon,
			want:       []storageversion.Server{a, b},
			wantOthers: map[string]string{"s": "s_1"},
		},
		{
			name:   "one whose Lease expired is gone",
			listed: []*coordinationv1.Lease{leaseOf("a", "a_1", kubeAPIServer, noon), leaseOf("b", "b_1", kubeAPIServer, noon.Add(-2*time.Hour))},
			at:     noon,
			want:   []storageversion.Server{a},
		},
		{
			name:   "one whose Lease has no duration stays",
			listed: []*coordinationv1.Lease{leaseOf("a", "a_1", kubeAPIServer, noon), eternal},
			at:     noon,
			want:   []storageversion.Server{a, b},
		},
		{
			name:   "one goes when another is renewed later than it should have been",
			listed: []*coordinationv1.Lease{leaseOf("a", "a_1", kubeAPIServer, noon), leaseOf("b", "b_1", kubeAPIServer, noon)},
			at:     noon,
			then:   func(p *processes) { p.set(leaseOf("a", "a_1", kubeAPIServer, noon.Add(61*time.Minute))) },
			want:   []storageversion.Server{a},
		},
		{
			name:   "nobody goes because old news come late",
			listed: []*coordinationv1.Lease{leaseOf("a", "a_1", kubeAPIServer, noon), leaseOf("b", "b_1", kubeAPIServer, noon)},
			at:     noon,
			// The watch was cut off for two hours, and goes on where it ended.
			then: func(p *processes) { p.set(leaseOf("a", "a_1", kubeAPIServer, noon.Add(10*time.Second))) },
			want: []storageversion.Server{a, b},
		},
		{
			name:   "the only one goes when the API server says that there is no other news",
			listed: []*coordinationv1.Lease{leaseOf("a", "a_1", kubeAPIServer, noon)},
			at:     noon,
			then:   func(p *processes) { p.reached(noon.Add(61 * time.Minute)) },
		},
		{
			name:   "a list leaves nothing of what was known before",
			listed: []*coordinationv1.Lease{leaseOf("a", "a_1", kubeAPIServer, noon)},
			at:     noon,
			then:   func(p *processes) { p.replace([]*coordinationv1.Lease{leaseOf("b", "b_1", kubeAPIServer, noon)}, noon) },
			want:   []storageversion.Server{b},
		},
		{
			name:   "another process under the same identity",
			listed: []*coordinationv1.Lease{leaseOf("a", "a_0", kubeAPIServer, noon)},
			at:     noon,
			then:   func(p *processes) { p.set(leaseOf("a", "a_1", kubeAPIServer, noon)) },
			want:   []storageversion.Server{a},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := &processes{leases: map[string]lease{}}
			p.replace(test.listed, test.at)
			if test.then != nil {
				test.then(p)
			}
			if test.wantOthers == nil {
				test.wantOthers = map[string]string{}
			}
			living, others := p.living()
			if diff := cmp.Diff(test.want, living); diff != "" {
				t.Errorf("living (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.wantOthers, others); diff != "" {
				t.Errorf("others (-want +got):\n%s", diff)
			}
		})
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
				Ports:     []discoveryv1.EndpointPort{port("quic", 1, corev1.ProtocolUDP), port("konnectivity", 8132, corev1.ProtocolTCP), https},
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
