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

package install

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-api/migration/v1alpha1"
)

// testChangedByServer has objects which the API server itself changes when it gets a merge patch that changes nothing.
// The fence denies that. There are other ways to rewrite them.
func testChangedByServer(t *testing.T, c *cluster) {
	t.Run("a Service that became an ExternalName", func(t *testing.T) {
		services := c.Kube.CoreV1().Services("default")
		for _, name := range []string{"first", "odd", "other"} {
			service := &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
			}
			if _, err := services.Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		// spec.internalTrafficPolicy stays stored, and whoever reads the Service does not see it.
		const external = `{"spec":{"type":"ExternalName","externalName":"example.com","clusterIP":null,"clusterIPs":null}}`
		_, err := services.Patch(t.Context(), "odd", types.MergePatchType, []byte(external), metav1.PatchOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.mustSucceed(t, "services")
	})
	t.Run("a string that is not UTF-8", func(t *testing.T) {
		config := rest.CopyConfig(c.AdminConfig)
		config.ContentType = runtime.ContentTypeProtobuf
		typed, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		configMaps := typed.CoreV1().ConfigMaps("default")
		for name, value := range map[string]string{"first": "a", "odd": "a\xffb", "other": "c"} {
			configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"key": value}}
			if _, err := configMaps.Create(t.Context(), configMap, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		c.mustSucceed(t, "configmaps")
	})
	t.Run("an owner that is listed twice", func(t *testing.T) {
		const owner = `{"apiVersion":"v1","kind":"ConfigMap","name":"first","uid":"c0ffee00-0000-4000-8000-000000000000"}`
		const twice = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"twice","namespace":"default",` +
			`"uid":"c0ffee00-0000-4000-8000-000000000001","ownerReferences":[` + owner + "," + owner + `]}}`
		if _, err := c.Etcd().Client().Put(t.Context(), "/registry/configmaps/default/twice", twice); err != nil {
			t.Fatal(err)
		}
		m := c.migrate(t, schema.GroupResource{Resource: "configmaps"})
		if trueCondition(m, v1alpha1.MigrationSucceeded) == nil {
			t.Errorf("the migration ended with %+v, denied %+v", m.Status.Conditions, m.Status.DeniedObjects)
		}
	})
	t.Run("managed fields of a version that is gone", func(t *testing.T) {
		c.putOld(t, "/registry/priorityclasses/old", priorityClasses.WithVersion("v1"), "v1beta1")
		if m := c.migrate(t, priorityClasses); trueCondition(m, v1alpha1.MigrationSucceeded) == nil {
			t.Errorf("the migration ended with %+v, denied %+v", m.Status.Conditions, m.Status.DeniedObjects)
		}
	})
}

// mustSucceed wants a migration of a resource of the core group to succeed, and to change no object.
func (c *cluster) mustSucceed(t *testing.T, resource string) {
	t.Helper()
	core := schema.GroupResource{Resource: resource}
	before := c.stored(t, core)
	if m := c.migrate(t, core); trueCondition(m, v1alpha1.MigrationSucceeded) == nil {
		t.Errorf("the migration ended with %+v, denied %+v", m.Status.Conditions, m.Status.DeniedObjects)
	}
	c.onlyEncodings(t, core, before)
}
