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

package run

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/fence"
)

// The command does not run if a manager migrates, or if clocks that differ leave that open.
func TestCheckManager(t *testing.T) {
	now := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		name    string
		renewed time.Time
		beside  bool
		refused bool
	}{
		{"a manager leads", now, false, true},
		{"the last one is gone", now.Add(-time.Hour), false, false},
		{"clocks differ", now.Add(time.Hour), false, true},
		{"clocks differ, and a person takes the risk", now.Add(time.Hour), true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			lease := &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: metav1.NamespaceSystem, Name: "manager", Labels: map[string]string{fence.Label: "Standing"},
				},
				Spec: coordinationv1.LeaseSpec{
					HolderIdentity: ptr.To("cp-1"), RenewTime: &metav1.MicroTime{Time: test.renewed},
				},
			}
			o := &Options{BesideManager: test.beside}
			o.Env, o.Clients = &cli.Env{Clock: clocktesting.NewFakeClock(now)}, &cli.Clients{Kube: fake.NewClientset(lease)}
			o.ManagerLease.Namespace, o.ManagerLease.Name = lease.Namespace, lease.Name
			if err := o.checkManager(t.Context()); (err != nil) != test.refused {
				t.Errorf("got the error %v, want one: %t", err, test.refused)
			}
		})
	}
}
