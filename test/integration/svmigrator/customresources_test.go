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
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/samples"
)

// writers is how many objects are written at a time.
const writers = 16

// custom is the resource of a definition of ours.
type custom struct {
	schema.GroupResource
	kind string
	// padding is how many bytes each object has besides.
	padding int
}

func newCustom(plural, kind string) custom {
	return custom{GroupResource: schema.GroupResource{Group: "migration.test", Resource: plural}, kind: kind}
}

// definition has the versions v1 and v2, both with a status, and stores one of them.
func (r custom) definition(storage string) *apiextensionsv1.CustomResourceDefinition {
	definition := samples.Definition(r.GroupResource, r.kind, storage, "v1", "v2")
	for i := range definition.Spec.Versions {
		definition.Spec.Versions[i].Subresources = &apiextensionsv1.CustomResourceSubresources{
			Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
		}
	}
	return definition
}

// define creates a definition that stores v1, changed by whoever wants to, and waits until it is served.
func (c *cluster) define(t *testing.T, r custom, changes ...func(*apiextensionsv1.CustomResourceDefinition)) {
	t.Helper()
	definition := r.definition("v1")
	for _, change := range changes {
		change(definition)
	}
	if _, err := c.Definitions().Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		_, err := c.objects(r).List(ctx, metav1.ListOptions{Limit: 1})
		return err
	})
}

// objects is a client for objects of a definition.
func (c *cluster) objects(r custom) dynamic.ResourceInterface {
	return c.Dynamic.Resource(r.WithVersion("v1")).Namespace(metav1.NamespaceDefault)
}

// flip makes the definition store that version.
func (c *cluster) flip(t *testing.T, r custom, version string) {
	t.Helper()
	c.StoreVersion(t, r.GroupResource, version)
}

// storedVersions are those that the definition lists.
func (c *cluster) storedVersions(t *testing.T, r custom) []string {
	t.Helper()
	definition, err := c.Definitions().Get(t.Context(), r.String(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return definition.Status.StoredVersions
}

// fill puts n objects into etcd with names that start with prefix. The API server creates the first. The others are
// stored as that one is: to ask the API server for each would take longer than most tests.
func (c *cluster) fill(t *testing.T, r custom, prefix string, n int) {
	t.Helper()
	name := func(i int) string { return fmt.Sprintf("%s-%05d", prefix, i) }
	options := metav1.CreateOptions{FieldManager: "filler"}
	if _, err := c.objects(r).Create(t.Context(), r.object(name(0)), options); err != nil {
		t.Fatal(err)
	}
	stored, err := c.Stored(t.Context(), r.GroupResource)
	if err != nil {
		t.Fatal(err)
	}
	original := stored[slices.IndexFunc(stored, func(o controlplane.StoredObject) bool { return o.Name == name(0) })]
	folder := strings.TrimSuffix(original.Key, original.Name)
	var copying errgroup.Group
	copying.SetLimit(writers)
	for i := 1; i < n; i++ {
		copying.Go(func() error {
			raw, err := r.copyOf(original, name(i), metav1.NamespaceDefault)
			if err != nil {
				return err
			}
			_, err = c.Etcd().Client().Put(t.Context(), folder+name(i), string(raw))
			return err
		})
	}
	if err := copying.Wait(); err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		list, err := c.objects(r).List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return err
		}
		if more := ptr.Deref(list.GetRemainingItemCount(), 0); more != int64(len(stored)+n-2) {
			return fmt.Errorf("the API server counts %d objects and one", more)
		}
		return nil
	})
}

// copyOf is an object as it is stored, with the name, namespace, uid and content of another one.
func (r custom) copyOf(original controlplane.StoredObject, name, namespace string) ([]byte, error) {
	fields := map[string]any{}
	if err := json.Unmarshal(original.Raw, &fields); err != nil {
		return nil, err
	}
	metadata := fields["metadata"].(map[string]any)
	metadata["name"], metadata["namespace"], metadata["uid"] = name, namespace, uuid.NewUUID()
	fields["spec"] = r.object(name).Object["spec"]
	return json.Marshal(fields)
}

func (r custom) object(name string) *unstructured.Unstructured {
	payload := "of " + name + strings.Repeat(".", r.padding)
	object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"payload": payload}}}
	object.SetAPIVersion(r.WithVersion("v1").GroupVersion().String())
	object.SetKind(r.kind)
	object.SetName(name)
	object.SetNamespace(metav1.NamespaceDefault)
	return object
}

// encodings counts objects in etcd by the encoding they are stored in.
func (c *cluster) encodings(t *testing.T, r schema.GroupResource) map[string]int {
	t.Helper()
	stored, err := c.Stored(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	for _, object := range stored {
		counts[object.Encoding]++
	}
	return counts
}

func sameStrings(a []string, b ...string) bool { return slices.Equal(a, b) }
