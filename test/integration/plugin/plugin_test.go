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

package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-api/migration/crds"
	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const widgetCount = 50

// definition stores the widgets in a version.
func definition(storage string) string {
	var versions []string
	for _, version := range []string{"v1", "v2"} {
		versions = append(versions, fmt.Sprintf("{name: %s, served: true, storage: %t, schema: "+
			"{openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}", version, version == storage))
	}
	return `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wi]}
  versions: [` + strings.Join(versions, ", ") + "]"
}

const (
	policy = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: payroll-is-frozen}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [example.com], apiVersions: ["*"], operations: [UPDATE], resources: [widgets]}]
  validations: [{expression: "object.metadata.name != 'widget-7'", message: frozen until the audit is over}]
`
	binding = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: payroll-is-frozen}
spec: {policyName: payroll-is-frozen, validationActions: [Deny]}
`
)

// TestPlugin follows the widgets through their life. Each step begins where the last one ended, some with another
// manager, which works at that pace.
func TestPlugin(t *testing.T) {
	c := startCluster(t)
	for _, step := range []struct {
		name, pace string
		run        func(t *testing.T, c *cluster)
	}{
		{"definitions are missing, or of others", "", testDefinitions},
		{"no manager runs", "", testNoManager},
		{"the first migration", quickly, testFirstMigration},
		{"a name that is wrong", "", testMisspelt},
		{"a resource that the trigger leaves out", "", testLeftOut},
		{"pause and resume", barely, testPause},
		{"suspend and resume", "", testSuspend},
		{"denied objects and retry", quickly, testDenied},
		{"migrate", "", testMigrate},
		{"a definition is deleted", "", testDeleted},
		{"people without permissions", "", testStranger},
		{"people with the roles of the manifests", "", testPeople},
		{"names and completion", "", testNames},
		{"colour", "", testColour},
		{"the manager ends", "", testManagerEnds},
	} {
		if step.pace != "" {
			c.startManager(t, step.pace)
		}
		if !t.Run(step.name, func(t *testing.T) { step.run(t, c) }) {
			return
		}
	}
}

func testDefinitions(t *testing.T, c *cluster) {
	for _, verb := range []string{"status", "plan", "history", "denied"} {
		c.svm(t, verb).must(t, 1).tell(t, "does not serve storagestates.migration.k8s.io",
			"If svm-controller-manager is installed there, apply build/manifests/crds")
	}
	definitions, err := crds.Objects()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range definitions { // Those of kube-storage-version-migrator have few fields.
		versions, _, _ := unstructured.NestedSlice(d.Object, "spec", "versions")
		version := versions[0].(map[string]any)
		for _, part := range []string{"spec", "status"} {
			unstructured.RemoveNestedField(version, "schema", "openAPIV3Schema", "properties", part, "x-kubernetes-validations")
		}
		unstructured.RemoveNestedField(version, "schema", "openAPIV3Schema", "x-kubernetes-validations")
		unstructured.RemoveNestedField(version,
			"schema", "openAPIV3Schema", "properties", "status", "properties", "currentSinceTime")
		unstructured.RemoveNestedField(version,
			"schema", "openAPIV3Schema", "properties", "spec", "properties", "suspend")
		_ = unstructured.SetNestedSlice(d.Object, []any{version}, "spec", "versions")
		data, err := json.Marshal(d.Object)
		if err != nil {
			t.Fatal(err)
		}
		c.apply(t, string(data))
	}
	framework.Eventually(t, soon, func(context.Context) error {
		if answer := c.svm(t, "status"); !strings.Contains(answer.err, "or it belongs to kube-storage-version-migrator") {
			return fmt.Errorf("it does not tell that the definitions are of others: %s", answer)
		}
		return nil
	})
	c.svm(t, "status").must(t, 1).tell(t, "or it belongs to kube-storage-version-migrator")
	c.kubectl(t, administrator, "", "apply", "--server-side", "--force-conflicts", "-k", root+"/build/manifests/crds").
		must(t, 0)
	framework.Eventually(t, soon, func(context.Context) error {
		if answer := c.svm(t, "status"); answer.code == 1 {
			return fmt.Errorf("the definitions are right now: %s", answer)
		}
		return nil
	})
}

func testNoManager(t *testing.T, c *cluster) {
	c.svm(t, "status").must(t, 2, "NotObserved", "No manager seems to run: none holds its lease", "Not safe",
		"docs/install.md says how to install one")
}

func testFirstMigration(t *testing.T, c *cluster) {
	c.apply(t, definition("v1"))
	var objects []string
	for i := range widgetCount {
		objects = append(objects, fmt.Sprintf(
			"apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: widget-%d, namespace: default}", i))
	}
	framework.Eventually(t, soon, func(context.Context) error {
		answer := c.kubectl(t, administrator, strings.Join(objects, "\n---\n"), "apply", "-f", "-")
		if answer.code != 0 {
			return fmt.Errorf("creating widgets: %s", answer)
		}
		return nil
	})
	done := c.svm(t, "status", "wi", "--watch", patiently).must(t, 0,
		"Safe to remove old versions: every object of widgets.example.com", " leads.",
		"Before an upgrade, ask about all: kubectl svm status.")
	if strings.Contains(done.out, "widgets.example.com   no ") { // It was not safe yet when the command began.
		done.tell(t, "widgets.example.com: safe, every object is stored in v1")
	}
	if strings.ContainsAny(done.out+done.err, "\x1b\r") {
		t.Errorf("there is no terminal, and it prints escape sequences: %q", done)
	}
	c.mustBeStored(t, "v1")
	c.svm(t, "history", "widgets").must(t, 0, "example.com/v1", "Succeeded", "AllObjectsMigrated")
	c.svm(t, "status", "widgets", "-o", "name").must(t, 0, "storagestate.migration.k8s.io/widgets.example.com")
}

func testLeftOut(t *testing.T, c *cluster) {
	c.awaitSVM(t, []string{"status", "secrets"}, 2, "NotSelectedForMigration", "kubectl svm migrate secrets")
	c.awaitSVM(t, []string{"plan"}, 0, "  kubectl svm rbac --admission | kubectl apply -f -\n",
		"  kubectl svm migrate --wait '*.admissionregistration.k8s.io'\n",
		"  kubectl svm rbac --admission | kubectl delete -f -")
	c.awaitSVM(t, []string{"plan", "secrets", "configmaps"}, 0, "kubectl svm migrate configmaps secrets\n")
	c.svm(t, "migrate", "secrets", "configmaps", "--wait", patiently).must(t, 0).
		tell(t, "Succeeded AllObjectsMigrated")
	framework.Eventually(t, soon, func(context.Context) error {
		if answer := c.svm(t, "status", "secrets", "configmaps"); answer.code != 0 {
			return fmt.Errorf("both are migrated: %s", answer)
		}
		return nil
	})
}

func testPause(t *testing.T, c *cluster) {
	c.svm(t, "pause", "widget").must(t, 0, "storagestate.migration.k8s.io/widgets.example.com paused")
	c.apply(t, definition("v2"))
	c.awaitReason(t, "Paused")
	c.svm(t, "status", "widgets").must(t, 2, "v1,v2", "paused by a person", "  kubectl svm resume widgets.example.com\n")
	plan := c.svm(t, "plan").must(t, 0, "  kubectl svm resume widgets.example.com\n")
	if strings.Contains(plan.out, "kubectl svm resume widgets.example.com ") {
		t.Errorf("more than the widgets is to be resumed: %s", plan)
	}
	c.mustBeStored(t, "v1")
	c.svm(t, "resume", "widgets").must(t, 0, "storagestate.migration.k8s.io/widgets.example.com resumed")
}

func testSuspend(t *testing.T, c *cluster) {
	running := c.awaitReason(t, "MigrationRunning").Resources[0].Migration
	// What has nothing to stop does not keep the others running.
	c.svm(t, "suspend", "secrets", "widgets").must(t, 1, running.Name+" suspended").
		tell(t, "secrets: there is no migration to stop", "kubectl svm resume "+running.Name)
	c.awaitReason(t, "MigrationSuspended")
	c.svm(t, "status", "widgets").must(t, 2, "suspended by a person", "kubectl svm resume widgets.example.com")
	c.beginEpoch(t)
	// Somebody who is not suspended in the new epoch would begin a migration meanwhile.
	c.timesOut(t, 4*settle, "status", "widgets", "--watch").tell(t, "MigrationSuspended")
	c.svm(t, "suspend", "widgets").must(t, 1).tell(t, "there is no migration to stop")
	c.startManager(t, slowly)
	c.svm(t, "resume", running.Name).must(t, 0, running.Name+" resumed")
	during := c.svm(t, "status", "widgets", "--watch", patiently).must(t, 0, "Safe to remove old versions")
	if !strings.Contains(during.out+during.err, " running") {
		t.Errorf("it does not tell that the migration runs: %s", during)
	}
	c.mustBeStored(t, "v2")
}

// beginEpoch changes the storage version of the widgets and takes that back. A new epoch begins, and whoever is
// suspended must still be.
func (c *cluster) beginEpoch(t *testing.T) {
	t.Helper()
	epoch := func(ctx context.Context) int64 {
		state, err := c.States().Get(ctx, widgets.String(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return state.Status.Epoch
	}
	before := epoch(t.Context())
	c.apply(t, definition("v1"))
	c.apply(t, definition("v2"))
	framework.Eventually(t, soon, func(ctx context.Context) error {
		if epoch(ctx) == before {
			return fmt.Errorf("it is still epoch %d", before)
		}
		return nil
	})
}

func testDenied(t *testing.T, c *cluster) {
	c.svm(t, "denied").must(t, 0, "No objects are denied.")
	c.svm(t, "retry", "widgets").must(t, 0).tell(t, "there is nothing to retry", "kubectl svm migrate widgets.example.com")
	c.apply(t, policy, binding)
	framework.Eventually(t, soon, func(context.Context) error {
		answer := c.tryWrite(t)
		if answer.code == 0 {
			return fmt.Errorf("the policy does not act: %s", answer)
		}
		return nil
	})
	c.apply(t, definition("v1"))
	c.awaitReason(t, "MigrationFailed")
	c.svm(t, "status", "widgets").must(t, 2, "1 object denied; tried again in ", "ObjectsDenied",
		"  kubectl svm denied widgets.example.com\n")
	c.svm(t, "denied").must(t, 2, "default", "widget-7", "ValidatingAdmissionPolicy payroll-is-frozen",
		"frozen until the audit is over", "What to do:", "  kubectl svm retry widgets.example.com\n")
	server := fmt.Sprintf(`"server": %q`, c.AdminConfig.Host)
	c.svm(t, "denied", "-o", "json").must(t, 2, server, `"items": [`, `"remedy": "`)
	c.svm(t, "status", "-o", "json").must(t, 2, server, `"answer": "notSafe"`, `"unknown": false`)
	c.svm(t, "plan", "-o", "json").must(t, 0, server)
	c.svm(t, "preflight", "-o", "json").must(t, 2, server)
	c.svm(t, "retry", "widgets").must(t, 0, "storagestate.migration.k8s.io/widgets.example.com retried")
	c.awaitFailures(t, 2)
	c.svm(t, "migrate", "widgets", "--wait", patiently, "-o", "json").must(t, 2, `"reason": "ObjectsDenied"`).
		tell(t, "Failed ObjectsDenied", "To see the objects: kubectl svm denied widgets.example.com-")
	c.kubectl(t, administrator, "", "delete", "validatingadmissionpolicybinding", "payroll-is-frozen").must(t, 0)
	framework.Eventually(t, soon, func(context.Context) error {
		answer := c.tryWrite(t)
		if answer.code != 0 {
			return fmt.Errorf("the policy still acts: %s", answer)
		}
		return nil
	})
	// A person created the last one, and the trigger does not try that again.
	c.svm(t, "retry", "widgets").must(t, 0, "storageversionmigration.migration.k8s.io/widgets.example.com-", " created\n")
	c.svm(t, "status", "widgets", "--watch", patiently).must(t, 0, "Safe to remove old versions")
	c.mustBeStored(t, "v1")
	c.svm(t, "denied").must(t, 0, "No objects are denied.")
}

// awaitFailures waits until that many migrations of widgets have failed. Migrations that are created in the same second
// have no order, so it also waits for the next one.
func (c *cluster) awaitFailures(t *testing.T, want int) {
	t.Helper()
	widgets := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		migrations, err := c.Migrations().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		failed := 0
		for i := range migrations.Items {
			m := &migrations.Items[i]
			if time.Since(m.CreationTimestamp.Time) < time.Second {
				return fmt.Errorf("%s was created just now", m.Name)
			}
			if m.GroupResource() == widgets && m.IsConditionTrue(migrationv1alpha1.MigrationFailed) {
				failed++
			}
		}
		if failed != want {
			return fmt.Errorf("%d migrations of widgets have failed, want %d", failed, want)
		}
		return nil
	})
}

// testManagerEnds wants the answer to be other than yes when nobody looks any more.
func testManagerEnds(t *testing.T, c *cluster) {
	c.svm(t, "status", "widgets").must(t, 0, "Safe to remove old versions")
	framework.StopManager(t, c.manager)
	c.svm(t, "status", "widgets").must(t, 2, "No manager leads: the last one released the lease", "Not known to be safe")
	c.svm(t, "migrate", "secrets").must(t, 0).tell(t, "Warning: nothing is migrated until a manager runs the migrator.")
}

// tryWrite asks the API server whether it would let somebody write the widget that the policy is about.
func (c *cluster) tryWrite(t *testing.T) ran {
	t.Helper()
	return c.kubectl(t, administrator, "", "patch", "widgets", "widget-7", "--type=merge", "-p", `{"x":"y"}`,
		"--dry-run=server")
}
