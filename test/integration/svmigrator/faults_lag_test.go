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
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// lagsFor is for how long a server hears of nothing while a migration waits for it. After 90 s without an answer a
// server would count as gone; this one answers.
const lagsFor = 100 * time.Second

// lagging is two servers, of which the second one may hear of nothing.
type lagging struct {
	*cluster
	etcd *etcdProxy
}

func testLagging(t *testing.T) {
	cp := controlplane.Start(t, controlplane.Config{Hosts: true, Servers: []controlplane.Server{{AllowAll: true}}})
	c := useCluster(t, cp, cp.AdminConfig())
	l := &lagging{cluster: c, etcd: c.addServerBehindProxy(t)}
	c.inTurn(t,
		part{"server", func(t *testing.T, _ *cluster) { testLaggingServer(t, l) }},
		part{"schema of a server", func(t *testing.T, _ *cluster) { testLaggingSchema(t, l) }},
		part{"own server", func(t *testing.T, _ *cluster) { testOwnServerLags(t, l) }},
		part{"server at the end", func(t *testing.T, _ *cluster) { testServerLagsAtEnd(t, l) }},
		part{"server of the manager", func(t *testing.T, _ *cluster) { testServedByAnotherServer(t, l) }},
	)
}

// testLaggingServer has two servers, one of which does not hear that the storage version of a definition has changed.
// It goes on to write the old version.
func testLaggingServer(t *testing.T, c *lagging) {
	const objects = 30
	r, other := newCustom("laggards", "Laggard"), newCustom("stragglers", "Straggler")
	c.define(t, r)
	c.define(t, other)
	c.fill(t, r, "laggard", objects)
	laggard := c.Servers()[1]
	awaitServed(t, laggard, r)
	awaitServed(t, laggard, other)
	// A manager that asks the server which lags would do nothing at all.
	c.startProcess(t, framework.Process{
		Name: "manager", Config: c.Servers()[0].Config(framework.ManagerUser, framework.Masters),
		Args: []string{"--concurrent-migrations=1"},
	})

	c.etcd.holdWatches()
	c.flip(t, r, "v2")
	c.flip(t, other, "v2")
	c.migrate(t, "lag", r.WithVersion(""))
	c.migrate(t, "lag-too", other.WithVersion(""))
	var waiting v1alpha1.MigrationCondition
	framework.Eventually(t, soon, func(ctx context.Context) error {
		m, err := c.fetch(ctx, "lag")
		if err != nil {
			return err
		}
		if c := m.Status.Condition(v1alpha1.MigrationWaiting); c != nil {
			waiting = *c
		}
		if waiting.Status != corev1.ConditionTrue || !strings.Contains(waiting.Message, laggard.Address()) {
			return fmt.Errorf("the condition does not name the server: %+v", waiting)
		}
		return nil
	})
	t.Logf("while a server lags: %s", waiting.Message)
	writeThrough(t, laggard, r, "late")
	if n := c.encodings(t, r.GroupResource)[r.encoding("v1")]; n != objects+1 {
		t.Fatalf("%d objects are stored in v1, so the server does not lag", n)
	}
	began := time.Now()
	during(t, lagsFor, func(ctx context.Context) (complaint, failure error) {
		m, err := c.fetch(ctx, "lag")
		if err == nil && m.Status.StartTime != nil {
			complaint = fmt.Errorf("the migration has started: %s", words(m))
		}
		return complaint, err
	})
	writes, err := c.Requests(controlplane.RequestFilter{
		Users: []string{framework.ManagerUser}, Since: began, Verbs: []string{"create", "update", "patch"},
	})
	if err != nil {
		t.Fatal(err)
	}
	// Each server that is asked again may say something else: at first after 2, 4, 8 and 16 s, then every 30 s.
	if n, took := writes.Total(), time.Since(began); n > 2*int(5+took/(30*time.Second)) {
		t.Errorf("two migrations that wait for a server cost %d writes in %v", n, took)
	}

	c.etcd.releaseWatches()
	if m := c.ended(t, "lag", soon); condition(m, v1alpha1.MigrationSucceeded) == nil {
		t.Errorf("the migration failed: %s", words(m))
	}
	if stored := c.encodings(t, r.GroupResource); stored[r.encoding("v2")] != objects+1 {
		t.Errorf("stored are %v, want %d in v2", stored, objects+1)
	}
}

// testLaggingSchema has a server that does not hear that a definition has got a field. It writes the right version, and
// would drop the field from each object.
func testLaggingSchema(t *testing.T, c *lagging) {
	const objects = 30
	r := newCustom("fieldless", "Fieldless")
	c.define(t, r)
	c.fill(t, r, "fieldless", objects)
	laggard := c.Servers()[1]
	awaitServed(t, laggard, r)
	c.flip(t, r, "v2")
	encoding := r.encoding("v2")
	framework.Eventually(t, soon, func(ctx context.Context) error { // It follows when it stores something in v2.
		probe := r.object(fmt.Sprintf("probe-%d", time.Now().UnixNano()))
		_, err := objectsAt(t, laggard, r).Create(ctx, probe, metav1.CreateOptions{})
		if err == nil && c.encodings(t, r.GroupResource)[encoding] == 0 {
			err = errors.New("the server does not follow yet")
		}
		return err
	})
	c.startProcess(t, framework.Process{
		Name: "manager-of-schemas", Config: c.Servers()[0].Config(framework.ManagerUser, framework.Masters),
	})

	c.etcd.holdWatches()
	c.ChangeDefinition(t, r.GroupResource, func(definition *apiextensionsv1.CustomResourceDefinition) {
		for i := range definition.Spec.Versions {
			definition.Spec.Versions[i].Schema.OpenAPIV3Schema.Properties = map[string]apiextensionsv1.JSONSchemaProps{
				"late": {Type: "string"},
			}
		}
	})
	c.migrate(t, "lacks-field", r.WithVersion(""))
	framework.Eventually(t, soon, func(ctx context.Context) error {
		m, err := c.fetch(ctx, "lacks-field")
		if err != nil {
			return err
		}
		if m.Status.StartTime != nil {
			t.Fatalf("the migration has started: %s", words(m))
		}
		waiting := m.Status.Condition(v1alpha1.MigrationWaiting)
		if waiting == nil || !strings.Contains(waiting.Message, laggard.Address()) ||
			!strings.Contains(waiting.Message, "has not heard of the last change") {
			return fmt.Errorf("the condition does not name the server: %+v", waiting)
		}
		return nil
	})

	c.etcd.releaseWatches()
	if m := c.ended(t, "lacks-field", soon); condition(m, v1alpha1.MigrationSucceeded) == nil {
		t.Errorf("the migration failed: %s", words(m))
	}
}

// writeThrough creates an object through one server.
func writeThrough(t *testing.T, server *controlplane.APIServer, r custom, name string) {
	t.Helper()
	_, err := objectsAt(t, server, r).Create(t.Context(), r.object(name), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// awaitServed waits until that server serves the resource. Each hears of a definition by itself.
func awaitServed(t *testing.T, server *controlplane.APIServer, r custom) {
	t.Helper()
	objects := objectsAt(t, server, r)
	framework.Eventually(t, soon, func(ctx context.Context) error {
		_, err := objects.List(ctx, metav1.ListOptions{Limit: 1})
		return err
	})
}

// objectsAt is a client of that server for objects of the definition.
func objectsAt(t *testing.T, server *controlplane.APIServer, r custom) dynamic.ResourceInterface {
	t.Helper()
	client, err := dynamic.NewForConfig(server.Config("writer", framework.Masters))
	if err != nil {
		t.Fatal(err)
	}
	return client.Resource(r.WithVersion("v1")).Namespace(metav1.NamespaceDefault)
}

// etcdProxy stands between one server and etcd. It can hold back what etcd says on watches, and nothing else.
type etcdProxy struct {
	address string
	etcd    *grpc.ClientConn

	mu   sync.Mutex
	held chan struct{} // closed when watches go on; nil while they do
}

// addServerBehindProxy starts a server that reaches etcd by way of a proxy. It serves candidates as well.
func (c *cluster) addServerBehindProxy(t *testing.T) *etcdProxy {
	t.Helper()
	etcd := startEtcdProxy(t, c.ListenAddress(), strings.TrimPrefix(c.Etcd().URL(), "http://"))
	if _, err := c.AddServer(t.Context(), controlplane.Server{
		AllowAll: true, RuntimeConfig: []string{servesCandidates},
		ExtraArgs: []string{"--etcd-servers=http://" + etcd.address},
	}); err != nil {
		t.Fatal(err)
	}
	return etcd
}

func startEtcdProxy(t *testing.T, listenAddress, etcd string) *etcdProxy {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(listenAddress, "0"))
	if err != nil {
		t.Fatal(err)
	}
	p := &etcdProxy{address: listener.Addr().String()}
	unlimited := grpc.MaxCallRecvMsgSize(1 << 30)
	p.etcd, err = grpc.NewClient("passthrough:///"+etcd, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), unlimited))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(p.pass))
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		p.releaseWatches()
		server.Stop()
		serving.Wait()
		_ = p.etcd.Close()
	})
	return p
}

func (p *etcdProxy) holdWatches() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held = make(chan struct{})
}

func (p *etcdProxy) releaseWatches() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held != nil {
		close(p.held)
		p.held = nil
	}
}

// await returns when watches are not held back.
func (p *etcdProxy) await(ctx context.Context) error {
	p.mu.Lock()
	held := p.held
	p.mu.Unlock()
	if held == nil {
		return nil
	}
	select {
	case <-held:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pass passes the messages of one call on, in both directions.
func (p *etcdProxy) pass(_ any, client grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(client)
	ctx, cancel := context.WithCancel(client.Context())
	defer cancel()
	etcd, err := p.etcd.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	go func() {
		for message := (raw{}); client.RecvMsg(&message) == nil; {
			if etcd.SendMsg(&message) != nil {
				return
			}
		}
		_ = etcd.CloseSend()
	}()
	for message := (raw{}); ; {
		if err := etcd.RecvMsg(&message); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if strings.HasPrefix(method, "/etcdserverpb.Watch/") {
			if err := p.await(ctx); err != nil {
				return err
			}
		}
		if err := client.SendMsg(&message); err != nil {
			return err
		}
	}
}

// raw is a message that nobody decodes.
type raw struct{ bytes []byte }

type rawCodec struct{}

func (rawCodec) Name() string { return "raw" }

func (rawCodec) Marshal(message any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(message.(*raw).bytes)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, message any) error {
	message.(*raw).bytes = data.Materialize()
	return nil
}
