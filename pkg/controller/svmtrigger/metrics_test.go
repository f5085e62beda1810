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

package svmtrigger

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/metrics/legacyregistry"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

func TestMetrics(t *testing.T) {
	f := newFixture(t)
	one, two, three, unknown, empty := stateOf(widgets, "1"), stateOf(gadgets, "2"),
		stateOf(schema.GroupResource{Resource: "a"}, "3"),
		stateOf(schema.GroupResource{Resource: "b"}, "4"), stateOf(schema.GroupResource{Resource: "c"}, "5")
	one.Status.PersistedStorageVersionHashes = []string{"1="}
	two.Status.PersistedStorageVersionHashes = []string{"1=", "2="}
	three.Status.PersistedStorageVersionHashes = []string{"1=", "2=", "3=", "4="}
	unknown.Status.PersistedStorageVersionHashes = []string{"1=", migrationv1alpha1.Unknown}
	one.Status.Conditions = []metav1.Condition{{Type: migrationv1alpha1.StorageStateAgreed, Status: metav1.ConditionTrue,
		Reason: migrationv1alpha1.StateReasonServersAgree}}
	two.Status.Conditions = []metav1.Condition{{Type: migrationv1alpha1.StorageStateAgreed, Status: metav1.ConditionFalse,
		Reason: migrationv1alpha1.StateReasonServersDisagree},
		{Type: migrationv1alpha1.StorageStateMigrated, Status: metav1.ConditionFalse,
			Reason: migrationv1alpha1.StateReasonAwaitingAgreement}}
	f.cache(t, one, two, three, unknown, empty)
	f.observations.looks = map[migrationv1alpha1.EvidenceSource]time.Time{
		migrationv1alpha1.EvidenceFromServerDiscovery: start.Add(-time.Minute),
	}
	if got := shownGauges(t); len(got) > 0 {
		t.Errorf("nothing runs, and yet there is %v", got)
	}
	gauges.Show(f.Controller)
	want := map[string]float64{
		"storage_states 1":                               1,
		"storage_states 2":                               1,
		"storage_states 3+":                              1,
		"storage_states unknown":                         2,
		"resources_not_agreed ServersDisagree":           1,
		"resources_not_migrated AwaitingAgreement":       1,
		"seconds_since_last_observation ServerDiscovery": 60,
	}
	if diff := cmp.Diff(want, shownGauges(t)); diff != "" {
		t.Errorf("gauges (-want +got):\n%s", diff)
	}
	f.observations.looks = nil
	f.clock.Step(90 * time.Second)
	if got := shownGauges(t)["seconds_since_last_observation ServerDiscovery"]; got != 90 {
		t.Errorf("no API server was read for %v seconds since the start, want 90", got)
	}
	gauges.Hide(f.Controller)
	if got := shownGauges(t); len(got) > 0 {
		t.Errorf("nothing runs any more, and yet there is %v", got)
	}
}

// shownGauges gathers what the registry shows of this package: names and label values, and the value.
func shownGauges(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, family := range families {
		name, ours := strings.CutPrefix(family.GetName(), subsystem+"_")
		for _, m := range family.GetMetric() {
			if !ours || m.GetGauge() == nil {
				continue
			}
			key := name
			for _, label := range m.GetLabel() {
				key += fmt.Sprintf(" %s", label.GetValue())
			}
			all[key] = m.GetGauge().GetValue()
		}
	}
	return all
}
