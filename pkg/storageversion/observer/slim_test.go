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

package observer

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// decodeSlim goes the way that answers of API servers go.
func decodeSlim[T runtime.Object](t *testing.T, document string) T {
	t.Helper()
	object, _, err := serializer.NewCodecFactory(slimScheme).UniversalDeserializer().Decode([]byte(document), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return object.(T)
}

func TestDefinitions(t *testing.T) {
	complete := &apiextensionsv1.CustomResourceDefinition{
		TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com", UID: "uid", Generation: 7, ResourceVersion: "42",
			Annotations: map[string]string{"large": "value"}},
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
	d := decodeSlim[*definition](t, string(document))
	want := &storageversion.CustomResource{
		UID: "uid", Generation: 7, Group: "example.com", Plural: "widgets", Kind: "Widget", StorageVersion: "v1beta1",
		ServedVersions: []string{"v1", "v1beta2", "v2alpha1", "v1alpha1"},
		StoredVersions: []string{"v1alpha1", "v1beta1"}, Established: true,
	}
	if diff := cmp.Diff(want, d.customResource()); diff != "" {
		t.Errorf("what matters (-want +got):\n%s", diff)
	}
	if meta := d.GetObjectMeta(); meta.GetName() != complete.Name || meta.GetResourceVersion() != "42" || len(meta.GetAnnotations()) != 0 {
		t.Errorf("metadata %v", meta)
	}

	complete.Status.Conditions = nil
	if document, err = json.Marshal(complete); err != nil {
		t.Fatal(err)
	}
	if decodeSlim[*definition](t, string(document)).customResource().Established {
		t.Error("established without the condition")
	}
}

func TestEndOfStreamedList(t *testing.T) {
	bookmark := decodeSlim[*definition](t, `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition",
		"metadata":{"resourceVersion":"42","annotations":{"k8s.io/initial-events-end":"true"}},"spec":{},"status":{}}`)
	if got := bookmark.GetObjectMeta().GetAnnotations()[metav1.InitialEventsAnnotationKey]; got != "true" {
		t.Errorf("annotation %q", got)
	}
}

func TestAPIServices(t *testing.T) {
	tests := []struct {
		name, document            string
		wantOrigin                origin
		wantAddress, availability string
	}{
		{
			name: "built in", wantOrigin: builtIn,
			document: `"metadata":{"name":"v1.apps","labels":{"kube-aggregator.kubernetes.io/automanaged":"onstart"}},"spec":{"group":"apps","version":"v1"}`,
		},
		{
			name: "custom", wantOrigin: custom,
			document: `"metadata":{"name":"v1.apps","labels":{"kube-aggregator.kubernetes.io/automanaged":"true"}},"spec":{"group":"apps","version":"v1"}`,
		},
		{
			name: "aggregated", wantOrigin: aggregated, wantAddress: "api.ns.svc:8443", availability: "False 2026-07-01T12:00:00Z",
			document: `"metadata":{"name":"v1.apps"},"spec":{"group":"apps","version":"v1","service":{"namespace":"ns","name":"api","port":8443}},
				"status":{"conditions":[{"type":"Available","status":"False","lastTransitionTime":"2026-07-01T12:00:00Z"}]}`,
		},
		{
			name: "aggregated, at the default port", wantOrigin: aggregated, wantAddress: "api.ns.svc:443",
			document: `"metadata":{"name":"v1.apps"},"spec":{"group":"apps","version":"v1","service":{"namespace":"ns","name":"api"}}`,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := decodeSlim[*apiService](t, `{"apiVersion":"apiregistration.k8s.io/v1","kind":"APIService",`+test.document+`}`)
			if s.groupVersion() != appsV1 || s.origin() != test.wantOrigin || s.address() != test.wantAddress || s.availability() != test.availability {
				t.Errorf("%v is %q at %q, %q", s.groupVersion(), s.origin(), s.address(), s.availability())
			}
		})
	}
}

func TestCopiesAreDeep(t *testing.T) {
	meta := slimMeta{Name: "name", Labels: map[string]string{"a": "b"}}
	conditions := []slimCondition{{Type: "Available", LastTransitionTime: time.Time{}.String()}}
	for _, object := range []runtime.Object{
		&definitionList{Items: []definition{{Metadata: meta, Spec: definitionSpec{Versions: []definitionVersion{{Name: "v1"}}},
			Status: definitionStatus{StoredVersions: []string{"v1"}, Conditions: conditions}}}},
		&apiServiceList{Items: []apiService{{Metadata: meta, Spec: apiServiceSpec{Service: &serviceReference{Port: ptr.To(int32(1))}},
			Status: apiServiceStatus{Conditions: conditions}}}},
	} {
		copied := object.DeepCopyObject()
		if !reflect.DeepEqual(object, copied) {
			t.Errorf("the copy of %v is %v", object, copied)
		}
		switch c := copied.(type) {
		case *definitionList:
			item := &c.Items[0]
			item.Metadata.Labels["a"], item.Spec.Versions[0].Name, item.Status.StoredVersions[0], item.Status.Conditions[0].Type = "", "", "", ""
		case *apiServiceList:
			item := &c.Items[0]
			item.Metadata.Labels["a"], *item.Spec.Service.Port, item.Status.Conditions[0].Type = "", 2, ""
		}
		pristine := object.DeepCopyObject()
		if reflect.DeepEqual(pristine, copied) {
			t.Errorf("a change of the copy changed %T", object)
		}
		switch o := object.(type) {
		case *definitionList:
			if item := o.Items[0]; item.Metadata.Labels["a"] == "" || item.Spec.Versions[0].Name == "" || item.Status.StoredVersions[0] == "" || conditions[0].Type == "" {
				t.Errorf("shared with the copy: %v", item)
			}
		case *apiServiceList:
			if item := o.Items[0]; item.Metadata.Labels["a"] == "" || *item.Spec.Service.Port == 2 || conditions[0].Type == "" {
				t.Errorf("shared with the copy: %v", item)
			}
		}
	}
}
