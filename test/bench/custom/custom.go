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

// Package custom creates custom resources with two versions, and objects of them, for benchmarks.
package custom

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/samples"
)

const (
	// Group is the group of all resources.
	Group = "bench.example.com"
	// Probe is the name of an object that shows in which version objects are stored.
	Probe = "probe"

	creators = 16
	patience = time.Minute
	poll     = 50 * time.Millisecond
)

// Resource is a custom resource with the versions v1 and v2, which have the same fields.
type Resource struct {
	// Current is the resource at its storage version.
	Current schema.GroupVersionResource

	cp          *controlplane.ControlPlane
	kind        string
	size        int
	definitions apiextensions.Interface
}

// Define creates a definition that stores v1, and returns when it is served. Its objects will have the given size.
func Define(
	ctx context.Context, cp *controlplane.ControlPlane, plural, kind string, size int,
	conversion *apiextensionsv1.CustomResourceConversion,
) (*Resource, error) {
	definitions, err := apiextensions.NewForConfig(cp.AdminConfig())
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	r := &Resource{
		Current: schema.GroupVersionResource{Group: Group, Version: "v1", Resource: plural},
		cp:      cp, kind: kind, size: size, definitions: definitions,
	}
	definition := samples.Definition(r.Current.GroupResource(), kind, r.Current.Version, "v1", "v2")
	definition.Spec.Conversion = conversion
	_, err = definitions.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, definition, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("creating a definition: %w", err)
	}
	return r, r.Settled(ctx)
}

// Object returns an object that does not exist yet.
func (r *Resource) Object(name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"payload": strings.Repeat("x", r.size)}}}
	o.SetAPIVersion(r.Current.GroupVersion().String())
	o.SetKind(r.kind)
	o.SetNamespace(metav1.NamespaceDefault)
	o.SetName(name)
	return o
}

// Fill creates objects.
func (r *Resource) Fill(ctx context.Context, objects int) error {
	client, err := r.client()
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(creators)
	for i := range objects {
		group.Go(func() error {
			_, err := client.Create(ctx, r.Object(fmt.Sprintf("object-%06d", i)), metav1.CreateOptions{FieldManager: "filler"})
			return err
		})
	}
	return group.Wait()
}

// Flip changes the storage version. It returns when the API server stores writes in the new one.
func (r *Resource) Flip(ctx context.Context) error {
	client := r.definitions.ApiextensionsV1().CustomResourceDefinitions()
	definition, err := client.Get(ctx, r.Current.Resource+"."+Group, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading a definition: %w", err)
	}
	for i := range definition.Spec.Versions {
		v := &definition.Spec.Versions[i]
		if v.Storage = !v.Storage; v.Storage {
			r.Current.Version = v.Name
		}
	}
	if _, err := client.Update(ctx, definition, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("changing a definition: %w", err)
	}
	return r.Settled(ctx)
}

func (r *Resource) client() (dynamic.ResourceInterface, error) {
	config := rest.CopyConfig(r.cp.AdminConfig())
	config.QPS = -1
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return client.Resource(r.Current).Namespace(metav1.NamespaceDefault), nil
}

// Settled returns when the API server stores objects in the current version. It creates and deletes one to find out.
func (r *Resource) Settled(ctx context.Context) error {
	client, err := r.client()
	if err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, poll, patience, true, func(ctx context.Context) (bool, error) {
		if _, err := client.Create(ctx, r.Object(Probe), metav1.CreateOptions{}); err != nil {
			return false, nil // not served at that version yet
		}
		stored, err := r.cp.Etcd().Client().Get(ctx, "/registry/"+Group+"/"+r.Current.Resource+"/default/"+Probe)
		if err != nil {
			return false, err
		}
		if err := client.Delete(ctx, Probe, metav1.DeleteOptions{}); err != nil {
			return false, err
		}
		var found metav1.TypeMeta
		if len(stored.Kvs) != 1 || json.Unmarshal(stored.Kvs[0].Value, &found) != nil {
			return false, errors.New("the probe is not where it should be in etcd")
		}
		return found.APIVersion == r.Current.GroupVersion().String(), nil
	})
	if err != nil {
		return fmt.Errorf("waiting until objects are stored as %s: %w", r.Current.Version, err)
	}
	return nil
}
