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

// Package api tests the migration.k8s.io API as a real API server serves it: its CustomResourceDefinitions and the
// clients generated for it.
package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/svm-api/client/clientset/versioned"
	"sigs.k8s.io/svm-api/migration/crds"
	"sigs.k8s.io/svm-api/migration/v1alpha1"
	"sigs.k8s.io/yaml"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	pollInterval = 50 * time.Millisecond
	pollTimeout  = 10 * time.Minute
)

// fixtures is where the API module keeps serialized objects.
var fixtures = filepath.FromSlash("../../../staging/src/sigs.k8s.io/svm-api/migration/v1alpha1/testdata")

var (
	migrationsResource = v1alpha1.SchemeGroupVersion.WithResource("storageversionmigrations")
	statesResource     = v1alpha1.SchemeGroupVersion.WithResource("storagestates")
)

// With these options the API server refuses unknown fields.
var (
	strictCreate = metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	strictUpdate = metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict}
)

// shared is the API server that all tests use but those that need other definitions. It runs in sharedPlane.
var (
	shared      *cluster
	sharedPlane *controlplane.ControlPlane
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) (code int) {
	ctx := context.Background()
	cp, err := controlplane.New(ctx, controlplane.Config{
		Servers: []controlplane.Server{{AllowAll: true}}, Environment: controlplane.CollectLate,
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		if err := cp.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}()
	sharedPlane = cp
	if shared, err = newCluster(cp.AdminConfig()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	definitions, err := ourDefinitions()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := shared.install(ctx, definitions); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// cluster is an API server and clients for it.
type cluster struct {
	config        *rest.Config
	apiextensions apiextensions.Interface
	migration     versioned.Interface
	dynamic       dynamic.Interface
}

func newCluster(config *rest.Config) (*cluster, error) {
	c := &cluster{config: config}
	var err error
	if c.apiextensions, err = apiextensions.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	if c.migration, err = versioned.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	if c.dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	return c, nil
}

// install creates the definitions, or puts them in the place of those that are there, and waits until they are served.
func (c *cluster) install(ctx context.Context, definitions []*apiextensionsv1.CustomResourceDefinition) error {
	client := c.apiextensions.ApiextensionsV1().CustomResourceDefinitions()
	for _, definition := range definitions {
		_, err := client.Create(ctx, definition, strictCreate)
		if apierrors.IsAlreadyExists(err) {
			err = retry.RetryOnConflict(retry.DefaultRetry, func() error { // The API server writes its status.
				present, err := client.Get(ctx, definition.Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				present.Spec, present.Annotations = definition.Spec, definition.Annotations
				_, err = client.Update(ctx, present, strictUpdate)
				return err
			})
		}
		if err != nil {
			return fmt.Errorf("writing CustomResourceDefinition %q: %w", definition.Name, err)
		}
	}
	for _, definition := range definitions {
		gvr := schema.GroupVersionResource{Group: definition.Spec.Group, Version: definition.Spec.Versions[0].Name,
			Resource: definition.Spec.Names.Plural}
		if err := poll(ctx, func(ctx context.Context) (bool, error) {
			_, err := c.dynamic.Resource(gvr).List(ctx, metav1.ListOptions{Limit: 1})
			return err == nil, nil
		}); err != nil {
			return fmt.Errorf("waiting until %s is served: %w", gvr, err)
		}
	}
	return nil
}

func poll(ctx context.Context, condition wait.ConditionWithContextFunc) error {
	return wait.PollUntilContextTimeout(ctx, pollInterval, pollTimeout, true, condition)
}

// ourDefinitions are the definitions that the API module embeds.
func ourDefinitions() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	manifests, err := crds.Manifests()
	if err != nil {
		return nil, err
	}
	var definitions []*apiextensionsv1.CustomResourceDefinition
	for _, manifest := range manifests {
		definition := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(manifest.YAML, definition); err != nil {
			return nil, fmt.Errorf("decoding %s: %w", manifest.FileName, err)
		}
		definitions = append(definitions, definition)
	}
	return definitions, nil
}

// resourceOf is the resource client for the kind of object.
func (c *cluster) resourceOf(object *unstructured.Unstructured) dynamic.ResourceInterface {
	if object.GetKind() == "StorageState" {
		return c.dynamic.Resource(statesResource)
	}
	return c.dynamic.Resource(migrationsResource)
}

// createWithStatus creates object and writes its status, which creation leaves out.
func (c *cluster) createWithStatus(t *testing.T, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	created, err := c.resourceOf(object).Create(t.Context(), object, strictCreate)
	if err != nil {
		t.Fatalf("creating %s %q: %v", object.GetKind(), object.GetName(), err)
	}
	status, ok := object.Object["status"]
	if !ok {
		return created
	}
	created.Object["status"] = status
	updated, err := c.resourceOf(object).UpdateStatus(t.Context(), created, strictUpdate)
	if err != nil {
		t.Fatalf("writing the status of %s %q: %v", object.GetKind(), object.GetName(), err)
	}
	return updated
}

// clear deletes all objects of the API.
func (c *cluster) clear(t *testing.T) {
	t.Helper()
	for _, gvr := range []schema.GroupVersionResource{migrationsResource, statesResource} {
		// The test's own context has ended when this runs as a cleanup.
		err := c.dynamic.Resource(gvr).
			DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{})
		if err != nil {
			t.Errorf("deleting all %s: %v", gvr.Resource, err)
		}
	}
}

// objectsIn reads all objects of the YAML files that match pattern.
func objectsIn(t *testing.T, pattern string) []*unstructured.Unstructured {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	var objects []*unstructured.Unstructured
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, parseObjects(t, data)...)
	}
	if len(objects) == 0 {
		t.Fatalf("no objects in %s", pattern)
	}
	return objects
}

// convert decodes object into a typed one, and fails the test if a field is unknown.
func convert(t *testing.T, object *unstructured.Unstructured, into any) {
	t.Helper()
	err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, into, true)
	if err != nil {
		t.Fatal(err)
	}
}

func parseObjects(t *testing.T, data []byte) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLToJSONDecoder(bytes.NewReader(data))
	for {
		var raw runtime.RawExtension
		if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatal(err)
		}
		object := &unstructured.Unstructured{}
		if err := object.UnmarshalJSON(raw.Raw); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
}
