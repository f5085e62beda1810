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
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/fence"
)

// The command does not run if a manager migrates, or if clocks that differ leave that open.
func TestCheckManager(t *testing.T) {
	for _, test := range []struct {
		name    string
		renewed time.Duration // by the clock of the leader
		renews  bool          // whether it goes on
		beside  bool
		refused string
	}{
		{"a manager leads", 0, true, false, "a manager migrates by itself: The manager cp-1 leads."},
		{"the last one is gone", -time.Hour, false, false, ""},
		{"clocks differ", time.Hour, true, false, "cp-1 renewed the lease kube-system/manager 60m in the future"},
		{"clocks differ, and a person takes the risk", time.Hour, true, true, ""},
		{"the clock of the leader is behind", -time.Hour, true, false,
			"cp-1 renews the lease kube-system/manager, but with a time that is 60m old, so clocks differ: set the clocks"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lease := &coordinationv1.Lease{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: metav1.NamespaceSystem, Name: "manager", Labels: map[string]string{fence.Label: "Standing"},
					},
					Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("cp-1")},
				}
				kube := fake.NewClientset()
				kube.PrependReactor("get", "leases", func(clienttesting.Action) (bool, runtime.Object, error) {
					if test.renews || lease.Spec.RenewTime == nil {
						lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now().Add(test.renewed)}
					}
					return true, lease.DeepCopy(), nil
				})
				o := &Options{BesideManager: test.beside}
				o.Env, o.Clients = &cli.Env{Clock: clock.RealClock{}}, &cli.Clients{Kube: kube}
				o.ManagerLease.Namespace, o.ManagerLease.Name = lease.Namespace, lease.Name
				err := o.checkManager(t.Context())
				if (err != nil) != (test.refused != "") || err != nil && !strings.Contains(err.Error(), test.refused) {
					t.Errorf("got the error %v, want %q", err, test.refused)
				}
			})
		})
	}
}
