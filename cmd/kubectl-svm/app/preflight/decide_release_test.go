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

package preflight

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// TestBuiltInTarget is about resources of kube-apiserver, which must not be deleted for the sake of an upgrade.
func TestBuiltInTarget(t *testing.T) {
	const (
		definitions = "customresourcedefinitions.apiextensions.k8s.io"
		cidrs       = "servicecidrs.networking.k8s.io"
		policies    = "validatingadmissionpolicies.admissionregistration.k8s.io"
		candidates  = "leasecandidates.coordination.k8s.io"
		bundles     = "clustertrustbundles.certificates.k8s.io"
		groups      = "podgroups.scheduling.k8s.io"
	)
	notServed := condition(migrationv1alpha1.StorageStateAgreed, metav1.ConditionFalse, "NotServed")
	bundle := state("ClusterTrustBundle", bundles, "certificates.k8s.io/v1beta1")
	unknown := state("ClusterTrustBundle", bundles, migrationv1alpha1.Unknown, "certificates.k8s.io/v1beta1")
	definition := state("CustomResourceDefinition", definitions, "apiextensions.k8s.io/v1beta1")
	tests := []struct {
		name   string
		state  migrationv1alpha1.StorageState
		target TargetServer
		want   []string
	}{
		{"not served for long, and read all the same", definition, releaseTarget(37), nil},
		{"the same, in a release to come", definition, releaseTarget(38), []string{"ERROR ReleaseUnknown"}},
		{"the same, before the data", definition, releaseTarget(29), []string{"ERROR ReleaseUnknown"}},
		{"stored in the group that the resource had", state("Ingress", "ingresses.networking.k8s.io", "extensions/v1beta1"),
			releaseTarget(37), nil},
		{"not there yet", state("ServiceCIDR", cidrs, "networking.k8s.io/v1"), releaseTarget(29),
			[]string{"ERROR ReleaseUnknown", "ERROR EncodingUnreadable " + cidrs}},
		{"not there yet either", state("ValidatingAdmissionPolicy", policies, "admissionregistration.k8s.io/v1"),
			releaseTarget(29), []string{"ERROR ReleaseUnknown", "ERROR EncodingUnreadable " + policies}},
		{"a release to come may serve a version that nobody knows", state("LeaseCandidate", candidates,
			"coordination.k8s.io/v1beta1"), releaseTarget(39), []string{
			"ERROR ReleaseUnknown", "WARNING EncodingNotServed " + candidates}},
		{"served on request, after a roll back", bundle, releaseTarget(36),
			[]string{"WARNING NotServedByDefault " + bundles}},
		{"the other server serves it on request", bundle, serving("certificates.k8s.io/v1alpha1", "ClusterTrustBundle"), nil},
		{"the other server does not serve it", bundle, TargetServer{Release: 36, Serves: map[string]bool{}},
			[]string{"WARNING NotServedByDefault " + bundles}},
		{"served by default", bundle, releaseTarget(37), nil},
		{"served again, after a roll back", with(bundle, notServed), releaseTarget(37), nil},
		{"served on request still", with(bundle, notServed), releaseTarget(36),
			[]string{"ERROR NotServed " + bundles, "WARNING NotServedByDefault " + bundles}},
		{"served again, and not read", with(state("PodGroup", groups, "scheduling.k8s.io/v1alpha2"), notServed),
			releaseTarget(34), []string{"ERROR EncodingUnreadable " + groups, "ERROR NotServed " + groups}},
		{"served again, and nobody knows what is stored", with(unknown, notServed), releaseTarget(37),
			[]string{"ERROR EncodingsUnknown " + bundles, "ERROR NotServed " + bundles}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			in := Snapshot{Now: now, Manager: running, States: []migrationv1alpha1.StorageState{test.state}}
			found := decideTarget(in, test.target)
			if diff := cmp.Diff(test.want, brief(found)); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
			for _, f := range found {
				if strings.Contains(strings.ToLower(f.Message), "delete the") {
					t.Errorf("dangerous advice: %s", f.Message)
				}
			}
		})
	}
}
