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

package svmtrigger

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/samples"
)

// newDefinition is a definition with the versions v1 and v2, without conversion, that stores one of them.
func newDefinition(r resource, storage string) *apiextensionsv1.CustomResourceDefinition {
	return samples.Definition(r.GroupResource, r.kind, storage, "v1", "v2")
}

// define creates definitions that store v1, and waits until they are served.
func (c *cluster) define(t *testing.T, resources ...resource) {
	t.Helper()
	for _, r := range resources {
		if _, err := c.Definitions().Create(t.Context(), newDefinition(r, "v1"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range resources {
		framework.Eventually(t, soon, func(ctx context.Context) error {
			_, err := c.objects(r).List(ctx, metav1.ListOptions{Limit: 1})
			return err
		})
	}
}

// objects is a client for objects of a definition.
func (c *cluster) objects(r resource) dynamic.ResourceInterface {
	return c.Dynamic.Resource(r.WithVersion("v1")).Namespace(metav1.NamespaceDefault)
}

// flip makes the definition store that version, and returns when it began to: the change is not earlier.
func (c *cluster) flip(t *testing.T, r resource, version string) time.Time {
	t.Helper()
	began := time.Now()
	c.StoreVersion(t, r.GroupResource, version)
	return began
}

// setStoredVersions edits what the definition says was stored, as people do by hand.
func (c *cluster) setStoredVersions(t *testing.T, r resource, versions ...string) {
	t.Helper()
	client := c.Definitions()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		definition, err := client.Get(t.Context(), r.String(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		definition.Status.StoredVersions = versions
		_, err = client.UpdateStatus(t.Context(), definition, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// undefine deletes a definition, with its objects, and returns when it is gone.
func (c *cluster) undefine(t *testing.T, r resource) {
	t.Helper()
	client := c.Definitions()
	if err := client.Delete(t.Context(), r.String(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		_, err := client.Get(ctx, r.String(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the definition of %s is still there (%w)", r, err)
	})
}

// create creates an object of a definition.
func (c *cluster) create(t *testing.T, r resource, name string) {
	t.Helper()
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": r.Group + "/v1", "kind": r.kind, "metadata": map[string]any{"name": name},
	}}
	// A server may still serve a definition of that name that is gone.
	framework.Create(t, soon, c.objects(r), object)
}

// createStoredAs creates objects until one is stored in that version: servers follow a definition after a moment.
func (c *cluster) createStoredAs(t *testing.T, r resource, name, version string) {
	t.Helper()
	attempt := 0
	framework.Eventually(t, soon, func(context.Context) error {
		attempt++
		c.create(t, r, fmt.Sprintf("%s-%d", name, attempt))
		stored, err := c.storedVersions(t, r)
		if err == nil && !slices.Contains(stored, r.Group+"/"+version) {
			err = fmt.Errorf("%s is stored as %v only", r, stored)
		}
		return err
	})
}

// storedVersions are the encodings that etcd has of the resource.
func (c *cluster) storedVersions(t *testing.T, r resource) ([]string, error) {
	t.Helper()
	objects, err := c.StoredUnder(t.Context(), r.prefix, 0)
	if err != nil {
		return nil, err
	}
	var versions []string
	for _, o := range objects {
		versions = append(versions, o.Encoding)
	}
	slices.Sort(versions)
	return slices.Compact(versions), nil
}
