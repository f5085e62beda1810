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

package svmigrator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const (
	// finishedTTL is how long the managers of these tests keep migrations that have ended. It is long enough to read them
	// before, also on a busy machine.
	finishedTTL = 30 * time.Second
	// migrator is how the migrator calls itself in managedFields.
	migrator = "storage-version-migrator"
)

// testTidy is what the migrator clears away when its work is done.
func testTidy(t *testing.T, c *cluster) {
	t.Run("managed fields", func(t *testing.T) { testManagedFields(t, c) })
	t.Run("migrations that have ended", func(t *testing.T) { testExpiry(t, c) })
}

// testExpiry wants migrations that have ended to go after a time, also one that names denied objects.
func testExpiry(t *testing.T, c *cluster) {
	plain, guarded := newCustom("plains", "Plain"), newCustom("guardeds", "Guarded")
	for _, r := range []custom{plain, guarded} {
		c.define(t, r)
		c.fill(t, r, strings.ToLower(r.kind), 10)
		c.flip(t, r, "v2")
	}
	c.seal(t, guarded, "object.metadata.name == 'guarded-00004'", "guarded-00004")
	manager := c.startManager(t, "expiry",
		"--finished-migration-ttl="+finishedTTL.String(), "--feature-gates=StatusSubresourceFallback=false")
	c.migrate(t, "guarded", guarded.WithVersion(""))
	c.migrate(t, "plain", plain.WithVersion(""))
	ended := c.allEnded(t, "guarded", "plain")
	mustFail(t, ended["guarded"], v1alpha1.MigrationReasonObjectsDenied, "guarded-00004")
	mustSucceed(t, ended["plain"])
	c.expires(t, ended["guarded"])
	c.expires(t, ended["plain"])
	framework.StopManager(t, manager)
}

// allEnded is ended for several migrations. It keeps each one as soon as that has ended, because soon it is deleted.
func (c *cluster) allEnded(t *testing.T, names ...string) map[string]*v1alpha1.StorageVersionMigration {
	t.Helper()
	ended := map[string]*v1alpha1.StorageVersionMigration{}
	framework.Eventually(t, soon, func(ctx context.Context) (err error) {
		for _, name := range names {
			if ended[name] != nil {
				continue
			}
			m, failure := c.fetch(ctx, name)
			switch {
			case failure != nil:
				err = failure
			case !m.Finished():
				err = fmt.Errorf("%s has not ended", words(m))
			default:
				ended[name] = m
			}
		}
		return err
	})
	for _, m := range ended {
		checkEnd(t, m)
	}
	return ended
}

// expires waits until a migration is deleted, and wants that to be at its time.
func (c *cluster) expires(t *testing.T, m *v1alpha1.StorageVersionMigration) {
	t.Helper()
	framework.Eventually(t, finishedTTL+atOnce, func(ctx context.Context) error {
		if _, err := c.fetch(ctx, m.Name); !apierrors.IsNotFound(err) {
			return fmt.Errorf("%s is still there (%v)", m.Name, err)
		}
		return nil
	})
	if lived := time.Since(m.Status.CompletionTime.Time); lived < finishedTTL {
		t.Errorf("%s was deleted %v after its end", m.Name, lived)
	}
}

// testManagedFields has objects that were applied at a version which the definition has no more: nobody can apply them
// again.
func testManagedFields(t *testing.T, c *cluster) {
	// Another resource of the group goes on to have the version.
	c.define(t, newCustom("bystanders", "Bystander"))
	things := newCustom("things", "Thing")
	c.define(t, things)
	if err := c.apply(t.Context(), things, "v1", "only", "first"); err != nil {
		t.Fatal(err)
	}
	if err := c.apply(t.Context(), things, "v1", "both", "first"); err != nil {
		t.Fatal(err)
	}
	c.touch(t, things, "both")
	c.flip(t, things, "v2")
	c.touch(t, things, "current")

	plain := c.startManager(t, "plain")
	c.migrate(t, "things", things.WithVersion(""))
	mustSucceed(t, c.ended(t, "things", soon))
	c.ChangeDefinition(t, things.GroupResource, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Versions = d.Spec.Versions[1:]
	})
	framework.Eventually(t, soon, func(ctx context.Context) error {
		for _, name := range []string{"only", "both"} {
			// Dry: one that is done before the server notices the change would put things right.
			err := c.apply(ctx, things, "v2", name, "second", metav1.DryRunAll)
			if err == nil || !strings.Contains(err.Error(), things.encoding("v1")) {
				return fmt.Errorf("applying %s without a cleaning is answered with: %v", name, err)
			}
		}
		return nil
	})

	t.Run("without the gate", func(t *testing.T) {
		judge := c.judge(t, things.GroupResource)
		c.migrate(t, "without-gate", things.WithVersion(""))
		m := c.ended(t, "without-gate", soon)
		mustSucceed(t, m)
		progress(t, m, v1alpha1.MigrationProgress{AlreadyCurrent: 3})
		judge.onlyEncodings(t, 0)
	})
	framework.StopManager(t, plain)

	t.Run("with the gate", func(t *testing.T) { testCleaning(t, c, things) })
	t.Run("started by the trigger", func(t *testing.T) { testTriggeredCleaning(t, c) })
	t.Run("a version that is served again", func(t *testing.T) { testServedAgain(t, c) })
}

// testTriggeredCleaning drops a version, and wants the trigger to have its entries cleaned. Nobody creates a migration.
func testTriggeredCleaning(t *testing.T, c *cluster) {
	const n = 5
	tools := newCustom("tools", "Tool")
	c.define(t, tools)
	for i := range n {
		if err := c.apply(t.Context(), tools, "v1", fmt.Sprintf("tool-%d", i), "first"); err != nil {
			t.Fatal(err)
		}
	}
	c.flip(t, tools, "v2")
	manager := c.startManager(t, "triggered", "--controllers=*", "--auto-migrate=tools."+tools.Group,
		"--feature-gates=CRDManagedFieldsCleaning=true")
	framework.Eventually(t, soon, func(ctx context.Context) error { return c.safe(ctx, tools, "v2") })
	framework.Eventually(t, soon, func(ctx context.Context) error {
		return c.managedFields(ctx, tools, metav1.ConditionTrue, v1alpha1.ManagedFieldsVersion{Version: "v1", Objects: n},
			v1alpha1.ManagedFieldsVersion{Version: "v2"})
	})
	c.ChangeDefinition(t, tools.GroupResource, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Versions = d.Spec.Versions[1:]
	})
	framework.Eventually(t, soon, func(ctx context.Context) error {
		return c.managedFields(ctx, tools, metav1.ConditionTrue, v1alpha1.ManagedFieldsVersion{Version: "v2", Objects: n})
	})
	if err := c.safe(t.Context(), tools, "v2"); err != nil {
		t.Error(err)
	}
	for i := range n {
		if err := c.apply(t.Context(), tools, "v2", fmt.Sprintf("tool-%d", i), "second"); err != nil {
			t.Errorf("applying after the cleaning: %v", err)
		}
	}
	framework.During(t, 3*settle, func(context.Context) error {
		if made := len(c.migrationsOf(t, tools)); made != 2 {
			return fmt.Errorf("there are %d migrations, want one for the encoding and one for the cleaning", made)
		}
		return nil
	})
	framework.StopManager(t, manager)
}

// testServedAgain has a version served again in the middle of a cleaning. From then on its entries stay, also those of
// objects that were listed before.
func testServedAgain(t *testing.T, c *cluster) {
	const objects, chunk = 100, 20
	shelves := newCustom("shelves", "Shelf")
	c.define(t, shelves)
	for i := range objects {
		if err := c.apply(t.Context(), shelves, "v1", fmt.Sprintf("shelf-%03d", i), "first"); err != nil {
			t.Fatal(err)
		}
	}
	c.flip(t, shelves, "v2")
	serve := func(served bool) {
		c.ChangeDefinition(t, shelves.GroupResource, func(d *apiextensionsv1.CustomResourceDefinition) {
			d.Spec.Versions[0].Served = served
		})
	}
	serve(false)
	manager := c.startManager(t, "served-again", "--feature-gates=CRDManagedFieldsCleaning=true",
		fmt.Sprintf("--migration-chunk-size=%d", chunk), "--max-rewrites-per-second=3")
	c.migrate(t, "served-again", shelves.WithVersion(""))
	c.processed(t, "served-again", chunk)
	serve(true)
	framework.Eventually(t, soon, func(context.Context) error {
		if !strings.Contains(manager.Log(), "Migration continues") {
			return errors.New("the run goes on")
		}
		return nil
	})
	list := func() *unstructured.UnstructuredList {
		all, err := c.at(shelves, "v2").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	known := list().GetResourceVersion()
	mustSucceed(t, c.ended(t, "served-again", soon))
	var later, cleaned int
	for _, object := range list().Items {
		order, err := resourceversion.CompareResourceVersion(object.GetResourceVersion(), known)
		if err != nil {
			t.Fatal(err)
		}
		if order <= 0 {
			continue
		}
		later++
		if !slices.ContainsFunc(object.GetManagedFields(), func(entry metav1.ManagedFieldsEntry) bool {
			return entry.APIVersion == shelves.encoding("v1")
		}) {
			cleaned++
		}
	}
	if later == 0 || cleaned > 0 {
		t.Errorf("of %d objects that were rewritten when v1 was served again %d lost its entry", later, cleaned)
	}
	framework.StopManager(t, manager)
}

// managedFields complains unless the state says that about managedFields.
func (c *cluster) managedFields(
	ctx context.Context, r custom, status metav1.ConditionStatus, counts ...v1alpha1.ManagedFieldsVersion,
) error {
	state, err := c.Migration.MigrationV1alpha1().StorageStates().Get(ctx, r.String(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	served := meta.FindStatusCondition(state.Status.Conditions, v1alpha1.StorageStateManagedFieldsServed)
	if served == nil || served.Status != status || !slices.Equal(state.Status.ManagedFieldsVersions, counts) {
		return fmt.Errorf("the condition is %+v, and the counts are %+v", served, state.Status.ManagedFieldsVersions)
	}
	return nil
}

// testCleaning wants the entries of the dropped version gone, those of others as they were, and server-side apply to
// work.
func testCleaning(t *testing.T, c *cluster, things custom) {
	manager := c.startManager(t, "cleaning", "--feature-gates=CRDManagedFieldsCleaning=true")
	before := map[string]*unstructured.Unstructured{}
	for _, name := range []string{"only", "both", "current"} {
		before[name] = c.thing(t, things, name)
	}
	c.migrate(t, "with-gate", things.WithVersion(""))
	m := c.ended(t, "with-gate", soon)
	mustSucceed(t, m)
	progress(t, m, v1alpha1.MigrationProgress{Rewritten: 2, AlreadyCurrent: 1})

	want := map[string][]metav1.ManagedFieldsEntry{"current": before["current"].GetManagedFields()}
	for _, entry := range before["both"].GetManagedFields() {
		if entry.APIVersion == things.encoding("v2") {
			want["both"] = append(want["both"], entry)
		}
	}
	created := before["only"].GetCreationTimestamp()
	want["only"] = []metav1.ManagedFieldsEntry{{
		Manager: migrator, Operation: metav1.ManagedFieldsOperationApply, APIVersion: things.encoding("v2"), Time: &created,
		FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:name":{}}}`),
	}}
	for name, was := range before {
		now := c.thing(t, things, name)
		if diff := cmp.Diff(want[name], now.GetManagedFields()); diff != "" {
			t.Errorf("the managed fields of %s (-want +got):\n%s", name, diff)
		}
		for _, object := range []*unstructured.Unstructured{was, now} {
			object.SetManagedFields(nil)
			object.SetResourceVersion("")
		}
		if diff := cmp.Diff(was, now); diff != "" {
			t.Errorf("%s (-before +after):\n%s", name, diff)
		}
		// Whoever applied the payload before owns it again, and takes it away by not applying it.
		for _, payload := range []string{"second", ""} {
			if err := c.apply(t.Context(), things, "v2", name, payload); err != nil {
				t.Errorf("applying %s after the cleaning: %v", name, err)
			}
			got, _, err := unstructured.NestedString(c.thing(t, things, name).Object, "spec", "payload")
			if err != nil || got != payload {
				t.Errorf("%s was applied with the payload %q and has %q (%v)", name, payload, got, err)
			}
		}
	}
	framework.StopManager(t, manager)
}

func (c *cluster) thing(t *testing.T, r custom, name string) *unstructured.Unstructured {
	t.Helper()
	object, err := c.at(r, "v2").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// apply applies an object with that payload, or without one.
func (c *cluster) apply(ctx context.Context, r custom, version, name, payload string, dryRun ...string) error {
	object := r.object(name)
	object.SetAPIVersion(r.encoding(version))
	object.Object["spec"] = map[string]any{"applied": true}
	if payload != "" {
		object.Object["spec"] = map[string]any{"applied": true, "payload": payload}
	}
	options := metav1.ApplyOptions{FieldManager: "applier", Force: true, DryRun: dryRun}
	_, err := c.at(r, version).Apply(ctx, name, object, options)
	return err
}

// touch has somebody at v2 own a field of an object, which is made if there is none.
func (c *cluster) touch(t *testing.T, r custom, name string) {
	t.Helper()
	object := r.object(name)
	object.SetAPIVersion(r.encoding("v2"))
	object.Object["spec"] = map[string]any{"touched": true}
	if _, err := c.at(r, "v2").Apply(t.Context(), name, object, metav1.ApplyOptions{FieldManager: "toucher"}); err != nil {
		t.Fatal(err)
	}
}
