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

package releases

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestSupportOf(t *testing.T) {
	tests := []struct {
		name, apiVersion, kind string
		release                Minor
		want                   Support
	}{
		{"a stable version", "apps/v1", "Deployment", 37, Support{Reads: Yes, Serves: Yes}},
		{"read, and not served any more", "apps/v1beta1", "Deployment", 37, Support{Yes, No, 16}},
		{"in the sources up to 1.35", "autoscaling/v2beta2", "HorizontalPodAutoscaler", 35, Support{Yes, No, 26}},
		{"gone from the sources", "autoscaling/v2beta2", "HorizontalPodAutoscaler", 36, Support{No, No, 26}},
		{"gone for ever", "autoscaling/v2beta2", "HorizontalPodAutoscaler", 99, Support{No, No, 26}},
		{"not yet there", "storagemigration.k8s.io/v1", "StorageVersionMigration", 36, Support{Reads: No, Serves: No}},
		{"not yet there, before the data", "storagemigration.k8s.io/v1", "StorageVersionMigration", 20,
			Support{Reads: No, Serves: No}},
		{"long there, before the data", "apps/v1", "Deployment", 20, Support{Reads: NotKnown, Serves: NotKnown}},
		{"a release to come", "apps/v1", "Deployment", 99, Support{Reads: NotKnown, Serves: NotKnown}},
		{"to be removed in a release to come", "admissionregistration.k8s.io/v1alpha1", "MutatingAdmissionPolicy", 38,
			Support{NotKnown, No, 38}},
		{"never heard of", "apps/v7", "Deployment", 37, Support{Reads: No, Serves: No}},
		{"never heard of, in a release to come", "apps/v7", "Deployment", 99, Support{Reads: NotKnown, Serves: NotKnown}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := SupportOf(schema.FromAPIVersionAndKind(test.apiVersion, test.kind), test.release); got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestPrecedes(t *testing.T) {
	for _, test := range []struct {
		group, kind string
		release     Minor
		want        bool
	}{
		{"lifecycle.k8s.io", "Eviction", 36, true},
		{"lifecycle.k8s.io", "Eviction", 37, false},
		{"lifecycle.k8s.io", "Eviction", 33, false}, // There are no data of 1.33.
		{"scheduling.k8s.io", "Workload", 34, true},
		{"scheduling.k8s.io", "Workload", 36, false},
		{"scheduling.k8s.io", "Workload", 99, false},
		{"networking.k8s.io", "ServiceCIDR", 29, false}, // It had v1alpha1, which is not in the data.
	} {
		if got := Precedes(test.release, schema.GroupKind{Group: test.group, Kind: test.kind}); got != test.want {
			t.Errorf("%s precedes %s.%s: %t", test.release, test.kind, test.group, got)
		}
	}
}

func TestByDefault(t *testing.T) {
	for version, want := range map[string]bool{"v1": true, "v2": true, "v1beta1": false, "v1alpha3": false} {
		if got := ByDefault(version); got != want {
			t.Errorf("%s is served by default: %t", version, got)
		}
	}
}

func TestParseMinor(t *testing.T) {
	for _, release := range []string{"1.38", "v1.38", "1.38.2", "v1.38.0-alpha.1", "1.38+"} {
		if got, err := ParseMinor(release); err != nil || got != 38 {
			t.Errorf("%s is read as %v, %v", release, got, err)
		}
	}
	for _, release := range []string{"", "38", "2.0", "1.x", "latest"} {
		if got, err := ParseMinor(release); err == nil {
			t.Errorf("%q is read as %v", release, got)
		}
	}
}
