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
	"fmt"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

func testCustomResources(t *testing.T, s *observed, cp *controlplane.ControlPlane) {
	client, err := apiextensions.NewForConfig(cp.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	definitions := client.ApiextensionsV1().CustomResourceDefinitions()
	if _, err := definitions.Create(t.Context(), widgetDefinition(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, soon, func() error { return s.complete(widgets, storageversion.Custom, 1) })
	within(t, eventually, func() error { return stored(t, s, "v1alpha1") })

	within(t, soon, func() error { // The controllers of the API server write the definition, too.
		current, err := definitions.Get(t.Context(), widgetDefinition().Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		current.Spec.Versions[0].Storage, current.Spec.Versions[1].Storage = false, true
		_, err = definitions.Update(t.Context(), current, metav1.UpdateOptions{})
		return err
	})
	within(t, soon, func() error {
		if got, want := s.versions(widgets), []string{"example.com/v1"}; !slices.Equal(got, want) {
			return fmt.Errorf("encodings %q, want %q", got, want)
		}
		return stored(t, s, "v1alpha1", "v1")
	})
	if got := s.Observe(widgets).ServedVersions; !slices.Equal(got, []string{"v1", "v1alpha1"}) {
		t.Errorf("served at %q", got)
	}

	if err := definitions.Delete(t.Context(), widgetDefinition().Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	within(t, soon, func() error {
		if got := s.Observe(widgets).Presence; got != storageversion.Deleted {
			return fmt.Errorf("%s is %q", widgets, got)
		}
		return nil
	})
}

func stored(t *testing.T, s *observed, versions ...string) error {
	t.Helper()
	last, _ := ptrTo(s.Observe(widgets)).Last()
	definition := last.Evidence.CustomResourceDefinition
	if definition == nil || !slices.Equal(definition.StoredVersions, versions) {
		return fmt.Errorf("stored versions of %v, want %q", definition, versions)
	}
	return nil
}

func widgetDefinition() *apiextensionsv1.CustomResourceDefinition {
	schema := &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
		Type: "object", XPreserveUnknownFields: ptr.To(true),
	}}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com",
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Kind: "Widget"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{
				{Name: "v1alpha1", Served: true, Storage: true, Schema: schema},
				{Name: "v1", Served: true, Schema: schema},
			},
		},
	}
}
