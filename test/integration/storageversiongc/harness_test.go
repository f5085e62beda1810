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
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2/ktesting"
	"k8s.io/utils/clock"

	gc "sigs.k8s.io/svm-controller-manager/pkg/controller/storageversiongc"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const (
	// grace is the controller's: these tests are about what it promises, so they state it themselves.
	grace = 15 * time.Second
	// almostGrace is how soon a server must have its Lease again if its entries are to stay for certain.
	almostGrace = 13 * time.Second
	// soon is how long what comes "within seconds" may take on a busy machine, the grace included.
	soon = 15 * time.Minute

	identityLabel = "apiserver.kubernetes.io/identity"
)

// hook may answer a request instead of next, or do something before or after it.
type hook func(r *http.Request, next http.RoundTripper) (*http.Response, error)

// interceptor sits between the controller and the API server. Informers do not pass through it.
type interceptor struct {
	next http.RoundTripper

	mu       sync.Mutex
	hook     hook
	requests map[string]int
}

func (i *interceptor) RoundTrip(r *http.Request) (*http.Response, error) {
	i.mu.Lock()
	h := i.hook
	i.requests[r.Method+" "+kindOf(r)]++
	i.mu.Unlock()
	if h == nil {
		return i.next.RoundTrip(r)
	}
	return h(r, i.next)
}

func (i *interceptor) count(what string) int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.requests[what]
}

// awaitLeaseReads waits until the collector of that name has read Leases that many times.
func (i *interceptor) awaitLeaseReads(t *testing.T, name string, atLeast int) {
	t.Helper()
	framework.Eventually(t, soon, func(context.Context) error {
		if n := i.count("GET lease"); n < atLeast {
			return fmt.Errorf("%s: %d readings of leases", name, n)
		}
		return nil
	})
}

func (i *interceptor) total() (n int) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, count := range i.requests {
		n += count
	}
	return n
}

func kindOf(r *http.Request) string {
	if strings.Contains(r.URL.Path, "/leases") {
		return "lease"
	}
	return "storageversion"
}

func readsLease(r *http.Request) bool { return r.Method == http.MethodGet && kindOf(r) == "lease" }

// writes tells whether r changes the StorageVersion of that name.
func writes(r *http.Request, name string) bool {
	return r.Method != http.MethodGet && strings.Contains(r.URL.Path+"/", "/storageversions/"+name+"/")
}

// putsMarker tells from its body whether r only prepares a removal, and leaves the body to be read again.
func putsMarker(r *http.Request) bool {
	if r.Body == nil {
		return false
	}
	body, err := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	return err == nil && bytes.Contains(body, []byte("RemovingStaleEntries"))
}

// collector is one running controller.
type collector struct {
	*interceptor
	stop func()
}

type collectorOptions struct {
	hook hook
	// allLeases gives the controller an informer for all Leases, instead of the identity Leases in kube-system.
	allLeases bool
}

// startCollector runs a controller as a manager would. Its stop waits until nothing of it runs.
func startCollector(t *testing.T, cfg *rest.Config, o collectorOptions) *collector {
	t.Helper()
	i := &interceptor{hook: o.hook, requests: map[string]int{}}
	intercepted := rest.CopyConfig(cfg)
	intercepted.Wrap(func(next http.RoundTripper) http.RoundTripper {
		i.next = next
		return i
	})
	storageVersionFactory := informers.NewSharedInformerFactory(newClient(t, cfg), 0)
	leaseFactory := storageVersionFactory
	if !o.allLeases {
		leaseFactory = informers.NewSharedInformerFactoryWithOptions(newClient(t, cfg), 0,
			informers.WithNamespace(metav1.NamespaceSystem),
			informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = identityLabel }))
	}

	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	controller, err := gc.New(ctx, newClient(t, intercepted), leaseFactory.Coordination().V1().Leases(),
		storageVersionFactory.Internal().V1alpha1().StorageVersions(), clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	storageVersionFactory.Start(ctx.Done())
	leaseFactory.Start(ctx.Done())
	var running sync.WaitGroup
	running.Go(func() { _ = controller.Run(ctx) })

	var once sync.Once
	c := &collector{interceptor: i, stop: func() {
		once.Do(func() {
			cancel()
			running.Wait()
			storageVersionFactory.Shutdown()
			leaseFactory.Shutdown()
		})
	}}
	t.Cleanup(c.stop)
	return c
}

func newClient(t *testing.T, cfg *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func createLease(ctx context.Context, client kubernetes.Interface, serverID string, labels map[string]string) error {
	_, err := client.CoordinationV1().Leases(metav1.NamespaceSystem).Create(ctx,
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: serverID, Labels: labels}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating lease %q: %w", serverID, err)
	}
	return nil
}

func mustCreateLease(t *testing.T, client kubernetes.Interface, s server, labels map[string]string) {
	t.Helper()
	if err := createLease(t.Context(), client, s.id, labels); err != nil {
		t.Fatal(err)
	}
}

func deleteLease(ctx context.Context, client kubernetes.Interface, serverID string) error {
	err := client.CoordinationV1().Leases(metav1.NamespaceSystem).Delete(ctx, serverID, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting lease %q: %w", serverID, err)
	}
	return nil
}

// metric returns the sum over all label values that contain the given one.
func metric(t *testing.T, name, labelValue string) float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != "storage_version_garbage_collector_"+name {
			continue
		}
		for _, m := range family.GetMetric() {
			matches := labelValue == ""
			for _, label := range m.GetLabel() {
				matches = matches || label.GetValue() == labelValue
			}
			if matches {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func onlyServer(t *testing.T) *controlplane.ControlPlane {
	t.Helper()
	server := controlplane.StorageVersionAPI(controlplane.Server{AllowAll: true})
	return controlplane.Start(t, controlplane.Config{Servers: []controlplane.Server{server}})
}
