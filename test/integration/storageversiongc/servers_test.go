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

package storageversiongc

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// TestServersThatComeAndGo is about real servers: one that stays, one that is killed, stopped and started again, and
// one that went while no controller was looking.
func TestServersThatComeAndGo(t *testing.T) {
	t.Parallel()
	one := controlplane.StorageVersionAPI(controlplane.Server{AllowAll: true})
	cp := controlplane.Start(t, controlplane.Config{Servers: []controlplane.Server{one, one, one}})
	servers := cp.Servers()
	stays, returns, missed := servers[0], servers[1], servers[2]
	cfg := stays.Config("admin", "system:masters")
	client := newClient(t, cfg)
	for _, s := range servers {
		framework.Eventually(t, soon, func(ctx context.Context) error { return mentions(ctx, client, s.Identity(), true) })
	}

	gate := newGate()
	killAndForget(t, client, missed)
	w, late := startWitness(t, client), false
	t.Run("killed servers are forgotten, whether somebody looked or not, and the living one is not", func(t *testing.T) {
		c := startCollector(t, cfg, collectorOptions{allLeases: true})
		defer c.stop()
		killAndForget(t, client, returns)
		deleted := time.Now()
		if err := deleteLease(t.Context(), client, stays.Identity()); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*controlplane.APIServer{returns, missed} {
			framework.Eventually(t, soon, func(ctx context.Context) error { return mentions(ctx, client, s.Identity(), false) })
		}
		// The server that stays has put its Lease back, before its entries would have gone with the others'.
		leases := client.CoordinationV1().Leases(metav1.NamespaceSystem)
		var lease *coordinationv1.Lease
		framework.Eventually(t, soon, func(ctx context.Context) (err error) {
			lease, err = leases.Get(ctx, stays.Identity(), metav1.GetOptions{})
			return err
		})
		t.Logf("the lease was deleted at %v and recreated at %v", deleted, lease.CreationTimestamp)
		if late = lease.CreationTimestamp.After(deleted.Add(almostGrace)); late {
			t.Log("that is so late on this machine that the entries may have gone")
			return
		}
		checkAlone(t, client, stays)
		if w.neverLost(t, stays.Identity()) == 0 {
			t.Error("the server that stays is in no object")
		}
	})
	t.Run("a server that is back before the removal keeps its entries", func(t *testing.T) {
		if err := returns.Restart(nil); err != nil {
			t.Fatal(err)
		}
		ready(t, returns)
		c := startCollector(t, cfg, collectorOptions{hook: gate.hook})
		defer c.stop()
		if err := returns.Stop(); err != nil {
			t.Fatal(err)
		}
		gate.waitForRemoval(t)
		if err := returns.Restart(nil); err != nil {
			t.Fatal(err)
		}
		ready(t, returns)
		back := startWitness(t, client)
		gate.open(t)
		framework.Eventually(t, soon, func(ctx context.Context) error { return noMarkers(ctx, client) })
		framework.During(t, 3*time.Second, func(ctx context.Context) error {
			return mentions(ctx, client, returns.Identity(), true)
		})
		if back.neverLost(t, returns.Identity()) == 0 {
			t.Error("the server that came back is in no object")
		}
	})
	if !late {
		w.neverLost(t, stays.Identity())
	}
}

func killAndForget(t *testing.T, client kubernetes.Interface, s *controlplane.APIServer) {
	t.Helper()
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := deleteLease(t.Context(), client, s.Identity()); err != nil {
		t.Fatal(err)
	}
}

func ready(t *testing.T, s *controlplane.APIServer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := s.Ready(ctx); err != nil {
		t.Fatal(err)
	}
}

// checkAlone wants every object to be the server's alone, and agreed on.
func checkAlone(t *testing.T, client kubernetes.Interface, s *controlplane.APIServer) {
	t.Helper()
	list, err := client.InternalV1alpha1().StorageVersions().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		got := statusOf(&list.Items[i])
		if len(got.Servers) != 1 || got.Servers[0] != s.Identity() || got.Common == "" || got.Condition != agreed {
			t.Errorf("%s is left as %v", list.Items[i].Name, got)
		}
	}
}

func noMarkers(ctx context.Context, client kubernetes.Interface) error {
	list, err := client.InternalV1alpha1().StorageVersions().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if got := statusOf(&list.Items[i]); got.Condition != agreed {
			return fmt.Errorf("%s is left as %v", list.Items[i].Name, got)
		}
	}
	return nil
}

// gate holds the controller right before its first removal.
type gate struct {
	reached, opened, answered chan struct{}
	reach, answer             sync.Once
}

func newGate() *gate {
	return &gate{reached: make(chan struct{}), opened: make(chan struct{}), answered: make(chan struct{})}
}

func (g *gate) hook(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	if r.Method == http.MethodGet || putsMarker(r) {
		return next.RoundTrip(r)
	}
	g.reach.Do(func() { close(g.reached) })
	select {
	case <-g.opened:
	case <-r.Context().Done():
	}
	response, err := next.RoundTrip(r)
	g.answer.Do(func() { close(g.answered) })
	return response, err
}

func (g *gate) waitForRemoval(t *testing.T) {
	t.Helper()
	select {
	case <-g.reached:
	case <-time.After(soon):
		t.Fatal("the controller never came to remove anything")
	}
}

// open lets the removal pass, and returns when the API server has answered.
func (g *gate) open(t *testing.T) {
	t.Helper()
	close(g.opened)
	select {
	case <-g.answered:
	case <-time.After(soon):
		t.Fatal("the controller's removal was never answered")
	}
}
