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

package documents

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

func TestLostFields(t *testing.T) {
	const definition = `
spec:
  versions:
  - name: v2
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {
      same: {type: string},
      map: {type: object, additionalProperties: {type: string}},
      open: {type: object, x-kubernetes-preserve-unknown-fields: true},
      closed: {type: object, properties: {a: {type: string}}},
      maps: {type: object, additionalProperties: {type: object, properties: {a: {type: string}}}},
      list: {type: array, items: {type: object, properties: {a: {type: string}}}}}}}
  - name: v1
    schema: {openAPIV3Schema: {type: object, properties: {
      metadata: {type: object}, kind: {type: string},
      same: {type: string}, password: {type: string},
      map: {type: object, properties: {x: {type: string}}},
      open: {type: object, properties: {x: {type: string}}},
      closed: {type: object, additionalProperties: {type: string}},
      maps: {type: object, x-kubernetes-preserve-unknown-fields: true},
      list: {type: array, items: {type: object, properties: {a: {type: string}, b: {type: string}}}}}}}
`
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.Unmarshal([]byte(definition), crd); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{"v1": {".closed.*", ".list[].b", ".maps.*", ".password"}, "v2": nil}
	if diff := cmp.Diff(want, LostFields(crd)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	crd.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter}
	if lost := LostFields(crd); len(lost) > 0 {
		t.Errorf("with a webhook that converts: %v", lost)
	}
}
