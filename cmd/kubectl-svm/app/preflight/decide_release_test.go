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

	"sigs.k8s.io/svm-controller-manager/pkg/releases"
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
		evictions   = "evictions.lifecycle.k8s.io"
	)
	notServed := condition(migrationv1alpha1.StorageStateAgreed, metav1.ConditionFalse, "NotServed")
	bundle := state("ClusterTrustBundle", bundles, "certificates.k8s.io/v1beta1")
	unknown := state("ClusterTrustBundle", bundles, migrationv1alpha1.Unknown, "certificates.k8s.io/v1beta1")
	unnamed := state("ClusterTrustBundle", bundles, "certificates.k8s.io/v1beta1")
	unnamed.Status.PersistedEncodingVersions = nil // Another controller wrote it.
	definition := state("CustomResourceDefinition", definitions, "apiextensions.k8s.io/v1beta1")
	nextServer := TargetServer{Release: 38, Serves: map[string]bool{}}
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
		{"a hash alone", unnamed, releaseTarget(37), []string{"ERROR EncodingUnreadable " + bundles}},
		{"served again, after a roll back", with(bundle, notServed), releaseTarget(37), nil},
		{"served on request still", with(bundle, notServed), releaseTarget(36),
			[]string{"ERROR NotServed " + bundles, "WARNING NotServedByDefault " + bundles}},
		{"served again, and not read", with(state("PodGroup", groups, "scheduling.k8s.io/v1alpha2"), notServed),
			releaseTarget(37), []string{"ERROR EncodingUnreadable " + groups, "ERROR NotServed " + groups}},
		{"the resource is not there yet", state("Eviction", evictions, "lifecycle.k8s.io/v1alpha1"), releaseTarget(36),
			[]string{"WARNING ResourceGone " + evictions}},
		{"nor at the other server", state("Eviction", evictions, "lifecycle.k8s.io/v1alpha1"),
			TargetServer{Release: 36, Serves: map[string]bool{}}, []string{"WARNING ResourceGone " + evictions}},
		{"the resource is there at another version", state("PodGroup", groups, "scheduling.k8s.io/v1beta1"),
			releaseTarget(36), []string{"ERROR EncodingUnreadable " + groups}},
		{"the other server is of a release to come, and does not serve what is stored", state("Deployment",
			"deployments.apps", "apps/v1"), nextServer, []string{
			"ERROR EncodingUnreadable deployments.apps", "WARNING ReleaseUnknown"}},
		{"the same, and migrated it would be well", state("Deployment", "deployments.apps", "apps/v1beta1", "apps/v2"),
			TargetServer{Release: 38, Serves: serving("apps/v2", "Deployment").Serves}, []string{
				"ERROR EncodingUnreadable deployments.apps", "WARNING ReleaseUnknown"}},
		{"the other server is older than the data", state("Deployment", "deployments.apps", "apps/v1"),
			TargetServer{Release: 33, Serves: map[string]bool{}}, []string{
				"ERROR EncodingUnreadable deployments.apps", "WARNING ReleaseUnknown"}},
		{"the other server is of a release to come, and serves it", state("Deployment", "deployments.apps", "apps/v1"),
			TargetServer{Release: 38, Serves: serving("apps/v1", "Deployment").Serves}, []string{"WARNING ReleaseUnknown"}},
		{"every server writes it, and none has served it for long", definition, nextServer,
			[]string{"WARNING ReleaseUnknown"}},
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

// TestUnreadable wants status and preflight to agree about what nobody knows.
func TestUnreadable(t *testing.T) {
	const groups = "podgroups.scheduling.k8s.io"
	widget := state("Widget", "widgets.example.com", "example.com/v1")
	unproven := *widget.DeepCopy()
	unproven.Status.Evidence = nil
	vendors := ofKubeAPIServerItself(state("Foo", "foos.new.k8s.io", "new.k8s.io/v1"))
	for _, test := range []struct {
		name    string
		state   migrationv1alpha1.StorageState
		release releases.Minor
		found   int
		known   bool
	}{
		{"built in, and read", state("Deployment", "deployments.apps", "apps/v1"), 37, 0, true},
		{"built in, and not read", state("PodGroup", groups, "scheduling.k8s.io/v1alpha2"), 37, 1, true},
		{"a release to come", state("Deployment", "deployments.apps", "apps/v1"), 99, 0, false},
		{"a custom resource", widget, 37, 0, true},
		{"a custom resource and a release to come", widget, 99, 0, true},
		{"a group of kube-apiserver that nobody knows", vendors, 37, 0, false},
		{"evidence of a later release", shownBy("Later", widget), 37, 0, false},
		{"no evidence", unproven, 37, 0, false},
		{"an aggregated server", shownBy(migrationv1alpha1.EvidenceFromAggregatedDiscovery, widget), 37, 0, true},
	} {
		found, known := Unreadable(&test.state, test.release)
		if len(found) != test.found || known != test.known {
			t.Errorf("%s: found %v, and that is known: %t", test.name, found, known)
		}
	}
}
