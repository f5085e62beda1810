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
	"os"
	"path/filepath"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// quotas has API servers refuse Pods of high priority in a namespace without a quota of them, as those of GKE do.
const quotas = `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ResourceQuota
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ResourceQuotaConfiguration
    limitedResources:
    - resource: pods
      matchScopes:
      - {scopeName: PriorityClass, operator: In, values: [system-cluster-critical]}
`

// withQuotas returns an API server with these quotas.
func withQuotas(t *testing.T, server controlplane.Server) controlplane.Server {
	t.Helper()
	file := filepath.Join(t.TempDir(), "admission.yaml")
	if err := os.WriteFile(file, []byte(quotas), 0o600); err != nil {
		t.Fatal(err)
	}
	server.ExtraArgs = append(server.ExtraArgs, "--admission-control-config-file="+file)
	return server
}

// checkPod wants the Pods of the Deployment to be what the namespace allows, and the static pod to be valid.
func (c *cluster) checkPod(t *testing.T) {
	t.Helper()
	deployment := find[appsv1.Deployment](t, render(t, "overlays/default"), "Deployment", namespace, account)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "of-deployment", Namespace: namespace}}
	pod.Spec = deployment.Spec.Template.Spec
	static := find[corev1.Pod](t, render(t, "static-pod"), "Pod", "kube-system", account)
	for _, pod := range []*corev1.Pod{pod, static} {
		framework.Eventually(t, soon, func(ctx context.Context) error { // A quota allows nothing until it was counted.
			_, err := c.Kube.CoreV1().Pods(pod.Namespace).
				Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		})
	}
}
