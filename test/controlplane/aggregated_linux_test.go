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
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// testAggregatedServerAndControllers starts both beside a server with RBAC. Where programs have hosts of their own is
// what TestThreeServersOnHosts is about, and TestReplicasOfAnAggregatedServer of the observer.
func testAggregatedServerAndControllers(t *testing.T, cp *ControlPlane) {
	_, err := cp.StartControllerManager(
		"--controllers=serviceaccount-controller,serviceaccount-token-controller")
	must(t, err)
	sample, err := cp.StartSampleServer(t.Context(), "")
	must(t, err)

	t.Run("objects of the aggregated server are served and stored", func(t *testing.T) {
		flunders := schema.GroupVersionResource{Group: SampleGroup, Version: "v1beta1", Resource: "flunders"}
		object := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": flunders.GroupVersion().String(), "kind": "Flunder", "metadata": map[string]any{"name": "fritz"},
			"spec": map[string]any{"flunderReference": "x", "referenceType": "Flunder"},
		}}
		client := dynamicFor(t, cp).Resource(flunders).Namespace("default")
		_, err := client.Create(t.Context(), object, metav1.CreateOptions{})
		must(t, err)
		stored := storedOnly(t, cp, flunders.GroupResource(), "fritz")
		if diff := cmp.Diff("wardle.example.com/v1alpha1", stored.Encoding); diff != "" {
			t.Errorf("encoding (-want +got):\n%s", diff)
		}
	})
	t.Run("the aggregated server asks who clients are and what they may", func(t *testing.T) {
		client, err := dynamic.NewForConfig(cp.Config("mallory"))
		must(t, err)
		fischers := schema.GroupVersionResource{Group: SampleGroup, Version: "v1alpha1", Resource: "fischers"}
		if _, err := client.Resource(fischers).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("a user without rights lists fischers: %v", err)
		}
	})
	t.Run("the aggregated server is started again with other flags", func(t *testing.T) {
		must(t, sample.Kill())
		_, err := cp.StartSampleServer(t.Context(), "", "--watch-cache=false")
		must(t, err)
		flunders := schema.GroupVersionResource{Group: SampleGroup, Version: "v1alpha1", Resource: "flunders"}
		client := dynamicFor(t, cp).Resource(flunders).Namespace("default")
		eventually(t, "its object is served", func(ctx context.Context) error {
			_, err := client.Get(ctx, "fritz", metav1.GetOptions{})
			return err
		})
	})
	t.Run("controllers work", func(t *testing.T) {
		client := clientFor(t, cp.AdminConfig())
		eventually(t, "there is a default service account", func(ctx context.Context) error {
			if _, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
				return fmt.Errorf("looking for it: %w", err)
			}
			return nil
		})
	})
}
