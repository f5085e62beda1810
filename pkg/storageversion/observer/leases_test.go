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

func leaseOf(identity, holder string, renewed time.Time) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: identity, Labels: map[string]string{IdentityLabel: kubeAPIServer}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To(holder), LeaseDurationSeconds: ptr.To(int32(3600)),
			RenewTime: ptr.To(metav1.NewMicroTime(renewed)),
		},
	}
}

func list(leases ...*coordinationv1.Lease) delta[*coordinationv1.Lease] {
	return delta[*coordinationv1.Lease]{set: leases, listed: true}
}

func renewal(object *coordinationv1.Lease) delta[*coordinationv1.Lease] {
	return delta[*coordinationv1.Lease]{set: []*coordinationv1.Lease{object}}
}

// at adds to a Lease the address that its server advertises.
func at(host string, object *coordinationv1.Lease) *coordinationv1.Lease {
	object.Annotations = map[string]string{"kubernetes.io/peer-advertise-address": host + ":6443"}
	return object
}

// renewFor renews one Lease every ten seconds for some time.
func renewFor(l *serverLeases, d time.Duration, object *coordinationv1.Lease) {
	for range d / (10 * time.Second) {
		renewed := object.DeepCopy()
		renewed.Spec.RenewTime.Time = renewed.Spec.RenewTime.Add(10 * time.Second)
		l.apply(renewal(renewed), l.lastEvent.Add(10*time.Second))
		object = renewed
	}
}

func TestWhenAProcessLostItsLease(t *testing.T) {
	process := func(holder string) *coordinationv1.Lease { return leaseOf(holder[:1], holder, noon) }
	gone := delta[*coordinationv1.Lease]{gone: []string{"a"}}
	for name, test := range map[string]struct {
		then []delta[*coordinationv1.Lease]
		want time.Duration // after the first list
	}{
		"perhaps before the first list":  {},
		"not at a renewal":               {then: []delta[*coordinationv1.Lease]{renewal(process("a_1"))}},
		"not when another server starts": {then: []delta[*coordinationv1.Lease]{renewal(process("c_1"))}},
		"when somebody deletes it":       {then: []delta[*coordinationv1.Lease]{gone}, want: time.Second},
		"when somebody deletes it, also if the server puts it back": {
			then: []delta[*coordinationv1.Lease]{gone, renewal(process("a_1"))}, want: time.Second,
		},
		"when its successor takes it over": {
			then: []delta[*coordinationv1.Lease]{renewal(process("a_2"))}, want: time.Second,
		},
		"when a list does not have it": {
			then: []delta[*coordinationv1.Lease]{list(process("b_1"))}, want: time.Second,
		},
		"perhaps before any other list": {
			then: []delta[*coordinationv1.Lease]{list(process("a_1"), process("b_1"))}, want: time.Second,
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newServerLeases()
			first := list(process("a_1"), process("b_1"))
			for i, n := range append([]delta[*coordinationv1.Lease]{first}, test.then...) {
				l.apply(n, noon.Add(time.Duration(i)*time.Second))
			}
			if after := l.leaseLostAt.Sub(noon); after != test.want {
				t.Errorf("a process lost its Lease %v after the first list, want %v", after, test.want)
			}
		})
	}
}

func TestServersThatMayHaveBeenBack(t *testing.T) {
	process := func(holder string) *coordinationv1.Lease { return leaseOf(holder[:1], holder, noon) }
	living := []storageversion.Process{{Identity: "a", Incarnation: "a_1"}, {Identity: "d", Incarnation: "d_1"}}
	for name, test := range map[string]struct {
		listed []time.Duration // after the server left
		want   [][]storageversion.Process
	}{
		"a server that left a moment ago": {
			[]time.Duration{time.Minute}, [][]storageversion.Process{{living[0], {Identity: "c"}, living[1]}},
		},
		"a server that left a moment before a long silence": {
			[]time.Duration{time.Minute, time.Hour}, [][]storageversion.Process{{living[0], {Identity: "c"}, living[1]}},
		},
		"a server that left long ago": {[]time.Duration{historyKept + time.Minute, historyKept + 2*time.Minute}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			l := newServerLeases()
			l.apply(list(process("a_1"), process("c_1"), process("d_1")), noon)
			l.apply(list(process("a_1"), process("d_1")), noon.Add(time.Second))
			for _, after := range test.listed {
				l.apply(list(process("a_1"), process("d_1")), noon.Add(after))
			}
			if diff := cmp.Diff(test.want, l.mayHaveLived(l.leasesAt, nil, false)); diff != "" {
				t.Errorf("who may have been back (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhichProcessesLive(t *testing.T) {
	a := storageversion.Process{Identity: "a", Incarnation: "a_1"}
	b := storageversion.Process{Identity: "b", Incarnation: "b_1"}
	process := func(holder string, renewed time.Time) *coordinationv1.Lease {
		return leaseOf(holder[:1], holder, renewed)
	}
	eternal := process("b_1", noon.Add(-24*time.Hour))
	eternal.Spec.LeaseDurationSeconds = nil
	tests := []struct {
		name   string
		listed []*coordinationv1.Lease
		then   func(l *serverLeases)
		ready  []string
		want   []storageversion.Process
	}{
		{
			name:   "in order",
			listed: []*coordinationv1.Lease{process("b_1", noon), process("a_1", noon)},
			want:   []storageversion.Process{a, b},
		},
		{
			name:   "one whose Lease expired is gone",
			listed: []*coordinationv1.Lease{process("a_1", noon), process("b_1", noon.Add(-2*time.Hour))},
			want:   []storageversion.Process{a},
		},
		{
			name:   "one whose Lease has no duration stays",
			listed: []*coordinationv1.Lease{process("a_1", noon), eternal},
			want:   []storageversion.Process{a, b},
		},
		{
			name:   "one whose address is gone as well is gone after 90 seconds without a renewal",
			listed: []*coordinationv1.Lease{at("a", process("a_1", noon)), at("b", process("b_1", noon))},
			then:   func(l *serverLeases) { renewFor(l, 110*time.Second, at("a", process("a_1", noon))) },
			ready:  []string{"a:6443"},
			want:   []storageversion.Process{a},
		},
		{
			name:   "one that keeps its address lives, whatever keeps it from renewing its Lease",
			listed: []*coordinationv1.Lease{at("a", process("a_1", noon)), at("b", process("b_1", noon))},
			then:   func(l *serverLeases) { renewFor(l, 30*time.Minute, at("a", process("a_1", noon))) },
			ready:  []string{"a:6443", "b:6443"},
			want:   []storageversion.Process{a, b},
		},
		{
			name:   "addresses that no server advertises say nothing",
			listed: []*coordinationv1.Lease{at("a", process("a_1", noon)), at("b", process("b_1", noon))},
			then:   func(l *serverLeases) { renewFor(l, 30*time.Minute, at("a", process("a_1", noon))) },
			ready:  []string{"10.0.0.1:6443", "10.0.0.2:6443"},
			want:   []storageversion.Process{a, b},
		},
		{
			name:   "where Leases name no address, as many addresses as renewed Leases show that one is gone",
			listed: []*coordinationv1.Lease{process("a_1", noon), process("b_1", noon)},
			then:   func(l *serverLeases) { renewFor(l, 110*time.Second, process("a_1", noon)) },
			ready:  []string{"10.0.0.1:6443"},
			want:   []storageversion.Process{a},
		},
		{
			name:   "another server has taken the address, or shares it",
			listed: []*coordinationv1.Lease{at("a", process("b_1", noon))},
			then: func(l *serverLeases) {
				later := at("a", process("a_1", noon))
				later.CreationTimestamp.Time = noon.Add(time.Minute)
				renewFor(l, 110*time.Second, later)
			},
			ready: []string{"a:6443"},
			want:  []storageversion.Process{a, b},
		},
		{
			name:   "one that shares its address may only fail to renew its Lease",
			listed: []*coordinationv1.Lease{at("a", process("a_1", noon)), at("a", process("b_1", noon))},
			then:   func(l *serverLeases) { renewFor(l, 110*time.Second, at("a", process("a_1", noon))) },
			ready:  []string{"a:6443"},
			want:   []storageversion.Process{a, b},
		},
		{
			name:   "also when the server beside it has started again",
			listed: []*coordinationv1.Lease{at("a", process("a_1", noon)), at("a", process("b_1", noon))},
			then: func(l *serverLeases) {
				renewFor(l, 10*time.Second, at("a", process("a_1", noon)))
				renewFor(l, 10*time.Second, at("a", process("b_1", noon)))
				renewFor(l, 20*time.Second, at("a", process("a_1", noon.Add(10*time.Second))))
				later := at("a", process("a_2", noon.Add(time.Minute)))
				later.CreationTimestamp.Time = noon.Add(time.Minute)
				renewFor(l, 110*time.Second, later)
			},
			ready: []string{"a:6443"},
			want:  []storageversion.Process{{Identity: "a", Incarnation: "a_2"}, b},
		},
		{
			name:   "one whose Lease expired is gone, whatever its address",
			listed: []*coordinationv1.Lease{at("a", process("a_1", noon)), at("b", process("b_1", noon))},
			then:   func(l *serverLeases) { renewFor(l, 61*time.Minute, at("a", process("a_1", noon))) },
			ready:  []string{"a:6443", "b:6443"},
			want:   []storageversion.Process{a},
		},
		{
			name: "one whose host is two hours behind lives when it has renewed its Lease",
			listed: []*coordinationv1.Lease{
				at("a", process("a_1", noon)), at("b", process("b_1", noon.Add(-2*time.Hour)))},
			then: func(l *serverLeases) {
				renewFor(l, 10*time.Second, at("b", process("b_1", noon.Add(-2*time.Hour))))
				renewFor(l, 80*time.Second, at("a", process("a_1", noon)))
			},
			ready: []string{"a:6443"},
			want:  []storageversion.Process{a, b},
		},
		{
			name: "one whose host is two hours behind, and whose address is there, lives from the first list on",
			listed: []*coordinationv1.Lease{
				at("a", process("a_1", noon)), at("b", process("b_1", noon.Add(-2*time.Hour)))},
			ready: []string{"a:6443", "b:6443"},
			want:  []storageversion.Process{a, b},
		},
		{
			name: "one whose host is two hours ahead makes no other expire",
			listed: []*coordinationv1.Lease{
				at("a", process("a_1", noon)), at("b", process("b_1", noon))},
			then: func(l *serverLeases) {
				renewFor(l, 10*time.Second, at("a", process("a_1", noon.Add(2*time.Hour))))
			},
			ready: []string{"a:6443"},
			want:  []storageversion.Process{a, b},
		},
		{
			name:   "nobody is gone because the watch was cut off for two hours",
			listed: []*coordinationv1.Lease{at("a", process("a_1", noon)), at("b", process("b_1", noon))},
			then: func(l *serverLeases) {
				l.apply(renewal(at("a", process("a_1", noon.Add(2*time.Hour)))), noon.Add(2*time.Hour))
			},
			ready: []string{"a:6443"},
			want:  []storageversion.Process{a, b},
		},
		{
			name:   "a new list shows again what was not renewed since",
			listed: []*coordinationv1.Lease{at("a", process("a_1", noon)), at("b", process("b_1", noon))},
			then: func(l *serverLeases) {
				renewFor(l, 80*time.Second, at("a", process("a_1", noon)))
				l.apply(list(at("a", process("a_1", noon)), at("b", process("b_1", noon))), l.lastEvent)
				renewFor(l, 20*time.Second, at("a", process("a_1", noon.Add(time.Minute))))
			},
			ready: []string{"a:6443"},
			want:  []storageversion.Process{a},
		},
		{
			name:   "a list leaves nothing of what was known before",
			listed: []*coordinationv1.Lease{process("a_1", noon)},
			then:   func(l *serverLeases) { l.apply(list(process("b_1", noon)), noon) },
			want:   []storageversion.Process{b},
		},
		{
			name:   "another process under the same identity",
			listed: []*coordinationv1.Lease{process("a_0", noon)},
			then:   func(l *serverLeases) { l.apply(renewal(process("a_1", noon)), noon) },
			want:   []storageversion.Process{a},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := newServerLeases()
			l.apply(list(test.listed...), noon)
			if test.then != nil {
				test.then(&l)
			}
			living, _ := l.processes(test.ready)
			if diff := cmp.Diff(test.want, living); diff != "" {
				t.Errorf("living (-want +got):\n%s", diff)
			}
		})
	}
}

func TestYoungLease(t *testing.T) {
	hour := noon.Add(time.Hour)
	for name, test := range map[string]struct {
		created, renewed, now time.Time
		want                  bool
	}{
		"of a minute ago":                         {noon.Add(-time.Minute), noon, noon, true},
		"of an hour ago":                          {noon.Add(-time.Hour), noon, noon, false},
		"where the clock of this host is ahead":   {noon.Add(-time.Minute), noon, hour, true},
		"where the clock of this host is behind":  {noon.Add(-time.Hour), noon, noon.Add(-3 * time.Hour), true},
		"of a server whose clock was set forward": {noon.Add(-time.Minute), hour, noon, true},
	} {
		t.Run(name, func(t *testing.T) {
			if got := (lease{created: test.created, renewed: test.renewed}).young(test.now); got != test.want {
				t.Errorf("young is %v", got)
			}
		})
	}
}

// TestServerThatThawsInAGap has a frozen server renew its Lease while the watch is broken, and freeze again. It may
// have written something.
func TestServerThatThawsInAGap(t *testing.T) {
	l, ready := newServerLeases(), []string{"a:6443"}
	renewed := func(identity string, after time.Duration) *coordinationv1.Lease {
		return at(identity, leaseOf(identity, identity+"_1", noon.Add(after)))
	}
	l.apply(list(renewed("a", 0), renewed("x", 0)), noon)
	renewFor(&l, 2*time.Minute, renewed("a", 0))
	was := l.leasesAt
	l.apply(list(renewed("a", 12*time.Minute), renewed("x", 0)), noon.Add(12*time.Minute))
	if unseen := l.mayHaveLived(was, ready, true); len(unseen) > 0 {
		t.Errorf("it stayed frozen, and %v are said to have lived", unseen)
	}
	l.apply(list(renewed("a", 12*time.Minute), renewed("x", 6*time.Minute)), noon.Add(12*time.Minute))
	if unseen := l.mayHaveLived(was, ready, true); len(unseen) != 1 || len(unseen[0]) != 2 {
		t.Errorf("%v are said to have lived", unseen)
	}
}
