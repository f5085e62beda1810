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
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

func testContinueTokensExpire(t *testing.T, cp *ControlPlane) {
	client := clientFor(t, cp.AdminConfig()).CoreV1().ConfigMaps("default")
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	if err := cp.ExpireContinueTokens(t.Context(), pods); err == nil {
		t.Error("tokens of a resource without objects expired")
	}
	if err := cp.ExpireContinueTokens(t.Context()); err == nil {
		t.Error("tokens of no resource expired")
	}
	for i := range 5 {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("chapter-%d", i), Namespace: "default"}}
		_, err := client.Create(t.Context(), object, metav1.CreateOptions{})
		must(t, err)
	}
	createTestCRD(t, cp, "v1")
	createTestOx(t, cp, "berta")
	createTestOx(t, cp, "egon")

	t.Run("of servers that remember old revisions", func(t *testing.T) { checkExpiry(t, cp, client) })
	t.Run("a second time", func(t *testing.T) { checkExpiry(t, cp, client) })
	must(t, cp.Servers()[0].Restart(func(s *Server) { s.FeatureGates = map[string]bool{"ListFromCacheSnapshot": false} }))
	t.Run("of servers that do not", func(t *testing.T) { checkExpiry(t, cp, client) })
}

func checkExpiry(t *testing.T, cp *ControlPlane, client corev1client.ConfigMapInterface) {
	first, err := client.List(t.Context(), metav1.ListOptions{Limit: 2})
	must(t, err)
	second, err := client.List(t.Context(), metav1.ListOptions{Limit: 2, Continue: first.Continue})
	must(t, err)
	began := time.Now()
	must(t, cp.ExpireContinueTokens(t.Context(), configMaps, testResource))
	t.Logf("tokens were expired after %v", time.Since(began).Round(time.Millisecond))

	for page, token := range map[string]string{"first": first.Continue, "second": second.Continue} {
		_, err := client.List(t.Context(), metav1.ListOptions{Limit: 2, Continue: token})
		var expired apierrors.APIStatus
		if !apierrors.IsResourceExpired(err) || !errors.As(err, &expired) ||
			expired.Status().Code != http.StatusGone || expired.Status().Continue == "" {
			t.Fatalf("the token of the %s page was answered with %v", page, err)
		}
		rest, err := client.List(t.Context(), metav1.ListOptions{Limit: 2, Continue: expired.Status().Continue})
		must(t, err)
		want := map[string]string{"first": "chapter-2", "second": "chapter-4"}[page]
		if len(rest.Items) == 0 || rest.Items[0].Name != want {
			t.Errorf("the new token after the %s page goes on with %v, want %s", page, rest.Items, want)
		}
	}
	// Lists that begin now are whole.
	if all, err := client.List(t.Context(), metav1.ListOptions{}); err != nil || len(all.Items) < 5 {
		t.Errorf("a new list has %v, %v", all, err)
	}
}
