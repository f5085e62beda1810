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

package manager

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

func serviceAccountToken(t *testing.T, c kubernetes.Interface, name string) string {
	t.Helper()
	accounts := c.CoreV1().ServiceAccounts(metav1.NamespaceDefault)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := accounts.Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	request, err := accounts.CreateToken(t.Context(), name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return request.Status.Token
}

// TestSecurePort asks every page as a client that may, as one that may not, and as nobody.
func TestSecurePort(t *testing.T) {
	t.Parallel()
	cp := startStorageVersionAPI(t, controlplane.Server{}) // It has RBAC.
	installMigrationAPI(t, cp)
	c := client(t, cp.AdminConfig())
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "pages"},
		Rules: []rbacv1.PolicyRule{
			{NonResourceURLs: []string{"/metrics", "/statusz", "/flagz"}, Verbs: []string{"get"}},
		},
	}
	if _, err := c.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "pages"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "pages"},
		Subjects: []rbacv1.Subject{
			{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "reader"},
			{Kind: rbacv1.ServiceAccountKind, Namespace: metav1.NamespaceDefault, Name: "scraper"},
		},
	}
	if _, err := c.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	reader, stranger := cp.Config("reader"), cp.Config("stranger")

	p := startManager(t, cp, framework.Manager, "serving", "--logging-format=json")
	eventually(
		t,
		soon,
		"an authorized client is let in",
		func() bool { code, _ := p.get(t, reader, "/metrics"); return code == 200 },
	)

	token := serviceAccountToken(t, c, "scraper")
	if code, _ := p.get(t, &rest.Config{BearerToken: token}, "/metrics"); code != 200 {
		t.Errorf("/metrics answers an authorized service account %d, want 200", code)
	}
	if code, _ := p.get(t, &rest.Config{BearerToken: "made up"}, "/metrics"); code != 401 {
		t.Errorf("/metrics answers a token that nobody issued %d, want 401", code)
	}
	for path, want := range map[string]string{
		"/metrics": "# TYPE ",
		"/statusz": "svm-controller-manager statusz",
		"/flagz":   "controller-shutdown-timeout",
	} {
		if code, body := p.get(t, reader, path); code != 200 || !strings.Contains(body, want) {
			t.Errorf("%s answers the reader %d, without %q:\n%s", path, code, want, body)
		}
		if code, _ := p.get(t, stranger, path); code != 403 {
			t.Errorf("%s answers a client without a right %d, want 403", path, code)
		}
		if code, _ := p.get(t, nil, path); code != 403 {
			t.Errorf("%s answers nobody %d, want 403", path, code)
		}
	}
	eventually(t, soon, "the manager is ready", func() bool { code, _ := p.get(t, nil, "/readyz"); return code == 200 })
	for _, path := range []string{"/healthz", "/livez", "/readyz", "/readyz/kube-apiserver", "/livez/leaderElection"} {
		if path == "/readyz/kube-apiserver" || path == "/livez/leaderElection" {
			if code, body := p.get(t, cp.AdminConfig(), path); code != 200 {
				t.Errorf("%s answers %d: %s", path, code, body)
			}
			continue
		}
		if code, body := p.get(t, nil, path); code != 200 {
			t.Errorf("%s must answer everybody, got %d: %s", path, code, body)
		}
	}
	framework.StopManager(t, p.Process)
	for _, line := range strings.Split(strings.TrimSpace(p.Log()), "\n") {
		if strings.HasPrefix(line, "# ") || strings.HasSuffix(line, "Data race detection enabled") {
			continue // how the test started it, and what a binary built for a test says before it has read its flags
		}
		if !json.Valid([]byte(line)) {
			t.Errorf("a log line that is not JSON: %s", line)
		}
	}

	t.Run("without a lookup a certificate of the cluster is nobody's", func(t *testing.T) {
		p := startManager(t, cp, framework.Manager, "no-lookup", "--authentication-skip-lookup=true")
		eventually(t, soon, "the port answers", func() bool { code, _ := p.get(t, nil, "/livez"); return code == 200 })
		for name, cfg := range map[string]*rest.Config{"reader": reader, "admin": cp.AdminConfig()} {
			if code, _ := p.get(t, cfg, "/metrics"); code != 403 {
				t.Errorf("/metrics answers the %s %d, want 403", name, code)
			}
		}
		framework.StopManager(t, p.Process)
	})
	t.Run("without a permission that the observer needs it is not ready", func(t *testing.T) {
		testUnreadyObserver(t, cp, c)
	})
}

// testUnreadyObserver starts a manager that may do nothing, then one thing after the other, but not list definitions
// before the end.
func testUnreadyObserver(t *testing.T, cp *controlplane.ControlPlane, c kubernetes.Interface) {
	const name = "narrow"
	all := []string{"*"}
	groups := []string{"", "events.k8s.io", "coordination.k8s.io", "discovery.k8s.io", "migration.k8s.io",
		"internal.apiserver.k8s.io", "apiregistration.k8s.io"}
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: groups, Resources: all, Verbs: all}, {NonResourceURLs: all, Verbs: all},
		},
	}
	role, err := c.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	process, port := framework.StartManager(t, cp, framework.Process{
		Name: name, Program: framework.Manager, Config: cp.Config(name), Args: framework.QuickElection,
	})
	p := &managerProcess{Process: process, name: name, port: port}
	eventually(t, soon, "the log says that the lease may not be read", func() bool {
		return strings.Contains(p.Log(), "refuses to let this process read the leader lease")
	})
	time.Sleep(longEnoughToLoop)
	checkRepeats(t, p.Log(), `cannot get resource \"leases\"`, 1,
		"Cannot read the leader lease because the API server does not answer")
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}},
	}
	if _, err := c.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const missing = `User "narrow" cannot list resource "customresourcedefinitions"`
	eventually(t, soon, "the log says what is missing", func() bool {
		return strings.Contains(strings.ReplaceAll(p.Log(), `\"`, `"`), missing)
	})
	if code, body := p.get(t, nil, "/readyz"); code == 200 || !strings.Contains(body, "[-]observer failed") {
		t.Errorf("/readyz answers %d:\n%s", code, body)
	}
	role.Rules[0].APIGroups = all
	if _, err := c.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, soon, "the manager is ready", func() bool { code, _ := p.get(t, nil, "/readyz"); return code == 200 })
	framework.StopManager(t, p.Process)
}
