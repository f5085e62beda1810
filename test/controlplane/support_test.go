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

package controlplane

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/test/samples"
)

const (
	testPoll    = 20 * time.Millisecond
	testTimeout = 3 * time.Minute
)

// eventually polls until check returns nil, and fails the test with its last error.
func eventually(t *testing.T, what string, check func(ctx context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	var last error
	err := wait.PollUntilContextCancel(ctx, testPoll, true, func(ctx context.Context) (bool, error) {
		last = check(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: %v: %v", what, err, last)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func clientFor(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	must(t, err)
	return client
}

// whoAmI asks a server who it takes the client for.
func whoAmI(t *testing.T, config *rest.Config) authenticationv1.UserInfo {
	t.Helper()
	reviews := clientFor(t, config).AuthenticationV1().SelfSubjectReviews()
	review, err := reviews.Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	must(t, err)
	return review.Status.UserInfo
}

func expectUser(t *testing.T, user authenticationv1.UserInfo, name string, groups ...string) {
	t.Helper()
	want, got := append([]string{name}, groups...), append([]string{user.Username}, user.Groups...)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("user and groups (-want +got):\n%s", diff)
	}
}

// testResource is the resource of testCRD.
var testResource = schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "oxen"}

// createTestCRD creates a CRD whose plural cannot be guessed from its kind, and waits until it is served.
func createTestCRD(t *testing.T, cp *ControlPlane, storageVersion string) {
	t.Helper()
	client, err := apiextensions.NewForConfig(cp.AdminConfig())
	must(t, err)
	definitions := client.ApiextensionsV1().CustomResourceDefinitions()
	_, err = definitions.Create(t.Context(), testCRD(storageVersion), metav1.CreateOptions{})
	must(t, err)
	oxen := dynamicFor(t, cp).Resource(testResource)
	eventually(t, "the custom resource is served", func(ctx context.Context) error {
		_, err := oxen.List(ctx, metav1.ListOptions{})
		return err
	})
}

func testCRD(storageVersion string) *apiextensionsv1.CustomResourceDefinition {
	return samples.Definition(testResource.GroupResource(), "Ox", storageVersion, "v1alpha1", "v1")
}

func testOx(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": testResource.GroupVersion().String(),
		"kind":       "Ox",
		"metadata":   map[string]any{"name": name, "namespace": metav1.NamespaceDefault},
		"spec":       map[string]any{"horns": int64(2), "weight": int64(9007199254740993)},
	}}
}

func createTestOx(t *testing.T, cp *ControlPlane, name string) {
	t.Helper()
	oxen := dynamicFor(t, cp).Resource(testResource).Namespace(metav1.NamespaceDefault)
	_, err := oxen.Create(t.Context(), testOx(name), metav1.CreateOptions{})
	must(t, err)
}

func dynamicFor(t *testing.T, cp *ControlPlane) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(cp.AdminConfig())
	must(t, err)
	return client
}

// storedOnly reads a resource that is expected to have one object.
func storedOnly(t *testing.T, cp *ControlPlane, gr schema.GroupResource, name string) StoredObject {
	t.Helper()
	objects, err := cp.Stored(t.Context(), gr)
	must(t, err)
	for _, o := range objects {
		if o.Name == name {
			return o
		}
	}
	t.Fatalf("%s %q is not among the %d objects found in etcd", gr, name, len(objects))
	return StoredObject{}
}
