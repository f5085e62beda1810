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

package suite

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/onsi/ginkgo/v2"
	"golang.org/x/sync/errgroup"
	definitionclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

const (
	// writers is how many goroutines create objects.
	writers = 8
	// padding makes objects as large as usual ones.
	padding = "An object of the conformance suite of storage version migration. It is removed when its spec has ended."
	// page is how many objects are listed at a time.
	page = 500
)

func (c *Case) definitions() definitionclient.CustomResourceDefinitionInterface {
	return c.Extensions.ApiextensionsV1().CustomResourceDefinitions()
}

// Objects is a client for objects of a resource in the namespace of the spec, or in the cluster.
func (c *Case) Objects(r Resource) dynamic.ResourceInterface { return c.objects(r, c.Namespace) }

func (c *Case) objects(r Resource, namespace string) dynamic.ResourceInterface {
	return r.in(c.Dynamic, namespace)
}

// objectsAt is a client with a configuration of its own.
func objectsAt(config *rest.Config, r Resource, namespace string) (dynamic.ResourceInterface, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return r.in(client, namespace), nil
}

// in is a client for objects in a namespace, or in the cluster.
func (r Resource) in(client dynamic.Interface, namespace string) dynamic.ResourceInterface {
	if !r.Namespaced {
		return client.Resource(r.At())
	}
	return client.Resource(r.At()).Namespace(namespace)
}

// ObjectName is the name of one of the objects that Fill creates.
func ObjectName(i int) string { return fmt.Sprintf("object-%05d", i) }

// NewObject is an object of a resource.
func NewObject(r Resource, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"note": padding, "size": int64(1)},
	}}
	object.SetGroupVersionKind(r.At().GroupVersion().WithKind(r.Kind))
	object.SetName(name)
	object.SetLabels(map[string]string{"app": "conformance"})
	return object
}

// Fill creates so many objects of a resource, in turn in each namespace; in that of the spec if none is named.
func (c *Case) Fill(ctx context.Context, r Resource, count int, namespaces ...string) {
	ginkgo.GinkgoHelper()
	if len(namespaces) == 0 {
		namespaces = []string{c.Namespace}
	}
	c.Step("creating %d objects of %s", count, r)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range count {
		group.Go(func() error {
			_, err := c.tryCreate(ctx, r, namespaces[i%len(namespaces)], ObjectName(i))
			return err
		})
	}
	c.Must(group.Wait())
}

func (c *Case) create(ctx context.Context, r Resource, namespace, name string) *unstructured.Unstructured {
	ginkgo.GinkgoHelper()
	c.Eventually(ctx, func(ctx context.Context) error { // That of an earlier change of the storage version.
		return ignoreMissing(c.objects(r, namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	})
	object, err := c.tryCreate(ctx, r, namespace, name)
	c.Must(err)
	return object
}

// tryCreate creates an object, and tries again while nobody knows whether it was created.
func (c *Case) tryCreate(ctx context.Context, r Resource, namespace, name string) (*unstructured.Unstructured, error) {
	client := c.objects(r, namespace)
	var object *unstructured.Unstructured
	var last error
	err := wait.PollUntilContextTimeout(ctx, poll, c.Options.Patience, true, func(ctx context.Context) (bool, error) {
		created, err := client.Create(ctx, NewObject(r, name), metav1.CreateOptions{})
		if last != nil && apierrors.IsAlreadyExists(err) {
			created, err = client.Get(ctx, name, metav1.GetOptions{})
		}
		if OutcomeUnknown(err) {
			last = err
			return false, nil
		}
		object = created
		return true, err
	})
	if err != nil {
		return nil, errors.Join(err, last)
	}
	return object, nil
}

// own are the objects of a resource that the suite has created; of a built-in resource without namespaces all objects.
func (c *Case) own(r Resource) dynamic.ResourceInterface {
	if !r.Namespaced || strings.HasSuffix(r.Group, "."+groupDomain) {
		return c.Dynamic.Resource(r.At())
	}
	return c.Dynamic.Resource(r.At()).Namespace(c.Namespace)
}

// listAll lists the objects of own, in all namespaces.
func (c *Case) listAll(ctx context.Context, r Resource) (*unstructured.UnstructuredList, error) {
	all := &unstructured.UnstructuredList{}
	options := metav1.ListOptions{Limit: page}
	for {
		list, err := c.own(r).List(ctx, options)
		if err != nil {
			return nil, err
		}
		all.Items = append(all.Items, list.Items...)
		if all.GetResourceVersion() == "" {
			all.SetResourceVersion(list.GetResourceVersion())
		}
		if options.Continue = list.GetContinue(); options.Continue == "" {
			return all, nil
		}
	}
}
