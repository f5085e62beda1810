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

package terminal

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/preflight"
	"sigs.k8s.io/svm-controller-manager/pkg/install"
)

// testMissingStates gives each resource that can be migrated a StorageState, except one.
func testMissingStates(t *testing.T, c *cluster) {
	_, documents, err := c.Kube.Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	for _, resource := range install.Resources(documents) {
		if resource.String() == "secrets" {
			continue
		}
		state := &migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: resource.String()}}
		state.Spec.Resource = migrationv1alpha1.GroupResource{Group: resource.Group, Resource: resource.Resource}
		if _, err := c.Migration.MigrationV1alpha1().StorageStates().Create(
			t.Context(), state, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var answer struct{ Findings preflight.Findings }
	decode(t, c.svm(t.Context(), t, notSafe, "", "preflight", "-o=json"), &answer)
	if !slices.ContainsFunc(answer.Findings, func(f preflight.Finding) bool {
		return f.Level == preflight.Error && f.Code == preflight.CodeNoStorageState &&
			strings.HasPrefix(f.Message, "there is no StorageState of secrets, so")
	}) {
		t.Errorf("nothing but secrets has no StorageState, and preflight finds %+v", answer.Findings)
	}
}
