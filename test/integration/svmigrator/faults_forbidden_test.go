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
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// testForbidden has a manager that may do everything but write the objects.
func testForbidden(t *testing.T) {
	const (
		objects = 500
		// triedAtMost is what was on its way when a hundred objects had been refused.
		triedAtMost = 300
		user        = "reader"
	)
	cp := controlplane.Start(t, controlplane.Config{})
	c := useCluster(t, cp, cp.AdminConfig())
	s := c.stage(t, "relics", "Relic", objects)
	c.grant(t, user,
		rbacv1.PolicyRule{APIGroups: []string{"*"}, Resources: []string{"*"}, Verbs: []string{"get", "list", "watch"}},
		rbacv1.PolicyRule{
			APIGroups: []string{v1alpha1.GroupName}, Resources: []string{"storageversionmigrations/status"},
			Verbs: []string{"update"},
		},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}})
	process := c.startProcess(t, framework.Process{Name: "manager", Config: c.Config(user), Args: []string{"-v=2"}})
	s.migrate(t)
	m := s.ended(t, s.Resource, soon)
	mustFail(t, m, v1alpha1.MigrationReasonRewritesRefused, "cannot patch resource")
	s.judge.onlyEncodings(t, 0)

	counts, err := c.Requests(controlplane.RequestFilter{Users: []string{user}, Verbs: []string{"patch"}})
	if err != nil {
		t.Fatal(err)
	}
	if n := counts.Total(); n > triedAtMost {
		t.Errorf("%d objects were tried", n)
	}
	if n := strings.Count(process.Log(), "do not report the size of etcd's database"); n < 1 || n > 3 {
		t.Errorf("the log says %d times that no server reports the size of etcd's database", n)
	}
	if n := strings.Count(process.Log(), "Not rewriting an object"); n > triedAtMost {
		t.Errorf("the log has %d lines about denied objects", n)
	}
}

// grant allows the user what the rules say.
func (c *cluster) grant(t *testing.T, user string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: user}, Rules: rules}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: user}},
	}
	api := c.Kube.RbacV1()
	if _, err := api.ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
