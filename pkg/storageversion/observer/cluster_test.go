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
	"encoding/json"
	"flag"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery"
	"k8s.io/klog/v2/ktesting"
	clocktesting "k8s.io/utils/clock/testing"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

const (
	leasesPath          = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
	endpointSlicesPath  = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
	apiServicesPath     = "/apis/apiregistration.k8s.io/v1/apiservices"
	sampleSlicesPath    = "/apis/discovery.k8s.io/v1/namespaces/sample/endpointslices"
	samplePodsPath      = "/api/v1/namespaces/sample/pods/"
	storageVersionsPath = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions"

	definitionsPath = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

	sampleV1Path = "/apis/sample.example.com/v1"
)

var (
	deployments = schema.GroupResource{Group: "apps", Resource: "deployments"}
	flunders    = schema.GroupResource{Group: "sample.example.com", Resource: "flunders"}

	sampleV1     = schema.GroupVersion{Group: "sample.example.com", Version: "v1"}
	customV1     = schema.GroupVersion{Group: "example.com", Version: "v1"}
	coreV1       = schema.GroupVersion{Version: "v1"}
	appsV1       = schema.GroupVersion{Group: "apps", Version: "v1"}
	appsV1beta1  = schema.GroupVersion{Group: "apps", Version: "v1beta1"}
	reviewsV1    = schema.GroupVersion{Group: "authorization.k8s.io", Version: "v1"}
	publishingV1 = schema.GroupVersion{Group: "internal.apiserver.k8s.io", Version: "v1alpha1"}
	publishingV2 = schema.GroupVersion{Group: "internal.apiserver.k8s.io", Version: "v1"}
	metricsV1    = schema.GroupVersion{Group: "metrics.k8s.io", Version: "v1beta1"}

	noon = time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
)

// cluster is what an Observer looks at: what all servers serve alike, at host, and servers at addresses of their own.
type cluster struct {
	*Observer
	host    *fakeServer
	servers []*fakeServer
	clock   *clocktesting.FakeClock
	stop    func()

	mu       sync.Mutex
	told     map[schema.GroupResource]int
	restored error

	leases, slices, definitions, apiServices, storageVersions, sampleSlices *collection
}

// TestMain fails if an Observer leaves goroutines behind. Tests wait for timeouts much more than for a processor, so
// more of them run at a time than the flag says.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// newCluster has that many servers. The Observer does not run yet. Tests with one wait much, so they run beside others.
func newCluster(t *testing.T, servers int) *cluster {
	t.Helper()
	c := &cluster{host: newFakeServer(t), clock: clocktesting.NewFakeClock(noon), told: map[schema.GroupResource]int{}}
	c.leases = c.host.collect(leasesPath, "coordination.k8s.io/v1", "Lease")
	c.slices = c.host.collect(endpointSlicesPath, "discovery.k8s.io/v1", "EndpointSlice")
	c.sampleSlices = c.host.collect(sampleSlicesPath, "discovery.k8s.io/v1", "EndpointSlice")
	c.definitions = c.host.collect(definitionsPath, "apiextensions.k8s.io/v1", "CustomResourceDefinition")
	c.apiServices = c.host.collect(apiServicesPath, "apiregistration.k8s.io/v1", "APIService")
	for range servers {
		c.servers = append(c.servers, newFakeServer(t))
	}
	c.host.change(func() {
		for i := range c.servers {
			c.hold(i, 1)
		}
		if servers > 0 {
			c.publishAddresses(c.servers...)
		}
		c.register(appsV1, "onstart", nil)
		c.register(customV1, "true", nil)
	})
	for _, s := range c.all() {
		serve(s, appsV1)
	}

	o, err := New(c.host.config(), Options{Clock: c.clock, Restored: func(err error, _ time.Time) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.restored = err
	}})
	if err != nil {
		t.Fatal(err)
	}
	c.Observer = o
	o.Subscribe(func(resource schema.GroupResource) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.told[resource]++
	})
	return c
}

// run has the Observer run, and waits until it has synced.
func (c *cluster) run(t *testing.T) {
	t.Helper()
	c.start(t)
	c.until(t, func() error {
		if !c.HasSynced() {
			return fmt.Errorf("not synced")
		}
		return nil
	})
}

func (c *cluster) start(t *testing.T) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	c.startWith(t, ctx)
}

// startWith has the Observer run with the logger of ctx.
func (c *cluster) startWith(t *testing.T, ctx context.Context) {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	c.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(c.stop)
}

// all are the host and the servers.
func (c *cluster) all() []*fakeServer { return append([]*fakeServer{c.host}, c.servers...) }

// isAnswering reports whether a request is under way. Its answer may take long on a busy machine.
func (c *cluster) isAnswering() bool { return slices.ContainsFunc(c.all(), (*fakeServer).isAnswering) }

// until lets time go by until check has nothing to complain about. Time stands still while a request is under way.
func (c *cluster) until(t *testing.T, check func() error) {
	t.Helper()
	eventually(t, func() error {
		err := check()
		if err != nil && !c.isAnswering() {
			c.clock.Step(100 * time.Millisecond)
		}
		return err
	})
}

// settle lets time go by until nothing is asked any more, and forgets what was.
func (c *cluster) settle(t *testing.T) {
	t.Helper()
	quiet := 0
	c.until(t, func() error {
		asked, answering := 0, c.isAnswering()
		for _, s := range c.all() {
			for path, n := range s.reset() {
				if !strings.HasSuffix(path, "?watch") {
					asked += n
				}
			}
		}
		if quiet++; asked > 0 || answering {
			quiet = 0
		}
		if quiet < 40 {
			return fmt.Errorf("the observer is still busy")
		}
		return nil
	})
}

// certain complains while it is not certain which processes were read, or none was.
func (c *cluster) certain() error {
	c.poller.mu.Lock()
	defer c.poller.mu.Unlock()
	ledger := c.poller.ledger
	if from := ledger.ConfirmableFrom(); !from.IsZero() || len(ledger.Living()) == 0 || ledger.NeedsLook() {
		return fmt.Errorf("it is not certain before %v", from)
	}
	return nil
}

// hold is called in a change. It gives server i a Lease as its nth process.
func (c *cluster) hold(i, n int) { c.holdAt(i, n, "") }

// holdAt is like hold, for a server that advertises an address.
func (c *cluster) holdAt(i, n int, address string) {
	name := fmt.Sprintf("server-%d", i)
	metadata := object{"labels": object{IdentityLabel: kubeAPIServer}}
	if address != "" {
		metadata["annotations"] = object{corev1.AnnotationPeerAdvertiseAddress: address}
	}
	c.leases.put(name, object{
		"metadata": metadata,
		"spec": object{"holderIdentity": fmt.Sprintf("%s_%d", name, n), "leaseDurationSeconds": 3600,
			"renewTime": metav1.NewMicroTime(c.clock.Now())},
	})
}

// publishAddresses is called in a change.
func (c *cluster) publishAddresses(servers ...*fakeServer) {
	for i, s := range servers {
		host, port, _ := strings.Cut(s.address(), ":")
		var number int32
		if _, err := fmt.Sscan(port, &number); err != nil {
			panic(err)
		}
		c.slices.put(fmt.Sprintf("kubernetes-%d", i), object{
			"addressType": "IPv4", "endpoints": []object{{"addresses": []string{host}}},
			"ports": []object{{"name": endpointsPort, "port": number}},
		})
	}
}

// register is called in a change. It adds an APIService.
func (c *cluster) register(gv schema.GroupVersion, automanaged string, service object) {
	spec := object{"group": gv.Group, "version": gv.Version}
	if service != nil {
		spec["service"] = service
	}
	c.apiServices.put(gv.Version+"."+gv.Group, object{
		"metadata": object{"labels": object{documents.AutomanagedLabel: automanaged}}, "spec": spec})
}

// serve gives a server the documents of a server whose deployments are encoded in that version, and which has besides
// that a custom group version and one in which nothing is stored.
func serve(s *fakeServer, encoding schema.GroupVersion) {
	list := func(items ...apidiscoveryv2.APIGroupDiscovery) string {
		return marshal(apidiscoveryv2.APIGroupDiscoveryList{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList"}, Items: items})
	}
	group := func(gv schema.GroupVersion, verbs ...string) apidiscoveryv2.APIGroupDiscovery {
		things := []apidiscoveryv2.APIResourceDiscovery{{Resource: "things", Verbs: verbs}}
		return apidiscoveryv2.APIGroupDiscovery{
			ObjectMeta: metav1.ObjectMeta{Name: gv.Group},
			Versions:   []apidiscoveryv2.APIVersionDiscovery{{Version: gv.Version, Resources: things}},
		}
	}
	s.change(func() {
		s.documents["/version"] = `{"gitVersion":"v1.37.1"}`
		s.documents["/api"] = list()
		s.documents["/apis"] = list(
			group(appsV1, "list", "update"), group(customV1, "list", "update"), group(reviewsV1, "create"))
		s.documents["/apis/apps/v1"] = resourcesDocument("deployments", "Deployment", encoding)
	})
}

func resourcesDocument(name, kind string, encoding schema.GroupVersion) string {
	hash := discovery.StorageVersionHash(encoding.Group, encoding.Version, kind)
	return marshal(metav1.APIResourceList{
		TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
		APIResources: []metav1.APIResource{stored(name, kind, hash, "list", "update")},
	})
}

func stored(name, kind, hash string, verbs ...string) metav1.APIResource {
	return metav1.APIResource{Name: name, Kind: kind, StorageVersionHash: hash, Verbs: verbs}
}

func marshal(o any) string {
	document, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	return string(document)
}
