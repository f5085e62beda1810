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

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const acceptMetadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

// class is a resource with objects.
type class struct {
	cp       *controlplane.ControlPlane
	options  options
	resource schema.GroupVersionResource
	object   func(name string) *unstructured.Unstructured
	// stale makes every object need a rewrite. It is nil if that is not possible.
	stale func(ctx context.Context) error
	// end stops what serves the class.
	end func() error
	// others are other processes that serve it.
	others []*controlplane.Process
}

func (c *class) client(config *rest.Config) (dynamic.ResourceInterface, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1
	config.WarningHandlerWithContext = rest.NoWarnings{}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return client.Resource(c.resource).Namespace(metav1.NamespaceDefault), nil
}

func (c *class) fill(ctx context.Context) error {
	client, err := c.client(c.cp.AdminConfig())
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(16)
	for i := range c.options.objects {
		group.Go(func() error {
			_, err := client.Create(ctx, c.object(fmt.Sprintf("object-%05d", i)), metav1.CreateOptions{FieldManager: "filler"})
			return err
		})
	}
	return group.Wait()
}

// measure writes every object once.
func (c *class) measure(ctx context.Context, w write) (*figures, error) {
	if c.stale != nil {
		if err := c.stale(ctx); err != nil {
			return nil, err
		}
	}
	client, err := c.client(c.cp.AdminConfig())
	if err != nil {
		return nil, err
	}
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var meter meter
	config := rest.CopyConfig(c.cp.AdminConfig())
	config.Wrap(meter.wrap)
	config.QPS = -1
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	config.GroupVersion, config.APIPath = &schema.GroupVersion{}, "/"
	requests, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, err
	}
	before, err := c.cpu()
	if err != nil {
		return nil, err
	}
	own, began := ownCPU(), time.Now()
	var group errgroup.Group
	group.SetLimit(c.options.workers)
	for i := range list.Items {
		group.Go(func() error { return c.send(ctx, requests, w, &list.Items[i]) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	took, ownUsed := time.Since(began), ownCPU()-own
	after, err := c.cpu()
	if err != nil {
		return nil, err
	}
	f := &figures{
		perSecond: float64(len(list.Items)) / took.Seconds(),
		serverCPU: (after - before) / time.Duration(len(list.Items)),
		clientCPU: ownUsed / time.Duration(len(list.Items)),
		sent:      float64(meter.sent.Load()) / float64(len(list.Items)),
		received:  float64(meter.received.Load()) / float64(len(list.Items)),
	}
	return f, c.compare(ctx, client, list, w, f)
}

func (c *class) send(ctx context.Context, requests rest.Interface, w write, object *unstructured.Unstructured) error {
	body, err := w.body(object)
	if err != nil {
		return err
	}
	request := requests.Patch(w.kind)
	if w.put {
		request = requests.Put().SetHeader("Content-Type", "application/json")
	}
	accept := acceptMetadata
	if w.whole {
		accept = "application/json"
	}
	path := []string{
		"apis", c.resource.Group, c.resource.Version,
		"namespaces", object.GetNamespace(), c.resource.Resource, object.GetName(),
	}
	if c.resource.Group == "" {
		path = append([]string{"api"}, path[2:]...)
	}
	return request.AbsPath(path...).SetHeader("Accept", accept).Param("fieldManager", w.manager).Body(body).Do(ctx).Error()
}

// compare counts what the writes did.
func (c *class) compare(
	ctx context.Context, client dynamic.ResourceInterface, before *unstructured.UnstructuredList, w write, f *figures,
) error {
	after, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	versions := map[string]string{}
	for i := range before.Items {
		versions[before.Items[i].GetName()] = before.Items[i].GetResourceVersion()
	}
	for i := range after.Items {
		object := &after.Items[i]
		if versions[object.GetName()] != object.GetResourceVersion() {
			f.stored++
		}
		for _, entry := range object.GetManagedFields() {
			if entry.Manager == w.manager {
				f.traces++
				break
			}
		}
	}
	return nil
}

// cpu returns the CPU time of all processes that serve the class.
func (c *class) cpu() (time.Duration, error) {
	var used time.Duration
	processes := append([]*controlplane.Process{c.cp.Etcd().Process(), c.cp.Servers()[0].Process()}, c.others...)
	for _, process := range processes {
		usage, err := process.Usage()
		if err != nil {
			return 0, err
		}
		used += usage.CPU
	}
	return used, nil
}

func ownCPU() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// meter counts the bytes of bodies.
type meter struct{ sent, received atomic.Int64 }

func (m *meter) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(request *http.Request) (*http.Response, error) {
		m.sent.Add(max(0, request.ContentLength))
		response, err := next.RoundTrip(request)
		if err != nil {
			return nil, err
		}
		response.Body = &countingBody{ReadCloser: response.Body, count: &m.received}
		return response, nil
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (r roundTripper) RoundTrip(request *http.Request) (*http.Response, error) { return r(request) }

type countingBody struct {
	io.ReadCloser
	count *atomic.Int64
}

func (b *countingBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.count.Add(int64(n))
	return n, err
}
