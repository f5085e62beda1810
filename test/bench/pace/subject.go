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
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	// The migrator's user is a service account, as in a cluster, and so subject to priority and fairness as one.
	migratorUser = "system:serviceaccount:svm:manager"
	saGroup      = "system:serviceaccounts"
	definition   = "widgets.bench.example.com"
	creators     = 16
	flipTimeout  = time.Minute
	flipPoll     = 50 * time.Millisecond
	settleAfter  = time.Second
	probeName    = "probe"
)

var widgets = schema.GroupVersionResource{Group: "bench.example.com", Version: "v1", Resource: "widgets"}

// subject is the custom resource whose objects are rewritten.
type subject struct {
	cp          *controlplane.ControlPlane
	definitions apiextensions.Interface
	objects     dynamic.Interface
	metadata    metadata.Interface

	shape   int
	mu      sync.Mutex
	current map[string]bool // objects that were rewritten since the last flip
}

func newSubject(ctx context.Context, cp *controlplane.ControlPlane, o options) (*subject, error) {
	s := &subject{cp: cp}
	var err error
	if s.definitions, err = apiextensions.NewForConfig(cp.AdminConfig()); err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	if s.objects, err = dynamic.NewForConfig(cp.AdminConfig()); err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	if s.metadata, err = metadata.NewForConfig(cp.Config(migratorUser, saGroup)); err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	if err := s.prepare(ctx); err != nil {
		return nil, fmt.Errorf("preparing the foreground client's objects: %w", err)
	}
	if _, err := s.definitions.ApiextensionsV1().CustomResourceDefinitions().Create(ctx, widgetDefinition(), metav1.CreateOptions{}); err != nil {
		return nil, fmt.Errorf("creating the definition: %w", err)
	}
	if err := s.settled(ctx, "v1"); err != nil {
		return nil, err
	}
	var group errgroup.Group
	group.SetLimit(creators)
	for i := range o.objects {
		group.Go(func() error {
			_, err := s.objects.Resource(widgets).Namespace(metav1.NamespaceDefault).Create(ctx, widget(fmt.Sprintf("widget-%06d", i), o.size), metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, fmt.Errorf("creating objects: %w", err)
	}
	return s, nil
}

// prepare lets the two users do everything, and makes what the foreground client works on.
func (s *subject) prepare(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(s.cp.AdminConfig())
	if err != nil {
		return err
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "pace"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{
			{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: foregroundUser},
			{Kind: rbacv1.ServiceAccountKind, Namespace: "svm", Name: "manager"},
		},
	}
	if _, err := client.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return err
	}
	err = wait.PollUntilContextTimeout(ctx, flipPoll, flipTimeout, true, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
		return err == nil, nil
	})
	if err != nil {
		return err
	}
	for i := range foregroundObjects {
		name := fmt.Sprintf("foreground-%d", i)
		if _, err := client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, foregroundMap(name), metav1.CreateOptions{}); err != nil {
			return err
		}
		if _, err := client.CoordinationV1().Leases(metav1.NamespaceDefault).Create(ctx, foregroundLease(name), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// flip changes the storage version, and returns when writes are stored in it. First it rewrites what the last pass left, or the
// next would find objects that are stored as they should be.
func (s *subject) flip(ctx context.Context) error {
	if err := s.finish(ctx); err != nil {
		return fmt.Errorf("finishing the last pass: %w", err)
	}
	crd, err := s.definitions.ApiextensionsV1().CustomResourceDefinitions().Get(ctx, definition, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the definition: %w", err)
	}
	var target string
	for i := range crd.Spec.Versions {
		v := &crd.Spec.Versions[i]
		if v.Storage = !v.Storage; v.Storage {
			target = v.Name
		}
	}
	if _, err := s.definitions.ApiextensionsV1().CustomResourceDefinitions().Update(ctx, crd, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("flipping the storage version: %w", err)
	}
	s.current = map[string]bool{}
	return s.settled(ctx, target)
}

// settled waits until a new object is stored in version.
func (s *subject) settled(ctx context.Context, version string) error {
	probes := s.objects.Resource(widgets).Namespace(metav1.NamespaceDefault)
	err := wait.PollUntilContextTimeout(ctx, flipPoll, flipTimeout, true, func(ctx context.Context) (bool, error) {
		if _, err := probes.Create(ctx, widget(probeName, 1), metav1.CreateOptions{}); err != nil {
			return false, nil // not served yet
		}
		stored, err := s.cp.Etcd().Client().Get(ctx, "/registry/"+widgets.Group+"/"+widgets.Resource+"/default/"+probeName)
		if err != nil {
			return false, fmt.Errorf("reading etcd: %w", err)
		}
		if err := probes.Delete(ctx, probeName, metav1.DeleteOptions{}); err != nil {
			return false, fmt.Errorf("deleting the probe: %w", err)
		}
		if len(stored.Kvs) != 1 {
			return false, fmt.Errorf("the probe is not where it should be in etcd")
		}
		var object metav1.TypeMeta
		if err := json.Unmarshal(stored.Kvs[0].Value, &object); err != nil {
			return false, fmt.Errorf("decoding the probe: %w", err)
		}
		return object.APIVersion == widgets.Group+"/"+version, nil
	})
	if err != nil {
		return fmt.Errorf("waiting until objects are stored as %s: %w", version, err)
	}
	return nil
}

// list is one chunk of the objects.
func (s *subject) list(ctx context.Context, chunk int, token string) (*metav1.PartialObjectMetadataList, error) {
	list, err := s.metadata.Resource(widgets).List(ctx, metav1.ListOptions{Limit: int64(chunk), Continue: token})
	if err != nil {
		return nil, fmt.Errorf("listing objects: %w", err)
	}
	return list, nil
}

// rewrite lets the server store one object again, and says whether it did.
func (s *subject) rewrite(ctx context.Context, object *metav1.PartialObjectMetadata) (bool, error) {
	patch := fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q}}`, object.UID, object.ResourceVersion)
	got, err := s.metadata.Resource(widgets).Namespace(object.Namespace).Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current[object.Name] = true
	return got.ResourceVersion != object.ResourceVersion, nil
}

func (s *subject) finish(ctx context.Context) error {
	if s.current == nil { // every object was just created
		return nil
	}
	list, err := s.list(ctx, 0, "")
	if err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(creators)
	for i := range list.Items {
		s.mu.Lock()
		current := s.current[list.Items[i].Name]
		s.mu.Unlock()
		if !current {
			group.Go(func() error {
				_, err := s.rewrite(ctx, &list.Items[i])
				return err
			})
		}
	}
	return group.Wait()
}

func widget(name string, size int) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": widgets.GroupVersion().String(), "kind": "Widget",
		"metadata": map[string]any{"name": name},
		"spec":     map[string]any{"payload": strings.Repeat("x", size)},
	}}
}

func widgetDefinition() *apiextensionsv1.CustomResourceDefinition {
	open := true
	version := func(name string, storage bool) apiextensionsv1.CustomResourceDefinitionVersion {
		return apiextensionsv1.CustomResourceDefinitionVersion{
			Name: name, Served: true, Storage: storage,
			Schema: &apiextensionsv1.CustomResourceValidation{
				OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &open},
			},
		}
	}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: definition},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: widgets.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names:    apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{version("v1", true), version("v1beta1", false)},
		},
	}
}
