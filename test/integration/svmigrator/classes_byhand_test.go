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
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const (
	toolCount = 60
	pinCount  = 40
	beadCount = 90

	// definitionComes is how long a resource that nobody serves is waited for: its definition may be created with the
	// migration.
	definitionComes = 15 * time.Second
)

// testMadeByHand has migrations as people make them, well and badly.
func testMadeByHand(t *testing.T, c *cluster) {
	tools, pins, beads := newCustom("tools", "Tool"), newCustom("pins", "Pin"), newCustom("beads", "Bead")
	for r, n := range map[custom]int{tools: toolCount, pins: pinCount, beads: beadCount} {
		c.define(t, r)
		c.fill(t, r, strings.ToLower(r.kind), n)
		c.flip(t, r, "v2")
	}
	var manager *controlplane.Process
	if !t.Run("a continue token that means nothing in the status", func(t *testing.T) {
		manager = testNonsenseInStatus(t, c, beads, pins)
	}) {
		return
	}
	t.Run("what cannot be migrated", func(t *testing.T) { testImpossible(t, c, tools) })
	t.Run("a subresource", func(t *testing.T) { testSubresource(t, c, tools) })

	judge := c.judge(t, tools.GroupResource)
	t.Run("a target that is not written", func(t *testing.T) {
		c.migrateWith(t, "target", tools.WithVersion(""), func(m *v1alpha1.StorageVersionMigration) {
			m.Spec.Target = &v1alpha1.MigrationTarget{
				StorageVersionHash: storageversion.Hash(
					tools.WithVersion("v1").GroupVersion(), tools.kind,
				), EncodingVersion: tools.encoding("v1"),
			}
		})
		m := c.ended(t, "target", atOnce)
		mustFail(t, m, v1alpha1.MigrationReasonTargetChanged, tools.encoding("v2"), tools.encoding("v1"))
		judge.onlyEncodings(t, 0)
	})
	t.Run("a continue token that means nothing, of other controllers", func(t *testing.T) {
		c.migrateWith(
			t, "token", tools.WithVersion(""), func(m *v1alpha1.StorageVersionMigration) { m.Spec.ContinueToken = "nonsense" },
		)
		m := c.ended(t, "token", soon)
		mustSucceed(t, m)
		progress(t, m, v1alpha1.MigrationProgress{Rewritten: toolCount})
		judge.stored(t, tools.encoding("v2"))
		judge.onlyEncodings(t, 1)
	})
	t.Run("a version that is not the storage version", func(t *testing.T) {
		c.migrate(t, "version", tools.WithVersion("v1"))
		m := c.ended(t, "version", soon)
		mustSucceed(t, m)
		progress(t, m, v1alpha1.MigrationProgress{AlreadyCurrent: toolCount})
		judge.stored(t, tools.encoding("v2"))
		judge.onlyEncodings(t, 1)
	})
	t.Run("the target that is written", func(t *testing.T) {
		c.migrateWith(t, "same-target", tools.WithVersion(""), func(m *v1alpha1.StorageVersionMigration) {
			m.Spec.Target = &v1alpha1.MigrationTarget{
				StorageVersionHash: storageversion.Hash(tools.WithVersion("v2").GroupVersion(), tools.kind),
			}
		})
		m := c.ended(t, "same-target", soon)
		mustSucceed(t, m)
		progress(t, m, v1alpha1.MigrationProgress{AlreadyCurrent: toolCount})
	})
	framework.StopManager(t, manager)
	t.Run("a version that is withdrawn on the way", func(t *testing.T) { testWithdrawn(t, c, beads) })
}

// testWithdrawn withdraws the version that a migration names. The objects are written at their storage version.
func testWithdrawn(t *testing.T, c *cluster, r custom) {
	c.startManager(t, "slow", "--migration-chunk-size=5", "--max-rewrites-per-second=4")
	c.flip(t, r, "v1")
	c.migrate(t, "withdrawn", r.WithVersion("v2"))
	c.processed(t, "withdrawn", 5)
	c.ChangeDefinition(t, r.GroupResource, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Spec.Versions[1].Served = false
	})
	mustSucceed(t, c.ended(t, "withdrawn", soon))
	if versions := c.storedVersions(t, r); !sameStrings(versions, "v1") {
		t.Errorf("status.storedVersions is %v", versions)
	}
}

// testImpossible wants an answer at once to what will never be possible, and not a wait without an end.
func testImpossible(t *testing.T, c *cluster, served custom) {
	tests := []struct {
		name     string
		resource schema.GroupVersionResource
		reason   string
		says     []string
	}{
		{
			"version-not-served",
			served.WithVersion("v9"),
			v1alpha1.MigrationReasonVersionNotServed,
			[]string{`"v9"`, `["v2" "v1"]`, "without a version"},
		},
		{
			"no-such-resource",
			schema.GroupVersionResource{Group: served.Group, Resource: "nothings"},
			v1alpha1.MigrationReasonResourceNotServed,
			[]string{"nothings." + served.Group, "Check spec.resource"},
		},
		{
			"no-such-group",
			schema.GroupVersionResource{Group: "nowhere.test", Version: "v1", Resource: "nothings"},
			v1alpha1.MigrationReasonResourceNotServed,
			[]string{"nothings.nowhere.test", "Check spec.resource"},
		},
		{
			"group-forgotten",
			schema.GroupVersionResource{Resource: "deployments"},
			v1alpha1.MigrationReasonResourceNotServed,
			[]string{"deployments", "Check spec.resource", "group"},
		},
		{
			"token-reviews",
			authenticationv1.SchemeGroupVersion.WithResource("tokenreviews"),
			v1alpha1.MigrationReasonVerbsNotSupported,
			[]string{"tokenreviews.authentication.k8s.io"},
		},
		{
			"bindings",
			schema.GroupVersionResource{Version: "v1", Resource: "bindings"},
			v1alpha1.MigrationReasonVerbsNotSupported,
			[]string{"bindings"},
		},
	}
	for _, test := range tests {
		c.migrate(t, test.name, test.resource)
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			within := atOnce
			if test.reason == v1alpha1.MigrationReasonResourceNotServed {
				within += definitionComes
			}
			m := c.ended(t, test.name, within)
			mustFail(t, m, test.reason, test.says...)
			if m.Status.StartTime != nil {
				t.Errorf("%s says that it started", words(m))
			}
			after := m.Status.CompletionTime.Sub(m.CreationTimestamp.Time)
			if test.reason == v1alpha1.MigrationReasonResourceNotServed && after < impatient {
				t.Errorf("after %v already: %s", after, words(m))
			}
			c.said(t, test.name, "MigrationFailed", 1, test.reason)
		})
	}
}

func testSubresource(t *testing.T, c *cluster, r custom) {
	m := &v1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "subresource"}}
	m.Spec.Resource = v1alpha1.GroupVersionResource{Group: r.Group, Version: "v1", Resource: r.Resource + "/status"}
	_, err := c.Migrations().Create(t.Context(), m, metav1.CreateOptions{})
	if err == nil || !strings.Contains(err.Error(), "a subresource is stored with its resource") {
		t.Errorf("creating a migration of a subresource is answered with: %v", err)
	}
}

// testNonsenseInStatus has somebody change the continue token of a migration on its way, and of one that has not begun,
// while no manager runs. It returns the manager that runs afterwards.
func testNonsenseInStatus(t *testing.T, c *cluster, begun, fresh custom) *controlplane.Process {
	begunJudge, freshJudge := c.judge(t, begun.GroupResource), c.judge(t, fresh.GroupResource)
	slow := c.startManager(t, "slow", "--migration-chunk-size=20", "--max-rewrites-per-second=2")
	c.migrate(t, "begun", begun.WithVersion(""))
	c.processed(t, "begun", 20)
	framework.StopManager(t, slow)
	c.migrate(t, "fresh", fresh.WithVersion(""))
	before := c.tamper(t, "begun", v1alpha1.MigrationProgress{})
	c.tamper(t, "fresh", v1alpha1.MigrationProgress{Processed: 7, Rewritten: 7})
	t.Logf("the manager was stopped at %s", words(before))
	encoded := int64(c.encodings(t, begun.GroupResource)[begun.encoding("v2")])

	manager := c.startManager(t, "manager", "--migration-chunk-size=20", "--max-rewrites-per-second=20")
	m := c.ended(t, "begun", soon)
	mustSucceed(t, m)
	begunJudge.stored(t, begun.encoding("v2"))
	begunJudge.onlyEncodings(t, 1)
	// Those that were written before are newer than the baseline, whoever wrote them.
	progress(t, m, v1alpha1.MigrationProgress{Rewritten: beadCount - encoded, WrittenByOthers: encoded})
	if before.Status.StartTime == nil || !m.Status.StartTime.Equal(before.Status.StartTime) {
		t.Errorf("%s does not say that it started at %v", words(m), before.Status.StartTime)
	}

	m = c.ended(t, "fresh", soon)
	mustSucceed(t, m)
	freshJudge.stored(t, fresh.encoding("v2"))
	freshJudge.onlyEncodings(t, 1)
	progress(t, m, v1alpha1.MigrationProgress{Rewritten: pinCount})
	return manager
}

// tamper sets a continue token in the status of a migration that no server gave, with these counters where it has none.
func (c *cluster) tamper(
	t *testing.T, name string, counters v1alpha1.MigrationProgress,
) *v1alpha1.StorageVersionMigration {
	t.Helper()
	var m *v1alpha1.StorageVersionMigration
	framework.Eventually(t, atOnce, func(ctx context.Context) (err error) {
		if m, err = c.fetch(ctx, name); err != nil {
			return err
		}
		changed := m.DeepCopy()
		if changed.Status.Progress == nil {
			changed.Status.Progress = &counters
		}
		changed.Status.Progress.ContinueToken = "nonsense"
		_, err = c.Migrations().UpdateStatus(ctx, changed, metav1.UpdateOptions{})
		return err
	})
	return m
}
