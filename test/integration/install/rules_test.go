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

package install

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/fence"
	"sigs.k8s.io/svm-controller-manager/pkg/install"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

var (
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

// TestStaticPod runs the manager as the static pod does: with its flags, as the user of its certificate. At first the
// fence is not in force, and then rules change objects that are rewritten.
func TestStaticPod(t *testing.T) {
	t.Parallel()
	c := startCluster(t, everything)
	c.apply(t, "static-pod")
	c.kubectl(t, "", "delete", "validatingadmissionpolicybinding", fence.Policy)
	hook := webhook.Start(t, c.ListenAddress()).Mutation(`[{"op": "add", "path": "/data", "value": {"mutated": "yes"}}]`)
	c.createObjects(t)
	c.allow(t, "custom", install.NewRole(install.Resources(c.documents(t))))
	pod := find[corev1.Pod](t, render(t, "static-pod"), "Pod", "kube-system", account)
	args := slices.DeleteFunc(pod.Spec.Containers[0].Args, func(arg string) bool {
		return strings.HasPrefix(arg, "--kubeconfig=") || strings.HasPrefix(arg, "--auto-migrate=")
	})
	args = append(args, framework.PatientElection...) // The manager is paused for a while.
	process, port := c.startManager(t, "manager", c.Config(user),
		append(args, "--auto-migrate=-*", "--max-rewrites-per-second=5")...)
	c.awaitFenceState(t, port, fence.Missing)
	c.apply(t, "static-pod")
	c.awaitFenceState(t, port, fence.Standing)
	for _, line := range []string{"The fence is missing", "The fence stands"} {
		if n := strings.Count(process.Log(), line); n != 1 {
			t.Errorf("the log says %d times: %s", n, line)
		}
	}
	t.Run("no rule, but the API server", func(t *testing.T) { testChangedByServer(t, c) })
	t.Run("a policy for a resource with its status", func(t *testing.T) {
		c.Mutate(t, deployments, "annotations", "deployments", "deployments/status")
		c.mustNotChange(t, deployments, "default/sample")
	})
	t.Run("a webhook, for a resource without generation", func(t *testing.T) {
		c.MutateByWebhook(t, hook, configMaps, "configmaps")
		c.mustNotChange(t, configMaps, "")
	})
	t.Run("a policy for a resource without its status", func(t *testing.T) {
		before := c.stored(t, widgets)
		c.Mutate(t, widgets.WithVersion("v2"), "labels", "widgets")
		m := c.migrate(t, widgets)
		if trueCondition(m, v1alpha1.MigrationSucceeded) == nil {
			t.Errorf("the migration ended with %+v", m.Status.Conditions)
		}
		c.onlyEncodings(t, widgets, before)
	})
	t.Run("a policy that comes during the migration", func(t *testing.T) { testPolicyComesLate(t, c, process, port) })
	framework.StopManager(t, process)
}

// testPolicyComesLate wants no object to change. Some are rewritten before the rule comes, so the rule does not refuse
// all of them, which would be another reason to fail.
func testPolicyComesLate(t *testing.T, c *cluster, manager *controlplane.Process, port int) {
	const count = 150 // in one namespace, so that the rule may be about that
	secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	for i := range count {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("secret-%03d", i)}}
		if _, err := c.Kube.CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	before := c.stored(t, secrets.GroupResource())
	created := c.createMigration(t, secrets.GroupResource())
	metrics := c.page(t, c.AdminConfig, port)
	rewritten := regexp.MustCompile(`migrated_objects_total\{resource="secrets"\} [1-9]`)
	framework.Eventually(t, soon, func(ctx context.Context) error {
		page, err := metrics.Get().AbsPath("/metrics").Do(ctx).Raw()
		if err == nil && !rewritten.Match(page) {
			err = errors.New("no object is rewritten yet")
		}
		return err
	})
	framework.WhilePaused(t, manager, func() { c.Mutate(t, secrets, "labels", "secrets") })
	m := c.ended(t, created)
	mustFail(t, m, v1alpha1.MigrationReasonObjectsDenied, "default/secret-")
	c.onlyEncodings(t, secrets.GroupResource(), before)
}

// awaitFenceState waits until the Lease of the leader and its metrics tell the state.
func (c *cluster) awaitFenceState(t *testing.T, port int, state fence.State) {
	t.Helper()
	framework.Eventually(t, soon, func(ctx context.Context) error {
		lease, err := c.Kube.CoordinationV1().Leases("kube-system").
			Get(ctx, "svm-controller-manager", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if got := lease.Labels[fence.Label]; got != string(state) {
			return fmt.Errorf("the Lease says %q", got)
		}
		page, err := c.page(t, c.AdminConfig, port).Get().AbsPath("/metrics").Do(ctx).Raw()
		if err == nil && !strings.Contains(string(page), `svm_controller_manager_fence{state="`+string(state)+`"} 1`) {
			err = errors.New("the metrics do not tell the state of the fence")
		}
		return err
	})
}

// mustNotChange wants a migration to fail because of a rule, and to change no object.
func (c *cluster) mustNotChange(t *testing.T, resource schema.GroupVersionResource, inMessage string) {
	t.Helper()
	before := c.stored(t, resource.GroupResource())
	m := c.migrate(t, resource.GroupResource())
	mustFail(t, m, v1alpha1.MigrationReasonRewritesChangeObjects, inMessage)
	c.onlyEncodings(t, resource.GroupResource(), before)
}

func mustFail(t *testing.T, m *v1alpha1.StorageVersionMigration, reason, inMessage string) {
	t.Helper()
	failed := trueCondition(m, v1alpha1.MigrationFailed)
	if failed == nil || failed.Reason != reason {
		t.Fatalf("the migration did not fail for this reason: %+v", m.Status.Conditions)
	}
	for _, part := range []string{inMessage, "the fence refuses", "mutating webhook", "MutatingAdmissionPolicy"} {
		if !strings.Contains(failed.Message, part) {
			t.Errorf("the message does not say %q: %s", part, failed.Message)
		}
	}
}

func (c *cluster) onlyEncodings(t *testing.T, resource schema.GroupResource, before []controlplane.StoredObject) {
	t.Helper()
	if err := controlplane.CompareStored(before, c.stored(t, resource)).OnlyEncodings(); err != nil {
		t.Errorf("%s: %v", resource, err)
	}
}

func (c *cluster) createMigration(t *testing.T, resource schema.GroupResource) *v1alpha1.StorageVersionMigration {
	t.Helper()
	migration := &v1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	migration.Spec.Resource.Group, migration.Spec.Resource.Resource = resource.Group, resource.Resource
	created, err := c.Migrations().Create(t.Context(), migration, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// migrate returns a migration that has ended.
func (c *cluster) migrate(t *testing.T, resource schema.GroupResource) *v1alpha1.StorageVersionMigration {
	t.Helper()
	return c.ended(t, c.createMigration(t, resource))
}

func (c *cluster) ended(t *testing.T, m *v1alpha1.StorageVersionMigration) (ended *v1alpha1.StorageVersionMigration) {
	t.Helper()
	framework.Eventually(t, soon, func(ctx context.Context) (err error) {
		ended, err = c.Migrations().Get(ctx, m.Name, metav1.GetOptions{})
		if err == nil && trueCondition(ended, v1alpha1.MigrationSucceeded) == nil &&
			trueCondition(ended, v1alpha1.MigrationFailed) == nil {
			err = fmt.Errorf("the conditions are %v", ended.Status.Conditions)
		}
		return err
	})
	return ended
}

// trueCondition returns the condition if it is True.
func trueCondition(
	m *v1alpha1.StorageVersionMigration, conditionType v1alpha1.MigrationConditionType,
) *v1alpha1.MigrationCondition {
	for i, condition := range m.Status.Conditions {
		if condition.Type == conditionType && condition.Status == corev1.ConditionTrue {
			return &m.Status.Conditions[i]
		}
	}
	return nil
}
