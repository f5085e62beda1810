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

package svmapi_test

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	migrationac "sigs.k8s.io/svm-api/client/applyconfiguration/migration/v1alpha1"
	"sigs.k8s.io/svm-api/client/clientset/versioned/fake"
	"sigs.k8s.io/svm-api/migration/v1alpha1"
)

// The fake clientset merges what is applied only if the schema was generated into the apply configurations.
func TestFakeClientsetAppliesByFieldOwner(t *testing.T) {
	ctx := t.Context()
	states := fake.NewClientset().MigrationV1alpha1().StorageStates()

	created, err := states.Create(ctx, &v1alpha1.StorageState{
		ObjectMeta: metav1.ObjectMeta{Name: "pods"},
		Spec:       v1alpha1.StorageStateSpec{Resource: v1alpha1.GroupResource{Resource: "pods"}},
	}, metav1.CreateOptions{FieldManager: "creator"})
	if err != nil {
		t.Fatal(err)
	}
	if created.Name != "pods" {
		t.Fatalf("created %q", created.Name)
	}
	for owner, condition := range map[string]string{"one": "Agreed", "other": "Migrated"} {
		status := migrationac.StorageStateStatus().WithConditions(conditionNamed(condition))
		if _, err := states.Apply(ctx, migrationac.StorageState("pods").WithStatus(status),
			metav1.ApplyOptions{FieldManager: owner}); err != nil {
			t.Fatal(err)
		}
	}
	got, err := states.Get(ctx, "pods", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Status.Conditions) != 2 {
		t.Errorf("conditions of two owners became %v", got.Status.Conditions)
	}
	extracted, err := migrationac.ExtractStorageState(got, "one")
	if err != nil {
		t.Fatal(err)
	}
	if len(extracted.Status.Conditions) != 1 || *extracted.Status.Conditions[0].Type != "Agreed" {
		t.Errorf("what one owner applied reads as %v", extracted.Status.Conditions)
	}
	if _, err := states.Get(ctx, "absent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("an absent state: %v", err)
	}
}

func conditionNamed(name string) *metav1ac.ConditionApplyConfiguration {
	return metav1ac.Condition().WithType(name).WithStatus(metav1.ConditionTrue).WithReason("Tested").
		WithMessage("").WithLastTransitionTime(metav1.Unix(0, 0))
}
