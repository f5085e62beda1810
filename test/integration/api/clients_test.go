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
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	migrationac "sigs.k8s.io/svm-api/client/applyconfiguration/migration/v1alpha1"
	"sigs.k8s.io/svm-api/client/informers/externalversions"
	"sigs.k8s.io/svm-api/migration/v1alpha1"
)

// The API module's fixtures have every field set. None may be pruned, defaulted or changed on the way.
func TestNoFieldIsPruned(t *testing.T) {
	t.Cleanup(func() { shared.clear(t) })
	var migration v1alpha1.StorageVersionMigration
	fixture(t, "StorageVersionMigration", &migration)
	var state v1alpha1.StorageState
	fixture(t, "StorageState", &state)
	ignored := cmp.Options{cmpopts.IgnoreTypes(metav1.TypeMeta{}, metav1.ObjectMeta{})}
	ctx, client := t.Context(), shared.migration.MigrationV1alpha1()

	gotMigration, err := client.StorageVersionMigrations().Create(ctx, &migration, strictCreate)
	if err != nil {
		t.Fatal(err)
	}
	gotMigration.Status = migration.Status
	if _, err = client.StorageVersionMigrations().UpdateStatus(ctx, gotMigration, strictUpdate); err != nil {
		t.Fatal(err)
	}
	if gotMigration, err = client.StorageVersionMigrations().Get(ctx, migration.Name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&migration, gotMigration, ignored); diff != "" {
		t.Errorf("the API server stored another migration (-sent +got):\n%s", diff)
	}

	gotState, err := client.StorageStates().Create(ctx, &state, strictCreate)
	if err != nil {
		t.Fatal(err)
	}
	gotState.Status = state.Status
	if _, err = client.StorageStates().UpdateStatus(ctx, gotState, strictUpdate); err != nil {
		t.Fatal(err)
	}
	if gotState, err = client.StorageStates().Get(ctx, state.Name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&state, gotState, ignored); diff != "" {
		t.Errorf("the API server stored another state (-sent +got):\n%s", diff)
	}
}

func fixture(t *testing.T, kind string, into any) {
	t.Helper()
	convert(t, objectsIn(t, filepath.Join(fixtures, "wire", kind+".yaml"))[0], into)
}

func TestSpecAndStatusAreWrittenApart(t *testing.T) {
	t.Cleanup(func() { shared.clear(t) })
	ctx, client := t.Context(), shared.migration.MigrationV1alpha1().StorageVersionMigrations()
	created, err := client.Create(ctx, &v1alpha1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pods-"},
		Spec:       v1alpha1.StorageVersionMigrationSpec{Resource: v1alpha1.GroupVersionResource{Resource: "pods"}},
		Status:     v1alpha1.StorageVersionMigrationStatus{BaselineResourceVersion: "1"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if created.Status.BaselineResourceVersion != "" {
		t.Error("creating wrote the status")
	}
	created.Spec.ContinueToken, created.Status.BaselineResourceVersion = "token", "2"
	updated, err := client.UpdateStatus(ctx, created, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if updated.Spec.ContinueToken != "" || updated.Status.BaselineResourceVersion != "2" {
		t.Errorf("updating the status left token %q and baseline %q",
			updated.Spec.ContinueToken, updated.Status.BaselineResourceVersion)
	}
	if updated.Generation != created.Generation {
		t.Error("updating the status raised the generation")
	}
	updated.Spec.ContinueToken, updated.Status.BaselineResourceVersion = "token", "3"
	if updated, err = client.Update(ctx, updated, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if updated.Spec.ContinueToken != "token" || updated.Status.BaselineResourceVersion != "2" {
		t.Errorf("updating left token %q and baseline %q", updated.Spec.ContinueToken, updated.Status.BaselineResourceVersion)
	}
}

// TestMigrationsOfOneResource has the API server select migrations by their resource.
func TestMigrationsOfOneResource(t *testing.T) {
	t.Cleanup(func() { shared.clear(t) })
	ctx, client := t.Context(), shared.migration.MigrationV1alpha1().StorageVersionMigrations()
	for name, resource := range map[string]v1alpha1.GroupVersionResource{
		"core": {Resource: "events"}, "group": {Group: "events.k8s.io", Resource: "events"}, "other": {Resource: "pods"},
	} {
		migration := &v1alpha1.StorageVersionMigration{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.StorageVersionMigrationSpec{Resource: resource},
		}
		if _, err := client.Create(ctx, migration, strictCreate); err != nil {
			t.Fatal(err)
		}
	}
	for selector, want := range map[string]string{
		"spec.resource.resource=pods":                                     "other",
		"spec.resource.resource=events,spec.resource.group=events.k8s.io": "group",
		"spec.resource.resource=events,spec.resource.group=":              "core",
	} {
		list, err := client.List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 1 || list.Items[0].Name != want {
			t.Errorf("%s selects %d migrations, the first is %+v, want only %s", selector, len(list.Items), list.Items, want)
		}
	}
}

// Two controllers apply to one status: each owns its conditions, and nobody takes the other's away.
func TestApplyMergesByOwner(t *testing.T) {
	t.Cleanup(func() { shared.clear(t) })
	ctx, client := t.Context(), shared.migration.MigrationV1alpha1()
	resource := migrationac.GroupResource().WithGroup("apps").WithResource("deployments")
	if _, err := client.StorageStates().Apply(ctx,
		migrationac.StorageState("deployments.apps").WithSpec(migrationac.StorageStateSpec().WithResource(resource)),
		metav1.ApplyOptions{FieldManager: "creator"}); err != nil {
		t.Fatal(err)
	}
	applyCondition := func(owner, conditionType string) *v1alpha1.StorageState {
		t.Helper()
		state, err := client.StorageStates().ApplyStatus(ctx,
			migrationac.StorageState("deployments.apps").WithStatus(migrationac.StorageStateStatus().
				WithConditions(metav1ac.Condition().WithType(conditionType).WithStatus(metav1.ConditionTrue).
					WithReason("Tested").WithMessage("").WithLastTransitionTime(metav1.Unix(0, 0)))),
			metav1.ApplyOptions{FieldManager: owner})
		if err != nil {
			t.Fatal(err)
		}
		return state
	}
	applyCondition("one", v1alpha1.StorageStateAgreed)
	state := applyCondition("other", v1alpha1.StorageStateMigrated)
	if len(state.Status.Conditions) != 2 {
		t.Errorf("conditions are %v, want those of both owners", state.Status.Conditions)
	}
	extracted, err := migrationac.ExtractStorageStateStatus(state, "one")
	if err != nil {
		t.Fatal(err)
	}
	if len(extracted.Status.Conditions) != 1 || *extracted.Status.Conditions[0].Type != v1alpha1.StorageStateAgreed {
		t.Errorf("what one owner applied reads as %+v", extracted.Status.Conditions)
	}

	denied := migrationac.StorageVersionMigrationStatus().WithDeniedObjects(
		migrationac.DeniedObject().WithName("a").WithUID(types.UID("u")),
		migrationac.DeniedObject().WithNamespace("b").WithName("a"))
	if _, err := client.StorageVersionMigrations().Create(ctx, &v1alpha1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: "m"},
		Spec:       v1alpha1.StorageVersionMigrationSpec{Resource: v1alpha1.GroupVersionResource{Resource: "pods"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	migration, err := client.StorageVersionMigrations().ApplyStatus(ctx,
		migrationac.StorageVersionMigration("m").WithStatus(denied), metav1.ApplyOptions{FieldManager: "one"})
	if err != nil {
		t.Fatal(err)
	}
	if len(migration.Status.DeniedObjects) != 2 {
		t.Errorf("denied objects are %v", migration.Status.DeniedObjects)
	}
}

// Evidence is one proof: who applies another replaces all of it, and is told so first.
func TestApplyNeverMixesEvidence(t *testing.T) {
	t.Cleanup(func() { shared.clear(t) })
	ctx, client := t.Context(), shared.migration.MigrationV1alpha1().StorageStates()
	if _, err := client.Create(ctx, &v1alpha1.StorageState{
		ObjectMeta: metav1.ObjectMeta{Name: "pods"},
		Spec:       v1alpha1.StorageStateSpec{Resource: v1alpha1.GroupResource{Resource: "pods"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	apply := func(
		evidence *migrationac.StorageEvidenceApplyConfiguration, options metav1.ApplyOptions,
	) (*v1alpha1.StorageState, error) {
		return client.ApplyStatus(ctx, migrationac.StorageState("pods").WithStatus(
			migrationac.StorageStateStatus().WithEvidence(evidence)), options)
	}
	if _, err := apply(migrationac.StorageEvidence().WithSource(v1alpha1.EvidenceFromServerDiscovery).
		WithServers(migrationac.ServerEvidence().WithIdentity("a").WithStorageVersionHash("h=")).
		WithEndpoints(migrationac.EndpointEvidence().WithAddress("192.0.2.1:443")),
		metav1.ApplyOptions{FieldManager: "one"}); err != nil {
		t.Fatal(err)
	}
	other := migrationac.StorageEvidence().WithSource(v1alpha1.EvidenceFromServerDiscovery).
		WithServers(migrationac.ServerEvidence().WithIdentity("b"))
	if _, err := apply(other, metav1.ApplyOptions{FieldManager: "other"}); !apierrors.IsConflict(err) {
		t.Errorf("got %v, want a conflict", err)
	}
	state, err := apply(other, metav1.ApplyOptions{FieldManager: "other", Force: true})
	if err != nil {
		t.Fatal(err)
	}
	want := &v1alpha1.StorageEvidence{
		Source:  v1alpha1.EvidenceFromServerDiscovery,
		Servers: []v1alpha1.ServerEvidence{{Identity: "b"}},
	}
	if diff := cmp.Diff(want, state.Status.Evidence); diff != "" {
		t.Errorf("evidence after the second proof (-want +got):\n%s", diff)
	}
}

func TestInformersAndListers(t *testing.T) {
	t.Cleanup(func() { shared.clear(t) })
	ctx, cancel := context.WithCancel(t.Context())
	factory := externalversions.NewSharedInformerFactory(shared.migration, 0)
	t.Cleanup(factory.Shutdown)
	t.Cleanup(cancel)
	migrations := factory.Migration().V1alpha1().StorageVersionMigrations().Lister()
	states := factory.Migration().V1alpha1().StorageStates().Lister()
	factory.Start(ctx.Done())
	for informer, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			t.Fatalf("%v did not sync", informer)
		}
	}
	for _, object := range objectsIn(t, filepath.Join(fixtures, "kube-storage-version-migrator", "*.yaml")) {
		shared.createWithStatus(t, object)
	}
	if err := poll(ctx, func(context.Context) (bool, error) {
		running, err := migrations.Get("v1.secrets-hm9wd")
		if err != nil || len(running.Status.Conditions) != 1 || running.Status.Conditions[0].Status != corev1.ConditionTrue {
			return false, nil
		}
		flapping, err := states.Get("widgets.example.com")
		return err == nil && len(flapping.Status.PersistedStorageVersionHashes) == 3, nil
	}); err != nil {
		t.Error("the listers do not show what was created")
	}
	if all, err := states.List(labels.Everything()); err != nil || len(all) == 0 {
		t.Errorf("listing gives %d states (%v)", len(all), err)
	}
}
