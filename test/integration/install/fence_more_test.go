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
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"sigs.k8s.io/svm-controller-manager/pkg/install"
)

// testAllowed does what the manager does, and what is only a little different.
func testAllowed(t *testing.T, c *cluster, client dynamic.Interface) {
	create := func(yaml string) error {
		object := decode(t, strings.NewReader(yaml))[0]
		resource := object.GroupVersionKind().GroupVersion().WithResource(strings.ToLower(object.GetKind()) + "s")
		objects := dynamic.ResourceInterface(client.Resource(resource))
		if namespace := object.GetNamespace(); namespace != "" {
			objects = client.Resource(resource).Namespace(namespace)
		}
		_, err := objects.Create(t.Context(), object, metav1.CreateOptions{})
		return err
	}
	const (
		lease = "apiVersion: coordination.k8s.io/v1\nkind: Lease\nmetadata: "
		event = "apiVersion: v1\nkind: Event\nmetadata: {generateName: a, namespace: default}\n" +
			"involvedObject: {kind: Lease}\nsource: {component: "
		state = "apiVersion: migration.k8s.io/v1alpha1\nkind: StorageState\nmetadata: {name: pods}\n" +
			"spec: {resource: {resource: pods}}"
	)
	for what, yaml := range map[string]string{
		"its Lease": lease + "{name: svm-controller-manager, namespace: kube-system}",
		"its Event": event + "svm-controller-manager}",
		"a state":   state,
	} {
		if err := create(yaml); err != nil {
			t.Errorf("creating %s: %v", what, err)
		}
	}
	mustDeny(t, "another Lease", create(lease+"{name: other, namespace: kube-system}"))
	mustDeny(t, "its Lease as the identity of an API server", create(lease+"{name: svm-controller-manager, "+
		"namespace: kube-system, labels: {apiserver.kubernetes.io/identity: kube-apiserver}}"))
	mustDeny(t, "its Lease elsewhere", create(lease+"{name: svm-controller-manager, namespace: default}"))
	mustDeny(t, "an event of somebody else", create(event+"somebody}"))

	definitions := client.Resource(apiextensionsv1.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	prune := func(status string) error {
		_, err := definitions.Patch(t.Context(), widgets.String(), types.MergePatchType,
			[]byte(`{"status":`+status+`}`), metav1.PatchOptions{}, "status")
		return err
	}
	mustDeny(t, "pruning, and more", prune(`{"storedVersions":["v2"],"conditions":[]}`))
	mustDeny(t, "pruning the storage version", prune(`{"storedVersions":["v1"]}`))
	if err := prune(`{"storedVersions":["v2"]}`); err != nil {
		t.Errorf("pruning: %v", err)
	}
	versions := client.Resource(schema.GroupVersionResource{
		Group: "internal.apiserver.k8s.io", Version: "v1alpha1", Resource: "storageversions",
	})
	publish := func(entries ...any) error {
		object, err := versions.Get(t.Context(), "core.pods", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		status := object.Object["status"].(map[string]any)
		entries = append(entries, status["storageVersions"].([]any)[1:]...)
		if status["storageVersions"] = entries; len(entries) == 0 {
			delete(status, "commonEncodingVersion")
		}
		_, err = versions.UpdateStatus(t.Context(), object, metav1.UpdateOptions{})
		return err
	}
	mustDeny(t, "publishing for an API server", publish(map[string]any{
		"apiServerID": "made-up", "encodingVersion": "v1", "decodableVersions": []any{"v1"},
	}))
	if err := publish(); err != nil {
		t.Errorf("removing what an API server has published: %v", err)
	}
	if err := versions.Delete(t.Context(), "core.pods", metav1.DeleteOptions{}); err != nil {
		t.Errorf("deleting garbage: %v", err)
	}
}

// testLarge compares an object of the size that etcd allows at most. Comparing must not cost more than a policy may.
func testLarge(t *testing.T, c *cluster, client dynamic.Interface) {
	large := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "large"}, Data: map[string]string{}}
	for i := range 8_000 {
		large.Data[fmt.Sprintf("%064d", i)] = strings.Repeat("v", 20)
	}
	large.Data["long"] = strings.Repeat("v", 300_000)
	configMaps := c.Kube.CoreV1().ConfigMaps("default")
	created, err := configMaps.Create(t.Context(), large, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("the object has %d bytes", created.Size())
	object := &unstructured.Unstructured{}
	object.SetName("large")
	object.SetNamespace("default")
	o := target{install.Resource{GroupResource: schema.GroupResource{Resource: "configmaps"}}, "v1", object}
	o.rewrite(t, client, "")
	mustDeny(t, "a change of a large object", o.patch(t, client, `{"data":{"long":"short"}}`))
}
