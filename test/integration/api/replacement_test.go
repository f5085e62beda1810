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
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const testFinalizer = "test.migration.k8s.io/wait"

// Objects are stored while kube-storage-version-migrator's definitions are installed, ours take the place of these, and
// then whatever a controller or a person does to an object has to work on the old ones.
func TestDefinitionsReplaceThoseOfKubeStorageVersionMigratorInPlace(t *testing.T) {
	cp := controlplane.Start(t, controlplane.Config{Servers: []controlplane.Server{{AllowAll: true}}})
	c, err := newCluster(cp.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.install(t.Context(), oldDefinitions(t)); err != nil {
		t.Fatal(err)
	}
	regular := objectsIn(t, filepath.Join(fixtures, "kube-storage-version-migrator", "*.yaml"))
	odd := append(objectsIn(t, filepath.Join("testdata", "odd-objects.yaml")), longFlappingState(t))
	stored := map[string]*unstructured.Unstructured{}
	for _, object := range append(regular, odd...) {
		stored[caseName(object)] = c.createWithStatus(t, object)
	}

	ours, err := ourDefinitions()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.install(t.Context(), ours); err != nil {
		t.Fatal(err)
	}
	c.waitForOurValidation(t)

	for _, object := range regular {
		t.Run(caseName(object), func(t *testing.T) {
			c.requireReadAsStored(t, stored[caseName(object)])
			c.requireUsable(t, object)
		})
	}
	for _, object := range odd {
		t.Run("odd/"+caseName(object), func(t *testing.T) {
			c.requireUsable(t, object)
		})
	}
}

// longFlappingState is what becomes of a state when two servers disagree for long: every change of the answer is
// appended.
func longFlappingState(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	object := objectOf(
		t, "StorageState", "leases.coordination.k8s.io", "spec", `{resource: {group: coordination.k8s.io, resource: leases}}`,
	)
	setPart(t, object, "status", `{currentStorageVersionHash: Z5mQKnZOVhc=, persistedStorageVersionHashes: [`+
		strings.Repeat("YaI6jGRhZmk=, Z5mQKnZOVhc=, ", 500)+`]}`)
	return object
}

func caseName(object *unstructured.Unstructured) string {
	return object.GetKind() + "/" + object.GetName()
}

func oldDefinitions(t *testing.T) []*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var definitions []*apiextensionsv1.CustomResourceDefinition
	for _, object := range objectsIn(t, filepath.Join("testdata", "kube-storage-version-migrator-crds.yaml")) {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		convert(t, object, definition)
		definitions = append(definitions, definition)
	}
	return definitions
}

// waitForOurValidation waits until objects are refused that only our definitions refuse: an API server goes on with the
// old handler for a moment.
func (c *cluster) waitForOurValidation(t *testing.T) {
	t.Helper()
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	if err := poll(t.Context(), func(ctx context.Context) (bool, error) {
		_, migrationErr := c.migration.MigrationV1alpha1().StorageVersionMigrations().
			Create(ctx, &v1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}, dryRun)
		_, stateErr := c.migration.MigrationV1alpha1().StorageStates().
			Create(ctx, &v1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: "probe"}}, dryRun)
		return apierrors.IsInvalid(migrationErr) && apierrors.IsInvalid(stateErr), nil
	}); err != nil {
		t.Fatal(err)
	}
}

// requireReadAsStored fails the test if the typed client loses or changes anything of what was stored.
func (c *cluster) requireReadAsStored(t *testing.T, stored *unstructured.Unstructured) {
	t.Helper()
	client, name := c.migration.MigrationV1alpha1(), stored.GetName()
	var typed runtime.Object
	var err error
	if stored.GetKind() == "StorageState" {
		typed, err = client.StorageStates().Get(t.Context(), name, metav1.GetOptions{})
	} else {
		typed, err = client.StorageVersionMigrations().Get(t.Context(), name, metav1.GetOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"spec", "status"} {
		if diff := cmp.Diff(stored.Object[part], got[part]); diff != "" {
			t.Errorf("the typed client reads another %s (-stored +read):\n%s", part, diff)
		}
	}
}

// requireUsable does with the object of that name what controllers and people do: status, progress, metadata, deletion.
func (c *cluster) requireUsable(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	use := c.useMigration
	if object.GetKind() == "StorageState" {
		use = c.useState
	}
	if err := use(t.Context(), object.GetName()); err != nil {
		t.Error(err)
	}
}

func (c *cluster) useMigration(ctx context.Context, name string) error {
	client := c.migration.MigrationV1alpha1().StorageVersionMigrations()
	m, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	m.Status.Conditions = append(m.Status.Conditions, v1alpha1.MigrationCondition{
		Type: "Visited", Status: corev1.ConditionTrue, LastUpdateTime: metav1.Now(), Reason: "Tested", Message: "ours",
	})
	m.Status.Progress = &v1alpha1.MigrationProgress{
		ContinueToken:  "next",
		EstimatedTotal: ptr.To[int64](7),
		Processed:      3,
		Rewritten:      3,
	}
	m.Status.Target = &v1alpha1.MigrationTarget{StorageVersionHash: "hash=", EncodingVersion: "example.com/v1"}
	if m, err = client.UpdateStatus(ctx, m, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("updating the status: %w", err)
	}
	m.Labels = map[string]string{"visited": "true"}
	m.Finalizers = []string{testFinalizer}
	// An object without a spec has no place for a token that would not ask for a resource first.
	if m.Spec.Resource != (v1alpha1.GroupVersionResource{}) {
		m.Spec.ContinueToken = "next"
	}
	if _, err = client.Update(ctx, m, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("updating: %w", err)
	}
	if err := client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting: %w", err)
	}
	if m, err = client.Get(ctx, name, metav1.GetOptions{}); err != nil {
		return fmt.Errorf("get while a finalizer holds it: %w", err)
	}
	m.Finalizers = nil
	if _, err = client.Update(ctx, m, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("removing the finalizer: %w", err)
	}
	if _, err = client.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return fmt.Errorf("get after deletion: %w", err)
	}
	return nil
}

func (c *cluster) useState(ctx context.Context, name string) error {
	client := c.migration.MigrationV1alpha1().StorageStates()
	s, err := client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get: %w", err)
	}
	// A heartbeat that changes nothing else is what most writes are.
	s.Status.LastHeartbeatTime = metav1.NewTime(time.Now().Truncate(time.Second))
	if s, err = client.UpdateStatus(ctx, s, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("updating the heartbeat: %w", err)
	}
	slices.Sort(s.Status.PersistedStorageVersionHashes)
	s.Status.PersistedStorageVersionHashes = slices.Compact(s.Status.PersistedStorageVersionHashes)
	if s, err = client.UpdateStatus(ctx, s, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("removing repetitions: %w", err)
	}
	s.Status.Epoch = 1
	s.Status.CurrentStorageVersionHash = "new="
	s.Status.PersistedStorageVersionHashes = []string{v1alpha1.Unknown, "new="}
	s.Status.Evidence = &v1alpha1.StorageEvidence{Source: v1alpha1.EvidenceFromServerDiscovery}
	if s, err = client.UpdateStatus(ctx, s, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("updating the status: %w", err)
	}
	s.Annotations = map[string]string{v1alpha1.PausedAnnotation: "true"}
	s.Finalizers = []string{testFinalizer}
	if _, err = client.Update(ctx, s, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("updating: %w", err)
	}
	if err := client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting: %w", err)
	}
	if s, err = client.Get(ctx, name, metav1.GetOptions{}); err != nil {
		return fmt.Errorf("get while a finalizer holds it: %w", err)
	}
	s.Finalizers = nil
	if _, err = client.Update(ctx, s, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("removing the finalizer: %w", err)
	}
	if _, err = client.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return fmt.Errorf("get after deletion: %w", err)
	}
	return nil
}

// TestDefinitionsOfEarlyReleases has those that kube-storage-version-migrator installed before v0.0.5, as
// apiextensions.k8s.io/v1beta1. The API server of that time stored a default that no later one accepts beside defaults
// in schemas, and that no manifest of today names.
func TestDefinitionsOfEarlyReleases(t *testing.T) {
	cp := controlplane.Start(t, controlplane.Config{Servers: []controlplane.Server{{AllowAll: true}}})
	c, err := newCluster(cp.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.install(t.Context(), oldDefinitions(t)); err != nil {
		t.Fatal(err)
	}
	definitions := c.dynamic.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	for _, object := range objectsIn(t, filepath.FromSlash("../../../build/manifests/crds/migration*.yaml")) {
		name := object.GetName()
		key := "/registry/apiextensions.k8s.io/customresourcedefinitions/" + name
		got, err := cp.Etcd().Client().Get(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		early := strings.Replace(string(got.Kvs[0].Value), `"preserveUnknownFields":false`, `"preserveUnknownFields":true`, 1)
		if _, err := cp.Etcd().Client().Put(t.Context(), key, early); err != nil {
			t.Fatal(err)
		}
		apply := func() error {
			_, err := definitions.Apply(t.Context(), name, object, metav1.ApplyOptions{FieldManager: "kubectl", Force: true})
			return err
		}
		refused := strings.Contains(fmt.Sprint(apply()), "spec.preserveUnknownFields: Invalid value: true")
		if hasDefaults := name == "storageversionmigrations.migration.k8s.io"; refused != hasDefaults {
			t.Errorf("the definition %s is refused: %t, want %t", name, refused, hasDefaults)
		}
		// docs/install.md has this patch.
		patch := []byte(`{"spec":{"preserveUnknownFields":false}}`)
		if _, err := definitions.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := apply(); err != nil {
			t.Error(err)
		}
	}
}
