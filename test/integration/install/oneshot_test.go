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
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/install"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// testOneShot runs what the container of the Job runs, with the permissions of its ServiceAccount: once as a dry run,
// and once without most resources, because the manager has just migrated them.
func testOneShot(t *testing.T, c *cluster) {
	const name = "svm-one-shot"
	c.kubectl(t, "", "apply", "-k", manifests+"/one-shot")
	job := find[batchv1.Job](t, render(t, "one-shot"), "Job", namespace, name)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := c.WriteKubeconfig(kubeconfig, c.accountConfig(t, name)); err != nil {
		t.Fatal(err)
	}
	run := func(args []string) string {
		args = append(args, "--kubeconfig="+kubeconfig)
		out, err := exec.CommandContext(t.Context(), framework.Binary("kubectl-svm"), args...).CombinedOutput()
		if err != nil {
			t.Fatalf("the Job fails: %v\n%s", err, out)
		}
		return string(out)
	}
	args := job.Spec.Template.Spec.Containers[0].Args
	dry := slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		return arg == "--wait" || strings.HasPrefix(arg, "--timeout=")
	})
	planned := strings.Fields(run(append(dry, "--dry-run=client", "--output=name")))
	// Custom resources, admission objects and events it has to leave out by itself.
	without := []string{widgets.Group, migrationv1alpha1.GroupName, admissionGroup}
	some := []string{"configmaps", "secrets", "deployments.apps", "clusterroles.rbac.authorization.k8s.io"}
	for _, resource := range install.Resources(c.documents(t)) {
		if slices.Contains(without, resource.Group) {
			continue
		}
		if !slices.Contains(some, resource.String()) {
			args = append(args, "--except="+resource.String())
		}
		before := len(planned)
		planned = slices.DeleteFunc(planned, func(name string) bool {
			return name == "storageversionmigration.migration.k8s.io/"+resource.String()+"-*"
		})
		if storageversion.Expires(resource.GroupResource) != (len(planned) == before) {
			t.Errorf("%d migrations of %s are planned", before-len(planned), resource)
		}
	}
	if len(planned) > 0 {
		t.Errorf("these migrations are planned too: %q", planned)
	}
	out := run(args)
	migrations, err := c.Migrations().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Migrations are deleted a while after their end, so what was printed counts.
	for _, resource := range some {
		if !strings.Contains(out, "/"+resource) {
			t.Errorf("no migration of %s was created; there are %d:\n%s", resource, len(migrations.Items), out)
		}
	}
	for _, resource := range []string{widgets.String(), admissionGroup} {
		if strings.Contains(out, resource) {
			t.Errorf("it has to do with %s:\n%s", resource, out)
		}
	}
}
