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
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

// workloadCount is how many Deployments, ConfigMaps and Secrets there are.
const workloadCount = 8

var (
	deployments = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	configMaps  = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
)

// testChangedByAdmission has rules that change what is updated, and so change what a rewrite writes.
func testChangedByAdmission(t *testing.T, c *cluster) {
	hook := webhook.Start(t, c.ListenAddress()).Mutation(`[{"op": "add", "path": "/data", "value": {"mutated": "yes"}}]`)
	c.deploy(t)
	manager := c.startManager(t, "manager",
		"--max-rewrites-per-second=10", "--max-concurrent-rewrites=1", "--migration-chunk-size=50")
	t.Run("a policy for a resource with its status", func(t *testing.T) {
		c.Mutate(t, deployments, "annotations", "deployments", "deployments/status")
		judge := c.judge(t, deployments.GroupResource())
		c.migrate(t, "deployments", deployments)
		m := c.ended(t, "deployments", soon)
		mustFail(t, m, v1alpha1.MigrationReasonRewritesChangeObjects, "default/workload-", ".metadata.annotations",
			"MutatingAdmissionPolicy", "deployments.apps")
		judge.onlyEncodings(t, 0)
	})
	t.Run("a webhook, for a resource without generation", func(t *testing.T) {
		c.MutateByWebhook(t, hook, configMaps, "configmaps")
		judge := c.judge(t, configMaps.GroupResource())
		c.migrate(t, "configmaps", configMaps)
		m := c.ended(t, "configmaps", soon)
		mustFail(t, m, v1alpha1.MigrationReasonRewritesChangeObjects, ".data", "mutating webhook")
		judge.onlyEncodings(t, 0)
	})
	t.Run("a policy, for a resource without generation", func(t *testing.T) {
		c.Mutate(t, secrets.WithVersion("v1"), "labels", "secrets")
		judge := c.judge(t, secrets)
		c.migrate(t, "secrets", secrets.WithVersion(""))
		mustFail(t, c.ended(t, "secrets", soon), v1alpha1.MigrationReasonRewritesChangeObjects, ".metadata.labels")
		judge.onlyEncodings(t, 0)
	})
	t.Run("a webhook, for a custom resource whose status takes no metadata", func(t *testing.T) {
		codices := newCustom("codices", "Codex")
		c.define(t, codices)
		c.fill(t, codices, "codex", workloadCount)
		hook := webhook.Start(t, c.ListenAddress()).Mutation(
			`[{"op": "add", "path": "/metadata/annotations", "value": {"mutated": "yes"}}]`)
		c.MutateByWebhook(t, hook, codices.WithVersion("v1"), "codices", "codices/status")
		c.flip(t, codices, "v2")
		judge := c.judge(t, codices.GroupResource)
		c.migrate(t, "codices", codices.WithVersion(""))
		mustSucceed(t, c.ended(t, "codices", soon))
		judge.stored(t, codices.encoding("v2"))
		judge.onlyEncodings(t, 1)
	})
	t.Run("a policy for a resource without its status", func(t *testing.T) {
		scrolls := newCustom("scrolls", "Scroll")
		c.define(t, scrolls)
		c.fill(t, scrolls, "scroll", workloadCount)
		c.Mutate(t, scrolls.WithVersion("v1"), "labels", "scrolls")
		c.flip(t, scrolls, "v2")
		judge := c.judge(t, scrolls.GroupResource)
		c.migrate(t, "scrolls", scrolls.WithVersion(""))
		m := c.ended(t, "scrolls", soon)
		mustSucceed(t, m)
		judge.stored(t, scrolls.encoding("v2"))
		judge.onlyEncodings(t, 1)
	})
	t.Run("a policy that comes during the migration", func(t *testing.T) { testPolicyComesLate(t, c, manager) })
}

// testPolicyComesLate wants the migration to stop at the first change. One object at a time is in flight here.
func testPolicyComesLate(t *testing.T, c *cluster, manager *controlplane.Process) {
	const count = 300
	tomes := newCustom("tomes", "Tome")
	c.define(t, tomes)
	c.fill(t, tomes, "tome", count)
	c.flip(t, tomes, "v2")
	c.migrate(t, "tomes", tomes.WithVersion(""))
	c.processed(t, "tomes", 20)
	framework.WhilePaused(t, manager, func() { c.Mutate(t, tomes.WithVersion("v1"), "labels", "tomes", "tomes/status") })
	m := c.ended(t, "tomes", soon)
	mustFail(t, m, v1alpha1.MigrationReasonRewritesChangeObjects, "default/tome-", ".metadata.labels")
	// Every hundredth object gets a dry run, which changes nothing.
	byDryRun := strings.Contains(condition(m, v1alpha1.MigrationFailed).Message, "would change .metadata.labels")
	list, err := c.objects(tomes).List(t.Context(), metav1.ListOptions{LabelSelector: "mutated"})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(list.Items); n == 0 && !byDryRun || n > 3 {
		t.Errorf("%d objects were changed", n)
	}
}

// deploy creates Deployments, ConfigMaps and Secrets. No controller works on them.
func (c *cluster) deploy(t *testing.T) {
	t.Helper()
	labels := map[string]string{"app": "workload"}
	ofDeployments := c.Kube.AppsV1().Deployments(metav1.NamespaceDefault)
	ofConfigMaps := c.Kube.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	ofSecrets := c.Kube.CoreV1().Secrets(metav1.NamespaceDefault)
	for i := range workloadCount {
		meta := metav1.ObjectMeta{Name: fmt.Sprintf("workload-%02d", i)}
		deployment := &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "main"}}},
			},
		}}
		_, err := ofDeployments.Create(t.Context(), deployment, metav1.CreateOptions{})
		if err == nil {
			_, err = ofConfigMaps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: meta}, metav1.CreateOptions{})
		}
		if err == nil {
			_, err = ofSecrets.Create(t.Context(), &corev1.Secret{ObjectMeta: meta}, metav1.CreateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
