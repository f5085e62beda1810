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
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/dynamic"

	"sigs.k8s.io/svm-controller-manager/pkg/fence"
	"sigs.k8s.io/svm-controller-manager/pkg/install"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
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

// testManagedFields rewrites an object whose managedFields name a version that is not served any more. By default the
// fence leaves these alone. With the component for it, the manager may clean them, and change nothing else.
// testUnservedVersions has objects of earlier releases, with managed fields of a beta version that nobody serves any
// more. The API server drops that entry of a built-in resource in every update.
func testUnservedVersions(t *testing.T, c *cluster, client dynamic.Interface, builtIn []target) {
	class := c.putOld(t, "/registry/priorityclasses/old", priorityClasses.WithVersion("v1"), "PriorityClass", "")
	mustDeny(t, "the loss of all managed fields", class.patch(t, client, metadataChanges[managedFields]))
	class.rewrite(t, client, "")
	live, err := class.client(client).Get(t.Context(), "old", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if entries := live.GetManagedFields(); len(entries) != 1 || entries[0].Manager != "new" {
		t.Errorf("the managed fields are %v", entries)
	}

	widget := c.putOld(t, "/registry/example.com/widgets/default/old", widgets.WithVersion("v2"), "Widget",
		`"namespace":"default",`)
	widget.rewrite(t, client, "")
	mustDeny(t, "the loss of an entry of a custom resource",
		widget.patch(t, client, `{"metadata":{"managedFields":[`+fmt.Sprintf(oldEntry, "new", "example.com/v2")+`]}}`))

	policy := c.kubectl(t, "", "get", "validatingadmissionpolicies", fence.Policy, "-o", "yaml")
	for _, o := range builtIn {
		if o.Group != widgets.Group && !strings.Contains(policy, fmt.Sprintf("'%s'", o.Group)) {
			t.Errorf("the fence does not know that %s is built in", o.GroupResource)
		}
	}
}

var priorityClasses = schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}

// oldEntry is an entry of managed fields, without its manager and its version.
const oldEntry = `{"manager":%q,"operation":"Update","apiVersion":%q,"time":"2020-01-01T00:00:00Z",` +
	`"fieldsType":"FieldsV1","fieldsV1":{"f:description":{}}}`

// putOld stores an object as an API server may have done years ago: a client has written it at the version v1beta1.
func (c *cluster) putOld(
	t *testing.T, key string, resource schema.GroupVersionResource, kind, metadata string,
) target {
	t.Helper()
	version := resource.GroupVersion().String()
	raw := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"value":5,"metadata":{"name":"old",%s"creationTimestamp":`+
		`"2020-01-01T00:00:00Z","uid":%q,"managedFields":[%s,%s]}}`, version, kind, metadata, string(uuid.NewUUID()),
		fmt.Sprintf(oldEntry, "old", resource.Group+"/v1beta1"), fmt.Sprintf(oldEntry, "new", version))
	if _, err := c.Etcd().Client().Put(t.Context(), key, raw); err != nil {
		t.Fatal(err)
	}
	o := target{version: resource.Version, object: decode(t, strings.NewReader(raw))[0]}
	o.GroupResource = resource.GroupResource()
	return o
}

func testManagedFields(t *testing.T, c *cluster, client dynamic.Interface) {
	admin := c.Dynamic.Resource(widgets.WithVersion("v1")).Namespace("default")
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "applied"},
		"spec": map[string]any{"field": "value"},
	}}
	applied := metav1.ApplyOptions{FieldManager: "applier"}
	if _, err := admin.Apply(t.Context(), "applied", object, applied); err != nil {
		t.Fatal(err)
	}
	c.ChangeDefinition(t, widgets, func(definition *apiextensionsv1.CustomResourceDefinition) {
		definition.Spec.Versions[0].Served = false
	})
	object.SetNamespace("default")
	o := target{install.Resource{GroupResource: widgets, HasStatus: true}, "v2", object}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		if _, err := admin.Get(ctx, "applied", metav1.GetOptions{}); err == nil {
			return errors.New("the version is still served")
		}
		return nil
	})
	o.rewrite(t, client, "")
	o.rewrite(t, client, "status")
	const cleaned = `{"metadata":{"managedFields":[{"manager":"storage-version-migrator","operation":"Apply",` +
		`"apiVersion":"example.com/v2","fieldsType":"FieldsV1","fieldsV1":{"f:metadata":{"f:name":{}}}}]}}`
	mustDeny(t, "cleaning", o.patch(t, client, cleaned))
	c.kubectl(t, "", "apply", "-k", "testdata/cleaning")
	framework.Eventually(t, soon, func(context.Context) error { return o.patch(t, client, cleaned) })
	for what, patch := range metadataChanges {
		if what != managedFields {
			mustDeny(t, what+", where cleaning is allowed", o.patch(t, client, patch))
		}
	}
	mustDeny(t, "a change of content, where cleaning is allowed", o.patch(t, client, `{"spec":{"field":"changed"}}`))
	live, err := c.Dynamic.Resource(widgets.WithVersion("v2")).Namespace("default").
		Get(t.Context(), "applied", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stale := func(entry metav1.ManagedFieldsEntry) bool { return entry.APIVersion == "example.com/v1" }
	if slices.ContainsFunc(live.GetManagedFields(), stale) {
		t.Errorf("the managed fields are %v", live.GetManagedFields())
	}
}
