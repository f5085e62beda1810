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

package api

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/svm-api/migration/crds"
)

func TestDefinitionsAreAcceptedWithoutComplaint(t *testing.T) {
	definitions, err := ourDefinitions()
	if err != nil {
		t.Fatal(err)
	}
	client := shared.apiextensions.ApiextensionsV1().CustomResourceDefinitions()
	for _, definition := range definitions {
		t.Run(definition.Name, func(t *testing.T) {
			var conditions []apiextensionsv1.CustomResourceDefinitionCondition
			if err := poll(t.Context(), func(ctx context.Context) (bool, error) {
				got, err := client.Get(ctx, definition.Name, metav1.GetOptions{})
				if err != nil {
					return false, err
				}
				conditions = got.Status.Conditions
				return conditionIs(conditions, apiextensionsv1.Established, apiextensionsv1.ConditionTrue) &&
					conditionIs(conditions, apiextensionsv1.NamesAccepted, apiextensionsv1.ConditionTrue) &&
					// Nobody of the Kubernetes project has approved this schema, and the definitions say so.
					conditionIs(conditions, apiextensionsv1.KubernetesAPIApprovalPolicyConformant, apiextensionsv1.ConditionFalse), nil
			}); err != nil {
				t.Errorf("%v: conditions are %+v", err, conditions)
			}
			for _, condition := range conditions {
				if condition.Type == apiextensionsv1.NonStructuralSchema || condition.Type == apiextensionsv1.Terminating {
					t.Errorf("condition %+v", condition)
				}
			}
		})
	}
}

func conditionIs(conditions []apiextensionsv1.CustomResourceDefinitionCondition,
	conditionType apiextensionsv1.CustomResourceDefinitionConditionType, status apiextensionsv1.ConditionStatus) bool {
	for _, condition := range conditions {
		if condition.Type == conditionType {
			return condition.Status == status
		}
	}
	return false
}

func TestEmbeddedDefinitionsAreTheManifests(t *testing.T) {
	manifests, err := crds.Manifests()
	if err != nil {
		t.Fatal(err)
	}
	embedded := map[string]string{}
	for _, manifest := range manifests {
		embedded[manifest.FileName] = string(manifest.YAML)
	}
	paths, err := filepath.Glob(filepath.Join("..", "..", "..", "build", "manifests", "crds", "migration.k8s.io_*"))
	if err != nil {
		t.Fatal(err)
	}
	onDisk := map[string]string{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		onDisk[filepath.Base(path)] = string(data)
	}
	if diff := cmp.Diff(onDisk, embedded); diff != "" {
		t.Errorf(
			"build/manifests/crds and what is embedded differ; run hack/update-codegen.sh (-manifests +embedded):\n%s", diff,
		)
	}
}
