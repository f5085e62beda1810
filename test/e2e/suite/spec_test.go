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

package suite

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func TestDisruptiveSpecsNeedControl(t *testing.T) {
	spec := Spec{
		Name: "disturbs", Title: "disturbs", Profile: ProfileHA, Controllers: []Controller{ControllerMigrator},
		Disruptive: true, Test: func(context.Context, *Case) {},
	}
	for _, test := range []struct {
		needs []Need
		right bool
	}{
		{nil, false},
		{[]Need{NeedStorageVersions}, false},
		{[]Need{NeedControl}, true},
		{[]Need{NeedStorageVersions, NeedServers}, true},
	} {
		spec.Needs = test.needs
		if err := CheckSpecs([]Spec{spec}); (err == nil) != test.right {
			t.Errorf("a disruptive spec with the needs %q: %v", test.needs, err)
		}
	}
}

// twoServers is a control over two API servers.
type twoServers struct{ Control }

func (twoServers) Servers(context.Context) ([]string, error) { return []string{"first", "second"}, nil }

func TestNeeds(t *testing.T) {
	poor := &Case{Kube: fake.NewClientset()}
	cluster := fake.NewClientset()
	cluster.Resources = []*metav1.APIResourceList{{GroupVersion: "internal.apiserver.k8s.io/v1alpha1"}}
	rich := &Case{Kube: cluster, Control: twoServers{}, Options: Options{Identity: "somebody", WebhookAddress: "::1"}}
	all := Spec{Needs: []Need{NeedControl, NeedServers, NeedIdentity, NeedWebhooks, NeedStorageVersions}}
	if need, is := all.unmet(t.Context(), rich); is {
		t.Errorf("the run has not %s", need)
	}
	for _, need := range append(all.Needs, NeedEtcd) {
		if poor.Has(t.Context(), need) {
			t.Errorf("a run without anything has %s", need)
		}
	}
}
