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
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

var safe = condition(migrationv1alpha1.StorageStateSafeToRemoveOldVersions, metav1.ConditionTrue,
	migrationv1alpha1.StateReasonOnlyCurrentEncoding)

func TestDrop(t *testing.T) {
	const v1, old = "example.com/v1", "example.com/v1alpha1"
	of := func(versions ...string) *migrationv1alpha1.StorageState {
		return ptr.To(with(state("Widget", "widgets.example.com", versions...), safe))
	}
	unsafe := func(reason string) *migrationv1alpha1.StorageState {
		return ptr.To(with(*of(v1), condition(migrationv1alpha1.StorageStateAgreed, metav1.ConditionFalse, reason),
			condition(migrationv1alpha1.StorageStateSafeToRemoveOldVersions, metav1.ConditionFalse, reason)))
	}
	tests := []struct {
		name, version string
		in            Change
		want          []string
	}{
		{"nothing is stored in it", "v1alpha1", Change{Live: widgets([]string{"v1"}, "v1", "v1alpha1"), State: of(v1)},
			[]string{"INFO VersionSafeToDrop widgets.example.com"}},
		{"objects may be stored in it", "v1alpha1", Change{Live: widgets([]string{"v1alpha1", "v1"}, "v1", "v1alpha1"),
			State: of(old, v1)}, []string{"ERROR VersionMayBeStored widgets.example.com"}},
		{"it was pruned without a proof", "v1alpha1", Change{Live: widgets([]string{"v1"}, "v1", "v1alpha1"),
			State: of(old, v1)}, []string{"ERROR VersionMayBeStored widgets.example.com"}},
		{"nothing is known", "v1alpha1", Change{Live: widgets([]string{"v1"}, "v1", "v1alpha1"),
			State: of(migrationv1alpha1.Unknown, v1)}, []string{"ERROR VersionMayBeStored widgets.example.com"}},
		{"it was not pruned", "v1alpha1", Change{Live: widgets([]string{"v1alpha1", "v1"}, "v1", "v1alpha1"),
			State: of(v1)},
			[]string{"ERROR StoredVersionsNotPruned widgets.example.com"}},
		{"it is written", "v1", Change{Live: widgets([]string{"v1"}, "v1", "v1alpha1"), State: of(v1)},
			[]string{"ERROR VersionIsStorageVersion widgets.example.com"}},
		{"no state, and stored", "v1alpha1", Change{Live: widgets([]string{"v1alpha1", "v1"}, "v1", "v1alpha1")},
			[]string{"ERROR VersionMayBeStored widgets.example.com"}},
		{"no state, and not stored", "v1alpha1", Change{Live: widgets([]string{"v1"}, "v1", "v1alpha1")},
			[]string{"ERROR NoStorageState widgets.example.com"}},
		{"the same, and nobody keeps states", "v1alpha1", Change{Live: widgets([]string{"v1"}, "v1", "v1alpha1"),
			Unmanaged: true}, []string{"WARNING NoStorageState widgets.example.com"}},
		{"nobody keeps states, and stored", "v1alpha1", Change{Live: widgets([]string{"v1alpha1", "v1"}, "v1", "v1alpha1"),
			Unmanaged: true}, []string{"ERROR VersionMayBeStored widgets.example.com"}},
		{"managedFields name it", "v1alpha1", Change{Live: widgets([]string{"v1"}, "v1", "v1alpha1"), State: of(v1),
			ManagedFields: map[string]int64{"v1alpha1": 4}}, []string{"WARNING ManagedFieldsNotServed widgets.example.com",
			"INFO VersionSafeToDrop widgets.example.com"}},
		{"the state is too old", "v1alpha1", Change{Live: widgets([]string{"v1"}, "v1", "v1alpha1"), State: of(v1),
			Doubt: "It is old."}, []string{"ERROR StorageStateOutdated widgets.example.com"}},
		{"managedFields cannot be read", "v1alpha1", Change{Live: widgets([]string{"v1"}, "v1", "v1alpha1"),
			State: of(v1), Uncounted: "the webhook does not answer"}, []string{
			"WARNING ManagedFieldsNotServed widgets.example.com", "INFO VersionSafeToDrop widgets.example.com"}},
		{"no server serves it", "v1alpha1", Change{Live: widgets([]string{"v1"}, "v1", "v1alpha1"),
			State: unsafe(migrationv1alpha1.StateReasonNotServed)}, []string{"ERROR VersionMayBeStored widgets.example.com"}},
		{"a server was not seen", "v1alpha1", Change{Live: widgets([]string{"v1alpha1", "v1"}, "v1", "v1alpha1"),
			State: unsafe(migrationv1alpha1.StateReasonServersUnseen)},
			[]string{"ERROR VersionMayBeStored widgets.example.com"}},
		{"the trigger has recorded nothing", "v1alpha1", Change{Live: widgets([]string{"v1"}, "v1", "v1alpha1"),
			State: ptr.To(state("Widget", "widgets.example.com", v1))},
			[]string{"ERROR VersionMayBeStored widgets.example.com"}},
		{"another version was not pruned", "v1alpha1", Change{
			Live:  widgets([]string{"v1beta1", "v1"}, "v1", "v1beta1", "v1alpha1"),
			State: unsafe(migrationv1alpha1.StateReasonStoredVersionsNotPruned)},
			[]string{"INFO VersionSafeToDrop widgets.example.com"}},
		{"it is gone already", "v1beta1", Change{Live: widgets([]string{"v1"}, "v1"), State: of(v1)},
			[]string{"ERROR VersionNotDefined widgets.example.com"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			found := decideDrop(test.in, test.version)
			if diff := cmp.Diff(test.want, brief(found)); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
			if why := "The message of NotServed."; test.name == "no server serves it" &&
				!strings.HasSuffix(found[0].Message, why) {
				t.Errorf("the finding %q does not say why: %s", found[0].Message, why)
			}
		})
	}
}

func unservedLast(d *documents.Definition) *documents.Definition {
	d.Spec.Versions[len(d.Spec.Versions)-1].Served = false
	return d
}

func byWebhook(d *documents.Definition) *documents.Definition {
	d.Spec.Conversion.Strategy = "Webhook"
	return d
}

func TestChange(t *testing.T) {
	converted := byWebhook(widgets(nil, "v1", "v1alpha1"))
	hidden := ptr.To(with(state("Widget", "widgets.example.com", "example.com/v1"), condition(
		migrationv1alpha1.StorageStateSafeToRemoveOldVersions, metav1.ConditionFalse, "NotServed")))
	tests := []struct {
		name string
		in   Change
		want []string
	}{
		{"a new definition", Change{File: widgets(nil, "v1")}, nil},
		{"a new storage version", Change{File: widgets(nil, "v1", "v1alpha1"),
			Live: widgets([]string{"v1alpha1"}, "v1alpha1")}, []string{"INFO StorageVersionChanges widgets.example.com"}},
		{"a new storage version that is not served", Change{File: unserving("v1", widgets(nil, "v1", "v1alpha1")),
			Live: widgets([]string{"v1alpha1"}, "v1alpha1")}, []string{
			"WARNING StorageVersionNotServed widgets.example.com"}},
		{"the storage version is not served any more", Change{File: unserving("v1", widgets(nil, "v1", "v1alpha1")),
			Live: widgets([]string{"v1"}, "v1", "v1alpha1")}, []string{
			"WARNING StorageVersionNotServed widgets.example.com"}},
		{"the same, with a webhook", Change{File: unserving("v1", byWebhook(widgets(nil, "v1", "v1alpha1"))),
			Live: byWebhook(widgets([]string{"v1alpha1"}, "v1alpha1"))}, []string{
			"INFO StorageVersionChanges widgets.example.com"}},
		{"the storage version is dropped", Change{File: widgets(nil, "v1"), Refusal: "no",
			Live: widgets([]string{"v1alpha1"}, "v1alpha1", "v1")}, []string{
			"ERROR DefinitionRefused widgets.example.com", "ERROR VersionIsStorageVersion widgets.example.com"}},
		{"fields are dropped", Change{File: widgets(nil, "v1", "v1alpha1"),
			Live: widgets([]string{"v1alpha1"}, "v1alpha1", "v1"),
			Lost: map[string][]string{"v1": nil, "v1alpha1": {".spec.password"}}}, []string{
			"ERROR FieldsDropped widgets.example.com", "INFO StorageVersionChanges widgets.example.com"}},
		{"fields of a version that nothing is stored in", Change{File: widgets(nil, "v1", "v1alpha1"),
			Live: widgets([]string{"v1"}, "v1", "v1alpha1"), Lost: map[string][]string{"v1alpha1": {".spec.password"}}},
			[]string{"WARNING FieldsDropped widgets.example.com"}},
		{"fields of a version that left storedVersions without a proof", Change{File: widgets(nil, "v1", "v1alpha1"),
			Live:  widgets([]string{"v1"}, "v1", "v1alpha1"),
			State: ptr.To(state("Widget", "widgets.example.com", "example.com/v1alpha1", "example.com/v1")),
			Lost:  map[string][]string{"v1alpha1": {".spec.password"}}}, []string{"ERROR FieldsDropped widgets.example.com"}},
		{"fields of a version that is added, when nobody knows what is stored", Change{File: widgets(nil, "v1", "v2"),
			Live:  widgets([]string{"v1"}, "v1"),
			State: ptr.To(state("Widget", "widgets.example.com", "example.com/v1", migrationv1alpha1.Unknown)),
			Lost:  map[string][]string{"v2": {".spec.password"}}}, []string{"WARNING FieldsDropped widgets.example.com"}},
		{"the stored version loses a field, and all objects are migrated", Change{File: widgets(nil, "v2", "v1"),
			Live: widgets([]string{"v1"}, "v1"), Narrowed: map[string][]string{"v1": {".spec.password"}}}, []string{
			"ERROR FieldsDropped widgets.example.com", "INFO StorageVersionChanges widgets.example.com"}},
		{"the stored version loses a field", Change{File: widgets(nil, "v1"),
			Live: widgets([]string{"v1"}, "v1"), Narrowed: map[string][]string{"v1": {".spec.password"}}}, []string{
			"WARNING FieldsDropped widgets.example.com"}},
		{"a version loses a field in which old objects are stored", Change{File: widgets(nil, "v1", "v1alpha1"),
			Live:     widgets([]string{"v1alpha1", "v1"}, "v1", "v1alpha1"),
			Narrowed: map[string][]string{"v1alpha1": {".spec.password"}}}, []string{
			"ERROR FieldsDropped widgets.example.com"}},
		{"a version loses a field in which nothing is stored", Change{File: widgets(nil, "v1", "v1alpha1"),
			Live:     widgets([]string{"v1"}, "v1", "v1alpha1"),
			Narrowed: map[string][]string{"v1": nil, "v1alpha1": {".spec.password"}}}, nil},
		{"conversion is removed", Change{File: widgets(nil, "v1", "v1alpha1"), Live: converted},
			[]string{"ERROR ConversionRemoved widgets.example.com"}},
		{"conversion is removed, and objects are old", Change{File: widgets(nil, "v1", "v1alpha1"), Live: converted,
			State: ptr.To(state("Widget", "widgets.example.com", "example.com/v1alpha1", "example.com/v1"))},
			[]string{"ERROR ConversionRemoved widgets.example.com"}},
		{"conversion is removed, and no object is old", Change{File: widgets(nil, "v1", "v1alpha1"), Live: converted,
			State: ptr.To(with(state("Widget", "widgets.example.com", "example.com/v1"), safe))},
			[]string{"WARNING ConversionRemoved widgets.example.com"}},
		{"conversion is removed, and no server serves the resource", Change{File: widgets(nil, "v1", "v1alpha1"),
			Live: converted, State: hidden}, []string{"ERROR ConversionRemoved widgets.example.com"}},
		{"a version is dropped, and no server serves the resource", Change{File: widgets(nil, "v1"),
			Live: widgets([]string{"v1"}, "v1", "v1alpha1"), State: hidden},
			[]string{"ERROR VersionMayBeStored widgets.example.com"}},
		{"the webhook is missing", Change{File: converted, Webhook: "it does not exist", Live: converted},
			[]string{"ERROR ConversionWebhookMissing widgets.example.com"}},
		{"managedFields name a version that is dropped and was not served", Change{File: widgets(nil, "v1"),
			Live: unservedLast(widgets([]string{"v1"}, "v1", "v1alpha1")), State: ptr.To(with(
				state("Widget", "widgets.example.com", "example.com/v1"), safe)),
			ManagedFields: map[string]int64{"v1alpha1": 2}}, []string{"WARNING ManagedFieldsNotServed widgets.example.com"}},
		{"a version that is not served stays", Change{File: unservedLast(widgets(nil, "v1", "v1alpha1")),
			Live:          unservedLast(widgets([]string{"v1"}, "v1", "v1alpha1")),
			ManagedFields: map[string]int64{"v1alpha1": 2}}, nil},
		{"managedFields name a version that is dropped", Change{File: widgets(nil, "v1"),
			Live:          widgets([]string{"v1"}, "v1", "v1alpha1"),
			ManagedFields: map[string]int64{"v1alpha1": 2, "v1": 5}}, []string{
			"ERROR NoStorageState widgets.example.com", "WARNING ManagedFieldsNotServed widgets.example.com"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, brief(decideChange(test.in))); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
		})
	}
}
