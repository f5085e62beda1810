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
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// countsAsGone is for how long a server must not have renewed its identity Lease before nobody waits for it.
const countsAsGone = 90 * time.Second

// testServerLagsAtEnd has a server freeze before the storage version of a definition changes, for so long that it
// counts as gone, and thaw in the middle of the migration. It could not be asked at the start, and it writes the old
// version until it hears of the change, which it does before the end. As long as it may come back at any time, the
// migration waits.
func testServerLagsAtEnd(t *testing.T, l *lagging) {
	const objects = 40
	c, r := l.cluster, newCustom("sleepers", "Sleeper")
	c.define(t, r)
	c.fill(t, r, "sleeper", objects)
	quick, sleeper := c.Servers()[0], c.Servers()[1]
	awaitServed(t, sleeper, r)
	// A client of the sleeper would wait for an answer.
	c = &cluster{framework.Use(t, c.ControlPlane, quick.Config("tester", framework.Masters))}
	half := l.startManagerForHalf(t, quick, r, objects) // It ends with this part, which c does not know.

	if err := sleeper.Pause(); err != nil {
		t.Fatal(err)
	}
	c.awaitReady(t, quick.Address())
	lease, err := c.Kube.CoordinationV1().Leases(metav1.NamespaceSystem).
		Get(t.Context(), sleeper.Identity(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l.etcd.holdWatches()
	c.flip(t, r, "v2")
	c.migrate(t, "lags-at-end", r.WithVersion(""))
	framework.Eventually(t, soon, func(ctx context.Context) error { return c.waitsFor(ctx, t, "lags-at-end", sleeper) })
	half.awaitDone(t)
	if waited := time.Since(lease.Spec.RenewTime.Time); waited < countsAsGone {
		t.Errorf("the migration began %v after the last sign of a server that may write the old version", waited)
	}
	if err := sleeper.Resume(); err != nil {
		t.Fatal(err)
	}
	c.awaitReady(t, quick.Address(), sleeper.Address())
	writeThrough(t, sleeper, r, "late")
	if stored := c.encodings(t, r.GroupResource); stored[r.encoding("v1")] == 0 {
		t.Fatalf("the server that thawed does not write v1: stored are %v", stored)
	}
	l.etcd.releaseWatches()
	awaitFollowing(t, sleeper, r, "v2")
	half.goOn.Store(true)

	m := c.ended(t, "lags-at-end", soon)
	if versions := c.storedVersions(t, r); !sameStrings(versions, "v1", "v2") {
		t.Errorf("status.storedVersions is %v while a server writes v1", versions)
	}
	mustFail(t, m, v1alpha1.MigrationReasonAgreementLost)

	c.migrate(t, "after-it-woke", r.WithVersion(""))
	mustSucceed(t, c.ended(t, "after-it-woke", soon))
	if stored := c.encodings(t, r.GroupResource); stored[r.encoding("v2")] != objects+1 {
		t.Errorf("stored are %v, want %d in v2", stored, objects+1)
	}
}

// waitsFor complains unless the migration says that it waits for a server. On a machine so busy that nobody saw that it
// may have begun.
func (c *cluster) waitsFor(ctx context.Context, t *testing.T, name string, server *controlplane.APIServer) error {
	m, err := c.fetch(ctx, name)
	if err != nil {
		return err
	}
	waiting := m.Status.Condition(v1alpha1.MigrationWaiting)
	switch {
	case m.Status.StartTime != nil:
		t.Logf("nobody saw that the migration waited for %s", server.Address())
	case waiting == nil || !strings.Contains(waiting.Message, server.Address()):
		return fmt.Errorf("the condition does not name the server: %+v", waiting)
	default:
		t.Logf("while a server is frozen: %s", waiting.Message)
	}
	return nil
}

// awaitFollowing waits until discovery of that server shows a storage version.
func awaitFollowing(t *testing.T, server *controlplane.APIServer, r custom, version string) {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(server.Config("reader", framework.Masters))
	if err != nil {
		t.Fatal(err)
	}
	gv := r.WithVersion(version).GroupVersion()
	want := storageversion.Hash(gv, r.kind)
	framework.Eventually(t, soon, func(context.Context) error {
		list, err := client.ServerResourcesForGroupVersion(gv.String())
		if err != nil {
			return err
		}
		follows := slices.ContainsFunc(list.APIResources, func(resource metav1.APIResource) bool {
			return resource.Name == r.Resource && resource.StorageVersionHash == want
		})
		if !follows {
			return fmt.Errorf("the server writes something else: %+v", list.APIResources)
		}
		return nil
	})
}

// testOwnServerLags has the server that the manager uses hear of nothing, while another server restarts. The migration
// must not succeed before the manager knows of that.
func testOwnServerLags(t *testing.T, c *lagging) {
	const objects = 40
	r := newCustom("hermits", "Hermit")
	c.define(t, r)
	c.fill(t, r, "hermit", objects)
	other, own := c.Servers()[0], c.Servers()[1]
	awaitServed(t, own, r)
	half := c.startManagerForHalf(t, own, r, objects)
	c.flip(t, r, "v2")
	c.migrate(t, "own-server-lags", r.WithVersion(""))
	half.awaitDone(t)
	c.etcd.holdWatches()
	if err := other.Restart(nil); err != nil {
		t.Fatal(err)
	}
	half.goOn.Store(true)

	framework.Eventually(t, soon, func(ctx context.Context) error {
		m, err := c.fetch(ctx, "own-server-lags")
		if err != nil {
			return err
		}
		running := m.Status.Condition(v1alpha1.MigrationRunning)
		if running == nil || !strings.Contains(running.Message, "identity Leases is late") {
			return fmt.Errorf("the condition does not say why the migration does not end: %+v", m.Status.Conditions)
		}
		t.Logf("while the manager hears of nothing: %s", running.Message)
		return nil
	})
	c.etcd.releaseWatches()
	mustSucceed(t, c.ended(t, "own-server-lags", soon))
	if stored := c.encodings(t, r.GroupResource); stored[r.encoding("v2")] != objects {
		t.Errorf("stored are %v, want %d in v2", stored, objects)
	}
}

// half is a manager that gets no further than half of the objects of a resource before it may go on.
type half struct {
	objects int64
	writes  atomic.Int64
	goOn    atomic.Bool
}

// startManagerForHalf starts a manager that uses one server.
func (c *cluster) startManagerForHalf(t *testing.T, server *controlplane.APIServer, r custom, objects int64) *half {
	t.Helper()
	gate, err := c.NewInterceptor("", server)
	if err != nil {
		t.Fatal(err)
	}
	h := &half{objects: objects}
	gate.Intercept(func(request *http.Request) controlplane.Verdict {
		ofObject := request.Method == http.MethodPatch && strings.Contains(request.URL.Path, "/"+r.Resource+"/")
		if ofObject && h.writes.Add(1) > objects/2 && !h.goOn.Load() {
			return controlplane.TooManyRequests("1")
		}
		return controlplane.Verdict{}
	})
	c.startProcess(t, framework.Process{Name: "manager", Config: gate.Config(framework.ManagerUser, framework.Masters)})
	return h
}

// awaitDone waits until half of the objects are written.
func (h *half) awaitDone(t *testing.T) {
	t.Helper()
	framework.Eventually(t, soon, func(context.Context) error {
		if n := h.writes.Load(); n <= h.objects/2 {
			return fmt.Errorf("the manager has sent %d patches", n)
		}
		return nil
	})
}

// awaitReady waits until the API names exactly these addresses of servers that are ready.
func (c *cluster) awaitReady(t *testing.T, addresses ...string) {
	t.Helper()
	slices.Sort(addresses)
	framework.Eventually(t, soon, func(ctx context.Context) error {
		endpoints, err := c.Kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).
			Get(ctx, "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err
		}
		var ready []string
		for _, endpoint := range endpoints.Endpoints {
			ready = append(ready, endpoint.Addresses...)
		}
		slices.Sort(ready)
		if !slices.Equal(ready, addresses) {
			return fmt.Errorf("the addresses are %v, want %v", ready, addresses)
		}
		return nil
	})
}
