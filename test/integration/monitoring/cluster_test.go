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

package monitoring

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

const (
	settle = 2 * time.Second
	// soon is how long what takes several steps may take on a busy machine.
	soon = 10 * time.Minute

	managerPort = "10262"
	// managerUser is the one that the fence is about.
	managerUser = "system:svm-controller-manager"
	// everyone is the group of resources that the manager may migrate, and guarded one that needs another permission.
	everyone = "monitoring.test"
	guarded  = "guarded.test"
)

// cluster has two API servers. The manager runs on a host of its own, and talks to the first of them.
type cluster struct {
	*framework.Cluster
	t       *testing.T // lives as long as the cluster
	first   *controlplane.APIServer
	second  *controlplane.APIServer
	host    *controlplane.Host // of the manager
	gate    *controlplane.Interceptor
	hooks   *webhook.Server
	manager *controlplane.Process
}

// oldServer writes some resources in other encodings than a server without the emulation.
func oldServer() controlplane.Server {
	return controlplane.Server{
		EmulatedVersion: "1.36", ExtraArgs: []string{"--etcd-compaction-interval=0", "--event-ttl=10s"},
	}
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	cp := controlplane.Start(t, controlplane.Config{Servers: []controlplane.Server{oldServer(), oldServer()}})
	c := &cluster{t: t, first: cp.Servers()[0], second: cp.Servers()[1], hooks: webhook.Start(t, cp.ListenAddress())}
	c.Cluster = framework.Use(t, cp, c.first.Config("admin", framework.Masters))
	c.InstallMigrationAPI(t)
	var err error
	if c.host, err = cp.Host("manager"); err != nil {
		t.Fatal(err)
	}
	if c.gate, err = cp.NewInterceptor("", c.first); err != nil {
		t.Fatal(err)
	}
	c.allowManager(t)
	return c
}

// allowManager allows the manager everything but the guarded group.
func (c *cluster) allowManager(t *testing.T) {
	t.Helper()
	served, err := c.Kube.Discovery().ServerGroups()
	if err != nil {
		t.Fatal(err)
	}
	groups := []string{everyone}
	for _, group := range served.Groups {
		groups = append(groups, group.Name)
	}
	all := []string{"*"}
	c.allow(t, "everything",
		rbacv1.PolicyRule{APIGroups: groups, Resources: all, Verbs: all},
		rbacv1.PolicyRule{NonResourceURLs: all, Verbs: []string{"get"}})
	c.allow(t, guarded, rbacv1.PolicyRule{APIGroups: []string{guarded}, Resources: all, Verbs: all})
}

// allow gives the manager a role.
func (c *cluster) allow(t *testing.T, name string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules}
	if _, err := c.Kube.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.bind(t, name)
}

func (c *cluster) bind(t *testing.T, role string) {
	t.Helper()
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: role},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: managerUser}},
	}
	if _, err := c.Kube.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// raiseFence installs the policy that keeps the manager from changing objects, and waits until it does.
func (c *cluster) raiseFence(t *testing.T) {
	t.Helper()
	documents := bytes.Split(read(t, root+"build/manifests/fence/policy.yaml"), []byte("\n---\n"))
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
	for i, object := range []any{policy, binding} {
		if err := yaml.UnmarshalStrict(documents[i], object); err != nil {
			t.Fatal(err)
		}
	}
	api := c.Kube.AdmissionregistrationV1()
	if _, err := api.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	manager, err := kubernetes.NewForConfig(c.first.Config(managerUser))
	if err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		label := []byte(`{"metadata":{"labels":{"a":"b"}}}`)
		dry := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
		_, err := manager.CoreV1().Namespaces().Patch(ctx, metav1.NamespaceSystem, types.MergePatchType, label, dry)
		if err == nil {
			return errors.New("the manager may change objects")
		}
		return nil
	})
}

// startManager starts the manager, after the one that runs has ended.
func (c *cluster) startManager(args ...string) {
	c.t.Helper()
	if c.manager != nil {
		framework.StopManager(c.t, c.manager)
	}
	c.manager, _ = framework.StartManager(c.t, c.ControlPlane, framework.Process{
		Name: "manager", Host: c.host.Name(), Config: c.gate.Config(managerUser),
		Args: append([]string{
			"-v=2", "--bind-address=" + c.host.Address(), "--secure-port=" + managerPort,
			"--settle-period=" + settle.String(), "--poll-interval=15s", "--concurrent-migrations=10",
		}, append(framework.PatientElection, args...)...),
	})
}

// address is where the manager serves its metrics.
func (c *cluster) address() string { return net.JoinHostPort(c.host.Address(), managerPort) }

// reader makes the ServiceAccount that the manifests allow to read metrics, and returns a file with a token of it.
func (c *cluster) reader(t *testing.T) (tokenFile string) {
	t.Helper()
	documents := bytes.Split(read(t, manifests+"rbac.yaml"), []byte("\n---\n"))
	role, binding := &rbacv1.ClusterRole{}, &rbacv1.ClusterRoleBinding{}
	finding, finders := &rbacv1.Role{}, &rbacv1.RoleBinding{}
	objects := []any{role, binding, finding, finders}
	if len(documents) != len(objects) {
		t.Fatalf("rbac.yaml has %d documents", len(documents))
	}
	for i, object := range objects {
		if err := yaml.UnmarshalStrict(documents[i], object); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Kube.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kube.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	subject := binding.Subjects[0]
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: subject.Namespace}}
	if _, err := c.Kube.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	accounts := c.Kube.CoreV1().ServiceAccounts(subject.Namespace)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: subject.Name}}
	if _, err := accounts.Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{}
	answer, err := accounts.CreateToken(t.Context(), subject.Name, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.checkFinding(t, finding, finders)
	tokenFile = filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte(answer.Status.Token), 0o600); err != nil {
		t.Fatal(err)
	}
	return tokenFile
}

// checkFinding wants whoever reads metrics to be allowed to find the instances of the manager.
func (c *cluster) checkFinding(t *testing.T, role *rbacv1.Role, binding *rbacv1.RoleBinding) {
	t.Helper()
	namespace := metav1.NamespaceDefault // whichever it is
	if _, err := c.Kube.RbacV1().Roles(namespace).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Kube.RbacV1().RoleBindings(namespace).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	subject := binding.Subjects[0]
	reader := kubernetes.NewForConfigOrDie(c.Config("system:serviceaccount:" + subject.Namespace + ":" + subject.Name))
	framework.Eventually(t, soon, func(ctx context.Context) error {
		_, err := reader.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{})
		return err
	})
}

// metrics are those that the manager shows to whoever has the token.
func (c *cluster) metrics(t *testing.T, tokenFile string) (text []byte) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // the certificate is self-signed
	}}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+c.address()+"/metrics", nil)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+string(read(t, tokenFile)))
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer func() { _ = response.Body.Close() }()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("/metrics answers %s", response.Status)
		}
		text, err = io.ReadAll(response.Body)
		return err
	})
	return text
}
