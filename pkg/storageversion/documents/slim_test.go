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
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// decode decodes as the clients of this package do.
func decode[T runtime.Object](t *testing.T, document string) T {
	t.Helper()
	object, _, err := codecs.UniversalDeserializer().Decode([]byte(document), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return object.(T)
}

func TestDefinitions(t *testing.T) {
	complete := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com", UID: "uid", Generation: 7, ResourceVersion: "42",
			Annotations: map[string]string{"large": "value"},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: "kubectl", FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:group":{}}}`)},
				{Manager: "pruner", FieldsV1: metav1.NewFieldsV1(`{"f:status":{"f:storedVersions":{}}}`)},
			}},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com",
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{Name: "v1alpha1", Served: true, Schema: &apiextensionsv1.CustomResourceValidation{}},
				{Name: "v2alpha1", Served: true},
				{Name: "v1beta1", Storage: true},
				{Name: "v1", Served: true},
				{Name: "v1beta2", Served: true},
			},
		},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{
			StoredVersions: []string{"v1alpha1", "v1beta1"},
			AcceptedNames:  apiextensionsv1.CustomResourceDefinitionNames{Plural: "others"},
			Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{
				{Type: apiextensionsv1.NamesAccepted, Status: apiextensionsv1.ConditionTrue},
				{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue},
			},
		},
	}
	document, err := json.Marshal(complete)
	if err != nil {
		t.Fatal(err)
	}
	d := decode[*Definition](t, string(document))
	type facts struct {
		Resource                                   schema.GroupResource
		Name, UID, ResourceVersion, Storage, Kind  string
		StoredVersionsManager                      string
		Generation                                 int64
		Served, Stored                             []string
		Established, EstablishedWithoutTheirStatus bool
		Annotations                                map[string]string
	}
	meta := d.GetObjectMeta()
	got := facts{
		Resource: d.Resource(), Name: meta.GetName(), UID: string(meta.GetUID()), ResourceVersion: meta.GetResourceVersion(),
		Storage: d.StorageVersion(), Kind: d.Spec.Names.Kind, Generation: meta.GetGeneration(), Served: d.ServedVersions(),
		Stored: d.Status.StoredVersions, StoredVersionsManager: d.StoredVersionsManager(),
		Established: d.Established(), Annotations: meta.GetAnnotations(),
	}
	d.Status.Conditions = nil
	got.EstablishedWithoutTheirStatus = d.Established()
	want := facts{
		Resource: schema.GroupResource{Group: "example.com", Resource: "widgets"},
		Name:     "widgets.example.com", UID: "uid", ResourceVersion: "42", Storage: "v1beta1", Generation: 7,
		Kind: "Widget", StoredVersionsManager: "pruner",
		Served: []string{"v1", "v1beta2", "v2alpha1", "v1alpha1"}, Stored: []string{"v1alpha1", "v1beta1"}, Established: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("what matters (-want +got):\n%s", diff)
	}
}

func TestEndOfStreamedList(t *testing.T) {
	bookmark := decode[*Definition](t, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
		"metadata":{"resourceVersion":"42","annotations":{"k8s.io/initial-events-end":"true"}},"spec":{},"status":{}}`)
	if got := bookmark.GetObjectMeta().GetAnnotations()[metav1.InitialEventsAnnotationKey]; got != "true" {
		t.Errorf("annotation %q", got)
	}
}

func TestAPIServices(t *testing.T) {
	labels := func(value string) string {
		return `"metadata":{"name":"v1.apps","labels":{"kube-aggregator.kubernetes.io/automanaged":"` + value + `"}},`
	}
	for name, test := range map[string]struct {
		document              string
		builtIn               bool
		address, availability string
	}{
		"built in": {builtIn: true, document: labels("onstart") + `"spec":{"group":"apps","version":"v1"}`},
		"custom":   {document: labels("true") + `"spec":{"group":"apps","version":"v1"}`},
		"aggregated": {
			address: "api.ns.svc:8443", availability: "False 2026-07-01T12:00:00Z",
			document: `"spec":{"group":"apps","version":"v1","service":{"namespace":"ns","name":"api","port":8443}},
				"status":{"conditions":[{"type":"Available","status":"False","lastTransitionTime":"2026-07-01T12:00:00Z"}]}`,
		},
		"aggregated, at the default port": {
			address:  "api.ns.svc:443",
			document: `"spec":{"group":"apps","version":"v1","service":{"namespace":"ns","name":"api"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := decode[*APIService](t, `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService",`+test.document+`}`)
			if s.GroupVersion() != (schema.GroupVersion{Group: "apps", Version: "v1"}) || s.BuiltIn() != test.builtIn ||
				s.Address() != test.address || s.Availability() != test.availability {
				t.Errorf("%s is built in: %t, at %q, available %q", s.GroupVersion(), s.BuiltIn(), s.Address(), s.Availability())
			}
		})
	}
}

// TestContent wants to notice each change of what API servers do with the objects, and no other change.
func TestContent(t *testing.T) {
	content := func(change func(*apiextensionsv1.CustomResourceDefinition)) string {
		definition := &apiextensionsv1.CustomResourceDefinition{
			TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
			Spec: apiextensionsv1.CustomResourceDefinitionSpec{
				Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Served: true, Storage: true,
					Schema: &apiextensionsv1.CustomResourceValidation{
						OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"},
					}}},
				Conversion: &apiextensionsv1.CustomResourceConversion{
					Strategy: apiextensionsv1.WebhookConverter,
					Webhook:  &apiextensionsv1.WebhookConversion{ClientConfig: &apiextensionsv1.WebhookClientConfig{}},
				},
			},
		}
		change(definition)
		document, err := json.Marshal(definition)
		if err != nil {
			t.Fatal(err)
		}
		return decode[*Definition](t, string(document)).Content()
	}
	before := content(func(*apiextensionsv1.CustomResourceDefinition) {})
	type definition = apiextensionsv1.CustomResourceDefinition
	for name, test := range map[string]struct {
		change  func(*definition)
		differs bool
	}{
		"a schema": {differs: true, change: func(d *definition) {
			d.Spec.Versions[0].Schema.OpenAPIV3Schema.XPreserveUnknownFields = new(true)
		}},
		"no schema":      {differs: true, change: func(d *definition) { d.Spec.Versions[0].Schema = nil }},
		"what is served": {differs: true, change: func(d *definition) { d.Spec.Versions[0].Served = false }},
		"the conversion": {differs: true, change: func(d *definition) { d.Spec.Conversion = nil }},
		"unknown fields": {differs: true, change: func(d *definition) { d.Spec.PreserveUnknownFields = true }},
		"the status": {differs: true, change: func(d *definition) {
			d.Spec.Versions[0].Subresources = &apiextensionsv1.CustomResourceSubresources{
				Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
			}
		}},
		"a label": {change: func(d *definition) { d.Labels = map[string]string{"a": "b"} }},
		"the CA of the webhook": {change: func(d *definition) {
			d.Spec.Conversion.Webhook.ClientConfig.CABundle = []byte("another one")
		}},
	} {
		if got := content(test.change); (got != before) != test.differs {
			t.Errorf("%s: the content is %s, and was %s", name, got, before)
		}
	}
}
