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

package upgrade

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/samples"
)

// TestManagedFieldsOfADroppedVersion migrates objects whose managedFields name a version that left the definition.
// Before 1.37, API servers remove all managedFields of such an object in any write but an apply.
func TestManagedFieldsOfADroppedVersion(t *testing.T) {
	for _, release := range []string{"1.36", "1.37"} {
		t.Run(release, func(t *testing.T) {
			c := start(t, controlplane.Config{Servers: []controlplane.Server{{Binary: binary(t, release), AllowAll: true}}})
			c.InstallMigrationAPI(t)
			c.dropVersion(t)
			c.startManager(t, "manager")
			var ended *v1alpha1.StorageVersionMigration
			framework.Eventually(t, soon, func(ctx context.Context) error {
				list, err := c.Migrations().List(ctx, metav1.ListOptions{})
				if err != nil {
					return err
				}
				i := slices.IndexFunc(list.Items, func(m v1alpha1.StorageVersionMigration) bool {
					return m.GroupResource() == widgets && m.Finished()
				})
				if i < 0 {
					return errors.New("the migration has not ended")
				}
				ended = &list.Items[i]
				return nil
			})
			if err := checkDenied(ended, release == "1.36"); err != nil {
				t.Error(err)
			}
			for _, name := range []string{"old", "sole", "new"} {
				if n := len(c.widget(t, name).GetManagedFields()); n == 0 {
					t.Errorf("%s has lost its managedFields", name)
				}
			}
		})
	}
}

// dropVersion leaves three objects in etcd that are stored as v1. The managedFields of two name v1alpha1, which is
// gone, those of one nothing else. API servers write v2.
func (c *cluster) dropVersion(t *testing.T) {
	t.Helper()
	definition := samples.Definition(widgets, "Widget", "v1alpha1", "v1alpha1", "v1", "v2")
	if _, err := c.Definitions().Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, version := range map[string]string{"old": "v1alpha1", "sole": "v1alpha1", "new": "v1"} {
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/" + version, "kind": "Widget", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"size": int64(1)},
		}}
		framework.Eventually(t, soon, func(ctx context.Context) error {
			_, err := c.Dynamic.Resource(widgets.WithVersion(version)).Namespace(metav1.NamespaceDefault).
				Create(ctx, object, metav1.CreateOptions{})
			return err
		})
	}
	c.StoreVersion(t, widgets, "v1")
	for name, labels := range map[string]string{"old": `{"a":"b"}`, "sole": `{}`, "new": `{"a":"b"}`} {
		framework.Eventually(t, soon, func(ctx context.Context) error { return c.storeAnew(ctx, name, labels) })
	}
	patch := []byte(`{"status":{"storedVersions":["v1"]}}`)
	_, err := c.Definitions().Patch(t.Context(), widgets.String(), types.MergePatchType, patch, metav1.PatchOptions{},
		"status")
	if err != nil {
		t.Fatal(err)
	}
	c.ChangeDefinition(t, widgets, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Versions = slices.DeleteFunc(d.Spec.Versions,
			func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == "v1alpha1" })
	})
	c.StoreVersion(t, widgets, "v2")
}

// storeAnew stores an object anew, as v1, with these labels.
func (c *cluster) storeAnew(ctx context.Context, name, labels string) error {
	patch := []byte(`{"metadata":{"labels":` + labels + `}}`)
	_, err := c.Dynamic.Resource(widgets.WithVersion("v1")).Namespace(metav1.NamespaceDefault).
		Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return err
	}
	stored, err := c.Stored(ctx, widgets)
	if err != nil {
		return err
	}
	for _, object := range stored {
		if object.Name == name && object.Encoding != "example.com/v1" {
			return fmt.Errorf("%s is stored as %s", name, object.Encoding)
		}
	}
	return nil
}

func (c *cluster) widget(t *testing.T, name string) *unstructured.Unstructured {
	t.Helper()
	object, err := c.Dynamic.Resource(widgets.WithVersion("v2")).Namespace(metav1.NamespaceDefault).
		Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// checkDenied wants objects that cannot be rewritten to be named, with the reason, and the other one to be migrated.
func checkDenied(m *v1alpha1.StorageVersionMigration, denied bool) error {
	switch {
	case !denied && m.IsConditionTrue(v1alpha1.MigrationSucceeded):
		return nil
	case denied && len(m.Status.DeniedObjects) == 2 && m.Status.DeniedObjects[0].Name == "old" &&
		strings.Contains(m.Status.DeniedObjects[0].Message, "clean managedFields") && m.Status.Progress.Rewritten == 1:
		return nil
	}
	return fmt.Errorf("the migration of widgets has ended with %+v", m.Status)
}
