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

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/tools/clientcmd"
)

func TestOneServerOnLoopbackFromStartToEnd(t *testing.T) {
	t.Parallel()
	began := time.Now()
	spec := storedServer()
	spec.Name, spec.ExtraArgs = "only", []string{"--service-cluster-ip-range=10.97.0.0/16"}
	cp := Start(t, Config{Servers: []Server{spec}})
	t.Logf("one server was ready after %v", time.Since(began).Round(time.Millisecond))
	server := cp.Servers()[0]
	client := clientFor(t, cp.AdminConfig())

	t.Run("an extra argument takes the place of the default", func(t *testing.T) {
		eventually(t, "the API has a service", func(ctx context.Context) error {
			service, err := client.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
			if err == nil && service.Spec.ClusterIP != "10.97.0.1" {
				t.Errorf("the API's service has the address %s", service.Spec.ClusterIP)
			}
			return err
		})
	})
	t.Run("its identity lease is the one predicted", func(t *testing.T) {
		_, err := client.CoordinationV1().Leases("kube-system").Get(t.Context(), server.Identity(), metav1.GetOptions{})
		must(t, err)
	})
	t.Run("a client is who its certificate says, and may do what RBAC says", func(t *testing.T) {
		checkIdentityOfClient(t, cp)
	})
	t.Run("requests are counted by user, verb, resource and code", func(t *testing.T) {
		checkAudit(t, cp)
	})
	t.Run("what the servers use of the machine can be told", func(t *testing.T) {
		for _, p := range []*Process{server.Process(), cp.Etcd().Process()} {
			if usage, err := p.Usage(); err != nil || usage.CPU <= 0 || usage.Memory < 1<<20 || usage.PeakMemory < usage.Memory {
				t.Errorf("%s uses %+v, %v", p.Name(), usage, err)
			}
		}
	})
	t.Run("what etcd has can be told", func(t *testing.T) { testStored(t, cp) })
	t.Run("an aggregated server and controllers run beside it", func(t *testing.T) {
		testAggregatedServerAndControllers(t, cp)
	})
	t.Run("it comes back after kill -9 of itself and of etcd, with its data", func(t *testing.T) {
		marker := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "marker", Namespace: "default"}}
		_, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), marker, metav1.CreateOptions{})
		must(t, err)
		must(t, server.Kill())
		if err := server.Kill(); !errors.Is(err, ErrNotRunning) {
			t.Errorf("killing a dead server: %v", err)
		}
		must(t, cp.Etcd().Kill())
		must(t, cp.Etcd().Restart(nil))
		must(t, server.Restart(nil))
		_, err = client.CoreV1().ConfigMaps("default").Get(t.Context(), "marker", metav1.GetOptions{})
		must(t, err)
	})
	t.Run("it stops at once although a client watches", func(t *testing.T) {
		_, err := client.CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{})
		must(t, err)
		began := time.Now()
		must(t, server.Stop()) // Without the argument for it, this would take a minute.
		if took := time.Since(began); took > 55*time.Second {
			t.Errorf("it took %v", took)
		}
		must(t, server.Restart(nil))
	})
	t.Run("what needs hosts is refused", func(t *testing.T) {
		for name, err := range map[string]error{"cut": server.Cut(), "heal": cp.Etcd().Heal()} {
			if !errors.Is(err, ErrNoHosts) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, err := cp.AddServer(t.Context(), Server{}); !errors.Is(err, ErrNoHosts) {
			t.Errorf("adding a server: %v", err)
		}
	})
	dir := cp.Dir()
	must(t, cp.Close())
	must(t, cp.Close())
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the temporary folder is still there: %v", err)
	}
	if _, err := cp.StartProcess(Program{Name: "late", Path: "/bin/true"}); err == nil {
		t.Error("a program started after the end")
	}
}

func checkIdentityOfClient(t *testing.T, cp *ControlPlane) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	must(t, cp.WriteKubeconfig(path, cp.Config("alice", "developers", "testers")))
	config, err := clientcmd.BuildConfigFromFlags("", path)
	must(t, err)
	user := whoAmI(t, config)
	slices.Sort(user.Groups) // a certificate holds a set
	expectUser(t, user, "alice", "developers", "system:authenticated", "testers")
	client := clientFor(t, config)
	if _, err := client.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a user without rights lists secrets: %v", err)
	}
}

func checkAudit(t *testing.T, cp *ControlPlane) {
	t.Helper()
	configMaps := clientFor(t, cp.Config("carol", adminGroup)).CoreV1().ConfigMaps("default")
	before := time.Now()
	for i := range 3 {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("counted-%d", i)}}
		_, err := configMaps.Create(t.Context(), object, metav1.CreateOptions{})
		must(t, err)
	}
	after := time.Now()
	if _, err := configMaps.Get(t.Context(), "absent", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("reading what is not there: %v", err)
	}
	_, err := configMaps.Watch(t.Context(), metav1.ListOptions{})
	must(t, err)

	resource := schema.GroupResource{Resource: "configmaps"}
	kind := RequestKind{Server: "only", User: "carol", Resource: resource}
	created, got, watched := kind, kind, kind
	created.Verb, created.Code = "create", 201
	got.Verb, got.Code = "get", 404
	watched.Verb = "watch"
	expect(t, cp, RequestFilter{Users: []string{"carol"}}, RequestCounts{created: 3, got: 1, watched: 1})
	expect(t, cp, RequestFilter{Users: []string{"carol"}, Since: before, Until: after}, RequestCounts{created: 3})
	expect(t, cp, RequestFilter{
		Users: []string{"carol"}, Verbs: []string{"get"}, Resources: []schema.GroupResource{resource},
	}, RequestCounts{got: 1})
	expect(t, cp, RequestFilter{Users: []string{"nobody"}}, RequestCounts{})
	for _, users := range [][]string{nil, {adminUser}, {"carol", loopbackUser}} {
		if _, err := cp.Requests(RequestFilter{Users: users}); err == nil {
			t.Errorf("requests of %q, which are not recorded, are counted", users)
		}
	}
	// The administrator has sent requests before: the log has none of them.
	must(t, readAudit(cp.auditPath("only"), RequestFilter{}.maySelect(), func(event *auditv1.Event) {
		if user := event.User.Username; user == adminUser || user == loopbackUser {
			t.Errorf("a request of %s is recorded: %s", user, event.RequestURI)
		}
	}))
}

func expect(t *testing.T, cp *ControlPlane, filter RequestFilter, want RequestCounts) {
	t.Helper()
	eventually(t, "the requests are in the audit log", func(context.Context) error {
		counts, err := cp.Requests(filter)
		if err != nil {
			return err
		}
		if diff := cmp.Diff(want, counts); diff != "" {
			return fmt.Errorf("counts (-want +got):\n%s", diff)
		}
		return nil
	})
}
