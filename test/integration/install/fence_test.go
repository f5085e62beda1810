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
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"sigs.k8s.io/svm-controller-manager/pkg/fence"
	"sigs.k8s.io/svm-controller-manager/pkg/install"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const (
	managedFields = "managed fields"
	// rewriter is the field manager of rewrites.
	rewriter = "storage-version-migrator"
	// unprotected are objects of kinds that samples.Objects lacks. API servers protect those that they make themselves,
	// and do not ask the fence about their deletion.
	unprotected = "apiVersion: v1\nkind: Namespace\nmetadata: {name: sample}\n---\n" +
		"apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: sample}\nvalue: 1\n"
)

var prerelease = regexp.MustCompile(`v[0-9]+(alpha|beta)[0-9]+$`)

// metadataChanges are changes that every kind of object could get.
var metadataChanges = map[string]string{
	"a label":       `{"metadata":{"labels":{"example.com/changed":"yes"}}}`,
	"an annotation": `{"metadata":{"annotations":{"example.com/changed":"yes"}}}`,
	"a finalizer":   `{"metadata":{"finalizers":["example.com/changed"]}}`,
	"an owner":      `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"a","uid":"b"}]}}`,
	managedFields:   `{"metadata":{"managedFields":[{}]}}`,
}

// contentChanges are changes of one object each, by resource, subresource and name.
var contentChanges = map[string]string{
	"configmaps default/sample":                                       `{"data":{"key":"changed"}}`,
	"secrets default/sample":                                          `{"data":{"key":"Y2hhbmdlZA=="}}`,
	"serviceaccounts default/sample":                                  `{"automountServiceAccountToken":true}`,
	"nodes sample":                                                    `{"spec":{"unschedulable":true}}`,
	"nodes/status sample":                                             `{"status":{"capacity":{"cpu":"1"}}}`,
	"pods/status default/sample":                                      `{"status":{"phase":"Failed"}}`,
	"apps/deployments default/sample":                                 `{"spec":{"replicas":7}}`,
	"apps/deployments/status default/sample":                          `{"status":{"replicas":7}}`,
	"apps/deployments/scale default/sample":                           `{"spec":{"replicas":7}}`,
	"example.com/widgets default/sample":                              `{"spec":{"changed":true}}`,
	"example.com/widgets/status default/sample":                       `{"status":{"changed":true}}`,
	"coordination.k8s.io/leases default/sample":                       `{"spec":{"holderIdentity":"changed"}}`,
	"rbac.authorization.k8s.io/clusterroles view":                     `{"aggregationRule":null,"rules":[]}`,
	"rbac.authorization.k8s.io/clusterrolebindings system:basic-user": `{"subjects":[]}`,
	"apiextensions.k8s.io/customresourcedefinitions widgets.example.com": `{"spec":{"conversion":{"strategy":"None"},` +
		`"preserveUnknownFields":false,"names":{"shortNames":["w"]}}}`,
	"apiextensions.k8s.io/customresourcedefinitions/status widgets.example.com": `{"status":{"storedVersions":["v1"]}}`,
}

// TestFence sends what a stolen identity could send, with permissions far beyond those of the manifests.
func TestFence(t *testing.T) {
	t.Parallel()
	c := startCluster(t, everything)
	c.apply(t, "static-pod")
	c.createObjects(t)
	c.kubectl(t, unprotected, "create", "-f", "-")
	c.allow(t, "custom", install.NewRole(install.Resources(c.documents(t))))
	c.awaitFence(t, c.Config(user))
	client, err := dynamic.NewForConfig(c.Config(user))
	if err != nil {
		t.Fatal(err)
	}
	targets := c.targets(t)
	t.Run("rewrites pass with the roles of the manifests", func(t *testing.T) {
		for _, target := range targets {
			target.rewrite(t, client, "")
			if target.HasStatus {
				target.rewrite(t, client, "status")
			}
		}
	})
	all := []string{"*"}
	c.allow(t, "everything", &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "everything"},
		Rules: []rbacv1.PolicyRule{
			{Verbs: all, APIGroups: all, Resources: all}, {Verbs: all, NonResourceURLs: all},
		},
	})
	t.Run("changes are refused", func(t *testing.T) {
		copiesRefused := 0
		for _, target := range targets {
			for what, patch := range metadataChanges {
				if what == managedFields && !slices.ContainsFunc(target.object.GetManagedFields(), target.mustStay) {
					continue
				}
				mustDeny(t, what+" of "+target.String(), target.patch(t, client, patch))
				if target.HasStatus {
					target.keepsMetadata(t, client, what, patch)
				}
			}
			mustDeny(t, "the deletion of "+target.String(), target.delete(t, client))
			switch err := target.copy(t, client); {
			case err != nil && strings.Contains(err.Error(), fence.Policy):
				copiesRefused++
			case apierrors.IsInvalid(err), apierrors.IsAlreadyExists(err), apierrors.IsBadRequest(err):
				t.Logf("a copy of %s is not valid: %v", target, err)
			default:
				t.Errorf("a copy of %s: the fence lets it through: %v", target, err)
			}
		}
		if copiesRefused < len(targets)*3/4 {
			t.Errorf("the fence has refused copies of %d resources only, among %d", copiesRefused, len(targets))
		}
	})
	t.Run("changes of content are refused", func(t *testing.T) { testContent(t, c, client) })
	t.Run("other deeds are refused", func(t *testing.T) { testDeeds(t, c) })
	t.Run("what the manager has to do is allowed", func(t *testing.T) { testAllowed(t, c, client) })
	t.Run("a large object", func(t *testing.T) { testLarge(t, c, client) })
	t.Run("managed fields of versions that nobody serves", func(t *testing.T) {
		testUnservedVersions(t, c, client, targets)
	})
	t.Run("managed fields of fields that became atomic", func(t *testing.T) { testAtomicFields(t, c, client) })
	t.Run("managed fields of a version that is gone", func(t *testing.T) { testManagedFields(t, c, client) })
}

// target is one object.
type target struct {
	install.Resource
	version string
	object  *unstructured.Unstructured
}

func (o target) String() string {
	return fmt.Sprintf("%s %s/%s", o.GroupResource, o.object.GetNamespace(), o.object.GetName())
}

// targets returns an object of each resource that the manager migrates, but for its own.
func (c *cluster) targets(t *testing.T) (targets []target) {
	t.Helper()
	documents := c.documents(t)
	for _, resource := range install.Resources(documents) {
		version := versionOf(documents, resource.GroupResource)
		list, err := c.Dynamic.Resource(resource.WithVersion(version)).List(t.Context(), metav1.ListOptions{Limit: 500})
		if err != nil {
			t.Fatal(err)
		}
		own := resource.Group == "migration.k8s.io" || resource.Resource == "events"
		switch {
		case own, resource.Group == admissionGroup:
		case len(list.Items) == 0:
			t.Errorf("testdata has no object of %s", resource.GroupResource)
		default:
			object := &list.Items[0]
			for i := range list.Items {
				if list.Items[i].GetName() == "sample" {
					object = &list.Items[i]
				}
			}
			targets = append(targets, target{resource, version, object})
		}
	}
	if len(targets) < 55 {
		t.Errorf("there are only %d resources", len(targets))
	}
	return targets
}

func versionOf(documents []*metav1.APIResourceList, of schema.GroupResource) string {
	for _, document := range documents {
		version, err := schema.ParseGroupVersion(document.GroupVersion)
		for _, resource := range document.APIResources {
			if err == nil && version.Group == of.Group && resource.Name == of.Resource {
				return version.Version
			}
		}
	}
	return ""
}

// mustStay reports whether the fence refuses the loss of an entry of managed fields. Entries of another alpha or beta
// version may go.
func (o target) mustStay(entry metav1.ManagedFieldsEntry) bool {
	requested := o.WithVersion(o.version).GroupVersion().String()
	return entry.APIVersion == requested || !prerelease.MatchString(entry.APIVersion)
}

func (o target) client(client dynamic.Interface) dynamic.ResourceInterface {
	resource := client.Resource(o.WithVersion(o.version))
	if namespace := o.object.GetNamespace(); namespace != "" {
		return resource.Namespace(namespace)
	}
	return resource
}

// rewrite sends what the migrator sends. It must not change anything.
func (o target) rewrite(t *testing.T, client dynamic.Interface, way string) {
	t.Helper()
	framework.Eventually(t, soon, func(ctx context.Context) error {
		live, err := o.client(client).Get(ctx, o.object.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"uid": live.GetUID(), "resourceVersion": live.GetResourceVersion(),
		}})
		if err != nil {
			return err
		}
		var ways []string
		if way != "" {
			ways = append(ways, way)
		}
		options := metav1.PatchOptions{FieldManager: rewriter, FieldValidation: metav1.FieldValidationIgnore}
		_, err = o.client(client).Patch(ctx, o.object.GetName(), types.MergePatchType, patch, options, ways...)
		if err != nil && !apierrors.IsConflict(err) {
			t.Errorf("rewriting %s %s: %v", o, way, err)
			return nil
		}
		return err
	})
}

func (o target) patch(t *testing.T, client dynamic.Interface, patch string) error {
	_, err := o.client(client).Patch(t.Context(), o.object.GetName(), types.MergePatchType, []byte(patch),
		metav1.PatchOptions{})
	return err
}

// keepsMetadata wants the fence to refuse a write of the status, or the write to change nothing: most ignore metadata.
func (o target) keepsMetadata(t *testing.T, client dynamic.Interface, what, patch string) {
	t.Helper()
	get := func() map[string]any {
		object, err := o.client(client).Get(t.Context(), o.object.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return object.Object["metadata"].(map[string]any)
	}
	before := get()
	_, err := o.client(client).Patch(t.Context(), o.object.GetName(), types.MergePatchType, []byte(patch),
		metav1.PatchOptions{}, "status")
	if err != nil {
		mustDeny(t, what+" through the status of "+o.String(), err)
		return
	}
	if diff := cmp.Diff(before, get()); diff != "" {
		t.Errorf("%s through the status of %s: the fence lets it through (-before +after):\n%s", what, o, diff)
	}
}

func (o target) delete(t *testing.T, client dynamic.Interface) error {
	if o.Resource.Resource == "storageversions" {
		return errors.New(fence.Policy) // The garbage collector may delete these.
	}
	return o.client(client).Delete(t.Context(), o.object.GetName(), metav1.DeleteOptions{})
}

// copy creates an object like it. Validation comes before the fence, so some are refused as invalid.
func (o target) copy(t *testing.T, client dynamic.Interface) error {
	object := o.object.DeepCopy()
	object.SetName("copy-of-" + object.GetName())
	object.SetUID("")
	object.SetResourceVersion("")
	_, err := o.client(client).Create(t.Context(), object, metav1.CreateOptions{})
	return err
}

func mustDeny(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), fence.Policy) {
		t.Errorf("%s: the fence does not refuse it: %v", what, err)
	}
}

func testContent(t *testing.T, c *cluster, client dynamic.Interface) {
	documents := c.documents(t)
	for of, patch := range contentChanges {
		path, name, _ := strings.Cut(of, " ")
		parts := strings.Split(path, "/")
		if !strings.Contains(parts[0], ".") && parts[0] != "apps" {
			parts = append([]string{""}, parts...)
		}
		resource := schema.GroupResource{Group: parts[0], Resource: parts[1]}
		objects := dynamic.ResourceInterface(client.Resource(resource.WithVersion(versionOf(documents, resource))))
		if namespace, inside, found := strings.Cut(name, "/"); found {
			objects, name = objects.(dynamic.NamespaceableResourceInterface).Namespace(namespace), inside
		}
		_, err := objects.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, parts[2:]...)
		mustDeny(t, "a change of "+of, err)
	}
}

// testDeeds tries subresources that are no part of an object.
func testDeeds(t *testing.T, c *cluster) {
	client, err := kubernetes.NewForConfig(c.Config(user))
	if err != nil {
		t.Fatal(err)
	}
	core := client.CoreV1().RESTClient()
	for what, request := range map[string]struct{ path, body string }{
		"a token": {"serviceaccounts/sample/token",
			`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest"}`},
		"a command in a pod": {"pods/sample/exec?command=true&container=main", ""},
		"an eviction": {"pods/sample/eviction",
			`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"sample","namespace":"default"}}`},
		"a binding": {"pods/sample/binding",
			`{"apiVersion":"v1","kind":"Binding","metadata":{"name":"sample"},"target":{"kind":"Node","name":"sample"}}`},
	} {
		err := core.Post().RequestURI("/api/v1/namespaces/default/"+request.path).
			SetHeader("Content-Type", "application/json").Body([]byte(request.body)).Do(t.Context()).Error()
		mustDeny(t, what, err)
	}
	err = client.CoreV1().ConfigMaps("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
	mustDeny(t, "the deletion of all", err)
}

// allow binds a role to the user.
func (c *cluster) allow(t *testing.T, name string, role *rbacv1.ClusterRole) {
	t.Helper()
	if _, err := c.Kube.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}
	if _, err := c.Kube.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	rule := role.Rules[0]
	resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: rule.Verbs[0], Group: rule.APIGroups[0], Resource: resource, Subresource: subresource,
		},
	}}
	framework.Eventually(t, soon, func(ctx context.Context) error { // The API server hears of it a moment later.
		answer, err := c.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			err = fmt.Errorf("the role %s does not count yet", name)
		}
		return err
	})
}

// awaitFence waits until the API server follows the policy.
func (c *cluster) awaitFence(t *testing.T, config *rest.Config) {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		_, err := client.CoreV1().Namespaces().Patch(ctx, "default", types.MergePatchType,
			[]byte(metadataChanges["a label"]), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), fence.Policy) {
			return fmt.Errorf("the fence does not refuse a change: %w", err)
		}
		return nil
	})
}
