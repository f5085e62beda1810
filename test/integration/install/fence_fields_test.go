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
	"path"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/dynamic"

	"sigs.k8s.io/svm-controller-manager/pkg/fence"
	"sigs.k8s.io/svm-controller-manager/pkg/install"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// testManagedFields rewrites an object whose managedFields name a version that is not served any more. By default the
// fence leaves these alone. With the component for it, the manager may clean them, and change nothing else.
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

// testUnservedVersions has objects of earlier releases, with managed fields of a beta version that nobody serves any
// more. The API server drops that entry of a built-in resource in every update. The fence allows that, and no other
// change of the managed fields.
func testUnservedVersions(t *testing.T, c *cluster, client dynamic.Interface, builtIn []target) {
	class := c.putOld(t, "/registry/priorityclasses/old", priorityClasses.WithVersion("v1"), "v1beta1", "v1")
	beta, ga := oldEntry("scheduling.k8s.io/v1beta1"), oldEntry("scheduling.k8s.io/v1")
	for what, entries := range map[string]string{
		"of all entries":             "{}",
		"of the entry that is valid": beta,
		"to another manager":         beta + "," + strings.Replace(ga, `"client"`, `"thief"`, 1),
	} {
		mustDeny(t, "a change "+what, class.patch(t, client, `{"metadata":{"managedFields":[`+entries+`]}}`))
	}
	only := c.putOld(t, "/registry/priorityclasses/only", priorityClasses.WithVersion("v1"), "v1beta1")
	for o, left := range map[*target]int{&class: 1, &only: 0} {
		o.rewrite(t, client, "")
		live, err := o.client(client).Get(t.Context(), o.object.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if entries := live.GetManagedFields(); len(entries) != left {
			t.Errorf("%d entries are left of %s, want %d: %v", len(entries), o, left, entries)
		}
	}

	widget := c.putOld(t, "/registry/example.com/widgets/default/old", widgets.WithVersion("v2"), "v1beta1", "v2")
	widget.rewrite(t, client, "")
	mustDeny(t, "the loss of an entry of a custom resource",
		widget.patch(t, client, `{"metadata":{"managedFields":[`+oldEntry("example.com/v2")+`]}}`))

	policy, err := c.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().
		Get(t.Context(), fence.Policy, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, variable := range policy.Spec.Variables {
		for _, o := range builtIn {
			knows := strings.Contains(variable.Expression, "'"+o.Group+"'")
			if variable.Name == "isBuiltIn" && o.Group != widgets.Group && !knows {
				t.Errorf("the fence does not know that %s is built in", o.GroupResource)
			}
		}
	}
}

var priorityClasses = schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}

// oldEntry is an entry of managed fields.
func oldEntry(version string) string {
	return fmt.Sprintf(`{"manager":"client","operation":"Update","apiVersion":%q,"time":"2020-01-01T00:00:00Z",`+
		`"fieldsType":"FieldsV1","fieldsV1":{"f:description":{}}}`, version)
}

// putOld stores an object as an API server may have done years ago. Clients have written it at some versions.
func (c *cluster) putOld(t *testing.T, key string, at schema.GroupVersionResource, versions ...string) target {
	t.Helper()
	var entries []string
	for _, version := range versions {
		entries = append(entries, oldEntry(at.Group+"/"+version))
	}
	kind, namespace := "PriorityClass", ""
	if at.Group == widgets.Group {
		kind, namespace = "Widget", `"namespace":"default",`
	}
	raw := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"value":5,"metadata":{"name":%q,%s"creationTimestamp":`+
		`"2020-01-01T00:00:00Z","uid":%q,"managedFields":[%s]}}`, at.GroupVersion(), kind, path.Base(key), namespace,
		string(uuid.NewUUID()), strings.Join(entries, ","))
	if _, err := c.Etcd().Client().Put(t.Context(), key, raw); err != nil {
		t.Fatal(err)
	}
	return targetOf(t, raw, at)
}

func targetOf(t *testing.T, raw string, at schema.GroupVersionResource) target {
	o := target{version: at.Version, object: decode(t, strings.NewReader(raw))[0]}
	o.GroupResource = at.GroupResource()
	return o
}

// testAtomicFields has objects that somebody wrote when API servers did not know yet that some fields are atomic: their
// managed fields have paths below these, which API servers drop in every update. They also list each owner once.
func testAtomicFields(t *testing.T, c *cluster, client dynamic.Interface) {
	const owner = `{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":"c0ffee00-0000-4000-8000-000000000000"}`
	const owned = `"f:metadata":{"f:ownerReferences":{".":{},` +
		`"k:{\"uid\":\"c0ffee00-0000-4000-8000-000000000000\"}":{".":{},"f:kind":{},"f:name":{}}}}`
	for _, test := range []struct {
		resource         schema.GroupVersionResource
		key, kind, rest  string
		fields, metadata string
		gone             string // a path in fields
	}{
		{
			schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
			"rolebindings/default/atomic", "RoleBinding",
			`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"view"}`,
			`"f:roleRef":{"f:apiGroup":{},"f:kind":{},"f:name":{}},"f:subjects":{}`, "", "f:apiGroup",
		},
		{
			schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}, "serviceaccounts/default/atomic",
			"ServiceAccount", `"secrets":[{"name":"s"}]`,
			`"f:secrets":{".":{},"k:{\"name\":\"s\"}":{".":{},"f:name":{}}}`, "", "f:name",
		},
		{
			schema.GroupVersionResource{Version: "v1", Resource: "services"}, "services/specs/default/atomic", "Service",
			`"spec":{"clusterIP":"None","clusterIPs":["None"],"ports":[{"port":80,"protocol":"TCP","targetPort":80}],` +
				`"selector":{"app":"a"},"type":"ClusterIP","sessionAffinity":"None","ipFamilies":["IPv4"],` +
				`"ipFamilyPolicy":"SingleStack","internalTrafficPolicy":"Cluster"}`,
			`"f:spec":{"f:selector":{".":{},"f:app":{}}}`, "", "f:app",
		},
		{
			schema.GroupVersionResource{Group: "batch", Version: "v1", Resource: "cronjobs"}, "cronjobs/default/atomic",
			"CronJob",
			`"spec":{"schedule":"0 0 1 1 *","suspend":true,"jobTemplate":{"spec":{"template":{"spec":{"restartPolicy":"Never",` +
				`"containers":[{"name":"c","image":"i","env":[{"name":"E","valueFrom":{"secretKeyRef":{"name":"s","key":"k"}}}` +
				`]}]}}}}}`,
			`"f:spec":{"f:jobTemplate":{"f:spec":{"f:template":{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},` +
				`"f:env":{".":{},"k:{\"name\":\"E\"}":{".":{},"f:name":{},"f:valueFrom":{"f:secretKeyRef":{"f:key":{},` +
				`"f:name":{}}}}}}}}}}}}`, "", "f:key",
		},
		{
			schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "configmaps/default/atomic", "ConfigMap",
			`"data":{"a":"b"}`, owned, `,"ownerReferences":[` + owner + `,` + owner + `]`, "f:kind",
		},
		{
			widgets.WithVersion("v2"), "example.com/widgets/default/atomic", "Widget", `"spec":{}`, owned,
			`,"ownerReferences":[` + owner + `]`, "f:kind",
		},
	} {
		version := test.resource.GroupVersion().String()
		entry := strings.Replace(oldEntry(version), `"f:description":{}`, test.fields, 1)
		raw := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"atomic","namespace":"default","uid":%q,`+
			`"creationTimestamp":"2020-01-01T00:00:00Z","managedFields":[%s]%s},%s}`, version, test.kind,
			string(uuid.NewUUID()), entry, test.metadata, test.rest)
		if _, err := c.Etcd().Client().Put(t.Context(), "/registry/"+test.key, raw); err != nil {
			t.Fatal(err)
		}
		o := targetOf(t, raw, test.resource)
		more := strings.Replace(entry, test.fields, test.fields+`,"f:data":{"f:added":{}}`, 1)
		mustDeny(t, "an added path of "+o.String(), o.patch(t, client, `{"metadata":{"managedFields":[`+more+`]}}`))
		if one := strings.Replace(entry, `,"f:subjects":{}`, "", 1); one != entry {
			mustDeny(t, "the loss of one path of "+o.String(), o.patch(t, client, `{"metadata":{"managedFields":[`+one+`]}}`))
		}
		mustDeny(t, "a label of "+o.String(), o.patch(t, client, metadataChanges["a label"]))
		o.rewrite(t, client, "")
		live, err := o.client(client).Get(t.Context(), "atomic", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		entries := live.GetManagedFields()
		paths := entries[0].FieldsV1.GetRawString()
		if len(entries) != 1 || strings.Contains(paths, test.gone) {
			t.Errorf("the managed fields of %s are still %v", o, entries)
		}
		if owners := live.GetOwnerReferences(); len(owners) > 1 {
			t.Errorf("the owners of %s are %v", o, owners)
		}
	}
}
