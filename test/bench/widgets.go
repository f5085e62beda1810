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
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	typed "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/samples"
)

const (
	group = "bench.example.com"
	kind  = "Widget"
	// probe is the name of an object that shows in which version the API server stores objects.
	probe = "probe"
	// objectSize is how long the only field of an object is.
	objectSize = 1500
	// page is how many objects are read from etcd at a time.
	page = 1000

	creators      = 16
	poll          = 100 * time.Millisecond
	servedWithin  = time.Minute
	objectPattern = `object-\d{6}`
)

func objectName(i int) string { return fmt.Sprintf("object-%06d", i) }

// widgets are the objects that are migrated, of a custom resource with the versions v1 and v2.
type widgets struct {
	cp          *controlplane.ControlPlane
	current     schema.GroupVersionResource // at the storage version
	objects     int
	definitions typed.CustomResourceDefinitionInterface
	dynamic     dynamic.Interface
	// prefix is where the API server keeps them in etcd.
	prefix string
}

// newWidgets defines the resource and creates objects.
func newWidgets(ctx context.Context, cp *controlplane.ControlPlane, objects int) (*widgets, error) {
	definitions, err := apiextensions.NewForConfig(cp.AdminConfig())
	if err != nil {
		return nil, err
	}
	objectClient, err := dynamic.NewForConfig(cp.AdminConfig())
	if err != nil {
		return nil, err
	}
	w := &widgets{
		cp: cp, objects: objects, dynamic: objectClient,
		definitions: definitions.ApiextensionsV1().CustomResourceDefinitions(),
		current:     schema.GroupVersionResource{Group: group, Version: "v1", Resource: "widgets"},
		prefix:      "/registry/" + group + "/widgets/",
	}
	if err := w.define(ctx, w.current.Resource, kind); err != nil {
		return nil, err
	}
	if err := w.settled(ctx); err != nil {
		return nil, err
	}
	var created errgroup.Group
	created.SetLimit(creators)
	for i := range objects {
		created.Go(func() error {
			_, err := w.client().Create(ctx, w.object(objectName(i)), metav1.CreateOptions{})
			return err
		})
	}
	return w, created.Wait()
}

// define creates a definition of a resource in the group.
func (w *widgets) define(ctx context.Context, plural, kind string) error {
	resource := schema.GroupResource{Group: group, Resource: plural}
	_, err := w.definitions.Create(ctx, samples.Definition(resource, kind, "v1", "v1", "v2"), metav1.CreateOptions{})
	return err
}

func (w *widgets) object(name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{
		Object: map[string]any{"spec": map[string]any{"payload": strings.Repeat("x", objectSize)}},
	}
	o.SetAPIVersion(w.current.GroupVersion().String())
	o.SetKind(kind)
	o.SetNamespace(metav1.NamespaceDefault)
	o.SetName(name)
	return o
}

func (w *widgets) client() dynamic.ResourceInterface {
	return w.dynamic.Resource(w.current).Namespace(metav1.NamespaceDefault)
}

func (w *widgets) definition(ctx context.Context) (*apiextensionsv1.CustomResourceDefinition, error) {
	return w.definitions.Get(ctx, w.current.GroupResource().String(), metav1.GetOptions{})
}

// flip changes the storage version. It returns when the API server stores objects in the new one, and tells when the
// definition was changed.
func (w *widgets) flip(ctx context.Context) (changed time.Time, err error) {
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		definition, err := w.definition(ctx)
		if err != nil {
			return err
		}
		for i := range definition.Spec.Versions {
			v := &definition.Spec.Versions[i]
			if v.Storage = !v.Storage; v.Storage {
				w.current.Version = v.Name
			}
		}
		changed = time.Now()
		_, err = w.definitions.Update(ctx, definition, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return changed, fmt.Errorf("changing the storage version: %w", err)
	}
	return changed, w.settled(ctx)
}

// settled returns when the API server stores objects in the current version. It creates and deletes one to find out.
func (w *widgets) settled(ctx context.Context) error {
	client := w.client()
	err := wait.PollUntilContextTimeout(ctx, poll, servedWithin, true, func(ctx context.Context) (bool, error) {
		if _, err := client.Create(ctx, w.object(probe), metav1.CreateOptions{}); err != nil {
			return false, nil // not served at that version yet
		}
		stored, err := w.cp.Etcd().Client().Get(ctx, w.prefix+metav1.NamespaceDefault+"/"+probe)
		if err != nil {
			return false, err
		}
		if err := client.Delete(ctx, probe, metav1.DeleteOptions{}); err != nil {
			return false, err
		}
		if len(stored.Kvs) != 1 {
			return false, errors.New("the probe is not where it should be in etcd")
		}
		return w.isCurrent(stored.Kvs[0].Value)
	})
	if err != nil {
		return fmt.Errorf("waiting until objects are stored as %s: %w", w.current.Version, err)
	}
	return nil
}

func (w *widgets) isCurrent(stored []byte) (bool, error) {
	var found metav1.TypeMeta
	err := json.Unmarshal(stored, &found)
	return found.APIVersion == w.current.GroupVersion().String(), err
}

// left counts the objects that etcd has in the old encoding.
func (w *widgets) left(ctx context.Context) (left int, err error) {
	for from, end := w.prefix, clientv3.GetPrefixRangeEnd(w.prefix); ; {
		found, err := w.cp.Etcd().Client().Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page))
		if err != nil {
			return 0, err
		}
		for _, stored := range found.Kvs {
			current, err := w.isCurrent(stored.Value)
			if err != nil {
				return 0, err
			}
			if !current {
				left++
			}
			from = string(stored.Key) + "\x00"
		}
		if !found.More {
			return left, nil
		}
	}
}

// onlyCurrentListed tells whether status.storedVersions says that all objects are stored in the current version.
func (w *widgets) onlyCurrentListed(ctx context.Context) (bool, error) {
	definition, err := w.definition(ctx)
	if err != nil {
		return false, err
	}
	return slices.Equal(definition.Status.StoredVersions, []string{w.current.Version}), nil
}
