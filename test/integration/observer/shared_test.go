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

package observer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/observer"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// TestServersBehindOneAddress has three servers that advertise the address of their load balancer, as those of hosted
// control planes do. The balancer passes TCP connections on.
func TestServersBehindOneAddress(t *testing.T) {
	t.Parallel()
	cp := controlplane.Start(t, controlplane.Config{AdvertiseBalancer: true, Servers: make([]controlplane.Server, 3)})
	s := startObserver(t, cp.Config(observerUser, "system:masters"), observer.Options{})

	t.Run("every server is met", func(t *testing.T) {
		within(t, eventually, func() error { return s.completeBehind(3) })
		last, _ := ptrTo(s.Observe(deployments)).Last()
		t.Logf("asked %v", last.Evidence.Endpoints)
		allAsked(t, s)
	})
	t.Run("a server without a Lease does not stand for one that does not answer", func(t *testing.T) {
		testLostLease(t, cp, s)
	})
	t.Run("a server that comes back as another version is noticed", func(t *testing.T) {
		emulate(t, s, cp.Servers()[2])
		within(t, eventually, func() error { return s.complete(policies, storageversion.BuiltIn, 2) })
		checkVersions(t, s)
	})
	t.Run("the balancer leads to one server only", func(t *testing.T) { testOneSided(t, cp) })
	t.Run("start times may not be read", func(t *testing.T) { testForbidden(t, cp) })
	s.stop()
}

// askedEach wants that so many processes are asked, and that these are all.
func (s *observed) askedEach(t *testing.T, processes int) error {
	n, err := s.askedOf(t)
	if err == nil && n != processes {
		err = fmt.Errorf("%d servers were asked", n)
	}
	return err
}

// askedOf returns how many servers were asked, and why these are not all.
func (s *observed) askedOf(t *testing.T) (int, error) {
	asked := make(chan struct{}, 10)
	err := s.AskEach(t.Context(), func(context.Context, documents.Reader) error {
		asked <- struct{}{}
		return nil
	})
	return len(asked), err
}

// testLostLease deletes the Lease of a server that answers while another one, which has a Lease, is frozen. There are
// as many Leases then as servers that answer.
func testLostLease(t *testing.T, cp *controlplane.ControlPlane, s *observed) {
	for tries := 1; !metWithoutLease(t, cp, s); tries++ {
		if tries == 5 {
			t.Fatal("the observer never met the two servers that answer while one of them had no Lease")
		}
		allAsked(t, s)
	}
}

// metWithoutLease reports whether the observer asked both servers that answer, and met both again while one of them had
// no Lease. On a busy machine it may miss one of them, or the Lease may be back too early.
func metWithoutLease(t *testing.T, cp *controlplane.ControlPlane, s *observed) (met bool) {
	t.Helper()
	first, frozen, without := cp.Servers()[0], cp.Servers()[1], cp.Servers()[2]
	cp.Balancer().SetBackends(first, without)
	defer cp.Balancer().SetBackends()
	if err := frozen.Process().Pause(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := frozen.Process().Resume(); err != nil {
			t.Error(err)
		}
	}()
	n, err := s.askedOf(t)
	if err == nil {
		t.Fatalf("one of three servers does not answer, and %d were asked without an error", n)
	}
	if n != 2 {
		return false
	}
	client := kubernetes.NewForConfigOrDie(first.Config(observerUser, "system:masters"))
	deleteRenewed(t, client.CoordinationV1().Leases(metav1.NamespaceSystem), without.Identity())
	for deleted := time.Now(); time.Since(deleted) < 15*time.Second; time.Sleep(time.Second) {
		n, err := s.askedOf(t)
		if err == nil {
			t.Fatalf("one of three servers does not answer, and the %d that were asked count as all", n)
		}
		met = met || n == 2 && strings.Contains(err.Error(), "identity Lease is gone")
	}
	return met
}

// deleteRenewed deletes the Lease of a server right after the server has renewed it.
func deleteRenewed(t *testing.T, leases coordinationclient.LeaseInterface, name string) {
	t.Helper()
	// The server puts it back when it would renew it, ten seconds after the last time.
	before, err := leases.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	within(t, soon, func() error {
		now, err := leases.Get(t.Context(), name, metav1.GetOptions{})
		if err == nil && now.Spec.RenewTime.Equal(before.Spec.RenewTime) {
			err = errors.New("the server has not renewed its Lease")
		}
		return err
	})
	if err := leases.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// allAsked wants that all servers can be asked when no server may answer any more whose Lease is gone.
func allAsked(t *testing.T, s *observed) {
	t.Helper()
	var last error
	try := func(context.Context) (bool, error) {
		last = s.askedEach(t, 3)
		return last == nil, nil
	}
	if wait.PollUntilContextTimeout(t.Context(), 5*time.Second, eventually, true, try) != nil {
		t.Fatal(last)
	}
}

// completeBehind wants a complete observation of processes behind one address.
func (s *observed) completeBehind(processes int) error {
	last, _ := ptrTo(s.Observe(deployments)).Last()
	if got := len(last.Evidence.Endpoints); got != processes {
		return fmt.Errorf("%d processes were met: %v", got, s.Observe(deployments).Problem)
	}
	return s.complete(deployments, storageversion.BuiltIn, 1)
}

// saysUnmet wants an incomplete observation that gives the reason.
func (s *observed) saysUnmet(words ...string) error {
	o := s.Observe(policies)
	if last, _ := o.Last(); o.Problem == nil || len(last.Writing) > 0 {
		return fmt.Errorf("problem %v, written %v", o.Problem, last.Writing)
	}
	for _, word := range words {
		if !strings.Contains(o.Problem.Message, word) {
			return fmt.Errorf("no %q in %q", word, o.Problem.Message)
		}
	}
	return nil
}

// testOneSided has an observer that never meets two of the servers, one of which writes something else.
func testOneSided(t *testing.T, cp *controlplane.ControlPlane) {
	cp.Balancer().SetBackends(cp.Servers()[0])
	s := startObserver(t, cp.Servers()[0].Config(observerUser, "system:masters"), observer.Options{})
	within(t, eventually, func() error {
		return s.saysUnmet("reached only 1 of them", "load balancer", "address of its own")
	})
	t.Log(s.Observe(policies).Problem.Message)
	during(t, 10*time.Second, func() error { return s.saysUnmet() }) // A late answer gives another reason.
	if err := s.AskEach(t.Context(), func(context.Context, documents.Reader) error { return nil }); err == nil {
		t.Error("one of three servers was asked, and that counts as all")
	}
	cp.Balancer().SetBackends()
	within(t, eventually, func() error { return s.complete(policies, storageversion.BuiltIn, 2) })
	s.stop()
}

// testForbidden has an observer that may read everything but start times.
func testForbidden(t *testing.T, cp *controlplane.ControlPlane) {
	const user = "restricted"
	client := kubernetes.NewForConfigOrDie(cp.AdminConfig())
	grant := func(name string, rule rbacv1.PolicyRule) {
		t.Helper()
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule}}
		binding := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: user}},
		}
		if _, err := client.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	everything := []string{"*"}
	grant("objects", rbacv1.PolicyRule{
		Verbs: []string{"list", "watch"}, APIGroups: everything, Resources: everything,
	})
	s := startObserver(t, cp.Config(user), observer.Options{})
	within(t, eventually, func() error { return s.saysUnmet("cannot get path", "/metrics", "Allow the manager") })
	t.Log(s.Observe(policies).Problem.Message)
	during(t, 5*time.Second, func() error { return s.saysUnmet() })

	grant("metrics", rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/metrics"}})
	within(t, 2*eventually, func() error { return s.complete(policies, storageversion.BuiltIn, 2) })
	last, _ := ptrTo(s.Observe(policies)).Last()
	t.Logf("asked %v", last.Evidence.Endpoints)
	s.stop()
}
