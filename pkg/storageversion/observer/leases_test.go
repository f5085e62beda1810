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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

func leaseOf(identity, holder, component string, renewed time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: identity, Labels: map[string]string{identityLabel: component}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To(holder), LeaseDurationSeconds: ptr.To(int32(3600)),
			RenewTime: ptr.To(metav1.NewMicroTime(renewed)),
		},
	}
}

func list(leases ...*coordinationv1.Lease) news[*coordinationv1.Lease] {
	return news[*coordinationv1.Lease]{set: leases, listed: true}
}

func TestWhichProcessesLive(t *testing.T) {
	a := storageversion.Server{Identity: "a", Incarnation: "a_1"}
	b := storageversion.Server{Identity: "b", Incarnation: "b_1"}
	process := func(holder string, renewed time.Time) *coordinationv1.Lease {
		return leaseOf(holder[:1], holder, kubeAPIServer, renewed)
	}
	eternal := process("b_1", noon.Add(-24*time.Hour))
	eternal.Spec.LeaseDurationSeconds = nil
	tests := []struct {
		name       string
		listed     []*coordinationv1.Lease
		then       func(l *serverLeases)
		want       []storageversion.Server
		wantOthers map[string]string
	}{
		{
			name: "in order, apart from servers of another kind",
			listed: []*coordinationv1.Lease{
				process("b_1", noon), leaseOf("s", "s_1", "sample", noon), process("a_1", noon)},
			want:       []storageversion.Server{a, b},
			wantOthers: map[string]string{"s": "s_1"},
		},
		{
			name:   "one whose Lease expired is gone",
			listed: []*coordinationv1.Lease{process("a_1", noon), process("b_1", noon.Add(-2*time.Hour))},
			want:   []storageversion.Server{a},
		},
		{
			name:   "one whose Lease has no duration stays",
			listed: []*coordinationv1.Lease{process("a_1", noon), eternal},
			want:   []storageversion.Server{a, b},
		},
		{
			name:   "one goes when another is renewed later than it should have been",
			listed: []*coordinationv1.Lease{process("a_1", noon), process("b_1", noon)},
			then:   func(l *serverLeases) { l.set(process("a_1", noon.Add(61*time.Minute))) },
			want:   []storageversion.Server{a},
		},
		{
			name:   "nobody goes because old news come late",
			listed: []*coordinationv1.Lease{process("a_1", noon), process("b_1", noon)},
			// The watch was cut off for two hours, and goes on where it ended.
			then: func(l *serverLeases) { l.set(process("a_1", noon.Add(10*time.Second))) },
			want: []storageversion.Server{a, b},
		},
		{
			name:   "the only one goes when the API server says that there is no other news",
			listed: []*coordinationv1.Lease{process("a_1", noon)},
			then:   func(l *serverLeases) { l.hear(news[*coordinationv1.Lease]{}, noon.Add(61*time.Minute)) },
		},
		{
			name:   "a list leaves nothing of what was known before",
			listed: []*coordinationv1.Lease{process("a_1", noon)},
			then:   func(l *serverLeases) { l.hear(list(process("b_1", noon)), noon) },
			want:   []storageversion.Server{b},
		},
		{
			name:   "another process under the same identity",
			listed: []*coordinationv1.Lease{process("a_0", noon)},
			then:   func(l *serverLeases) { l.set(process("a_1", noon)) },
			want:   []storageversion.Server{a},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := serverLeases{lastHeld: map[string]time.Time{}}
			l.hear(list(test.listed...), noon)
			if test.then != nil {
				test.then(&l)
			}
			if test.wantOthers == nil {
				test.wantOthers = map[string]string{}
			}
			living, others := l.living()
			if diff := cmp.Diff(test.want, living); diff != "" {
				t.Errorf("living (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.wantOthers, others); diff != "" {
				t.Errorf("others (-want +got):\n%s", diff)
			}
		})
	}
}
