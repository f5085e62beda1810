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

package monitoring

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
	"sigs.k8s.io/svm-controller-manager/test/samples"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

// resource is a custom resource in the versions v1 and v2. v1 is stored at first.
type resource struct {
	schema.GroupResource
	kind    string
	objects int
	// padding is how many bytes each object has besides.
	padding int
}

func newResource(group, plural, kind string) resource {
	return resource{GroupResource: schema.GroupResource{Group: group, Resource: plural}, kind: kind, objects: 3}
}

var (
	denied    = newResource(everyone, "papers", "Paper")
	mutated   = newResource(everyone, "recipes", "Recipe")
	refused   = newResource(guarded, "vaults", "Vault")
	unwritten = newResource(everyone, "diaries", "Diary")
	shortened = newResource(everyone, "shelves", "Shelf")
	stuck     = newResource(everyone, "mirrors", "Mirror")
	large     = resource{schema.GroupResource{Group: everyone, Resource: "crates"}, "Crate", 60, 50_000}
)

// define creates the definitions, and objects of each resource.
func (c *cluster) define(t *testing.T, resources ...resource) {
	t.Helper()
	var creating errgroup.Group
	for _, r := range resources {
		definition := samples.Definition(r.GroupResource, r.kind, "v1", "v1", "v2")
		if r == stuck {
			definition.Spec.Conversion = c.hooks.Conversion(webhook.SameFields).CustomResourceConversion()
		}
		if _, err := c.Definitions().Create(t.Context(), definition, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	creating.SetLimit(8)
	for _, r := range resources {
		framework.Eventually(t, soon, func(ctx context.Context) error {
			_, err := c.of(r).List(ctx, metav1.ListOptions{Limit: 1})
			return err
		})
		for i := range r.objects {
			creating.Go(func() error {
				object := &unstructured.Unstructured{Object: map[string]any{"spec": strings.Repeat(".", r.padding)}}
				object.SetAPIVersion(r.WithVersion("v1").GroupVersion().String())
				object.SetKind(r.kind)
				object.SetName(fmt.Sprintf("object-%d", i))
				_, err := c.of(r).Create(t.Context(), object, metav1.CreateOptions{})
				return err
			})
		}
	}
	if err := creating.Wait(); err != nil {
		t.Fatal(err)
	}
}

// of is a client for objects of the resource.
func (c *cluster) of(r resource) dynamic.ResourceInterface {
	return c.Dynamic.Resource(r.WithVersion("v1")).Namespace(metav1.NamespaceDefault)
}

// migrated waits until every object is stored in the current encoding.
func (c *cluster) migrated(t *testing.T, r resource) {
	t.Helper()
	framework.Eventually(t, soon, func(ctx context.Context) error { return c.isMigrated(ctx, r) })
}

func (c *cluster) isMigrated(ctx context.Context, r resource) error {
	state, err := c.States().Get(ctx, r.String(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	if !meta.IsStatusConditionTrue(state.Status.Conditions, v1alpha1.StorageStateMigrated) {
		return fmt.Errorf("%s is not migrated: %v", r, state.Status.Conditions)
	}
	return nil
}

// everythingKnown waits until it is known in which encodings all objects are stored. As the handbook says, it deletes
// the states of resources that no server serves any more.
func (c *cluster) everythingKnown(t *testing.T) {
	t.Helper()
	framework.Eventually(t, soon, func(ctx context.Context) error {
		states, err := c.States().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, state := range states.Items {
			if meta.IsStatusConditionFalse(state.Status.Conditions, v1alpha1.StorageStateServed) {
				if err := c.States().Delete(ctx, state.Name, metav1.DeleteOptions{}); err != nil {
					return err
				}
				continue
			}
			if slices.Contains(state.Status.PersistedStorageVersionHashes, v1alpha1.Unknown) {
				return fmt.Errorf("%s may be stored in any encoding: %v", state.Name, state.Status.Conditions)
			}
		}
		return nil
	})
}

// holder returns which process holds the Lease of the second server.
func (c *cluster) holder(t *testing.T) (incarnation string) {
	t.Helper()
	framework.Eventually(t, soon, func(ctx context.Context) error {
		lease, err := c.Kube.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, c.second.Identity(),
			metav1.GetOptions{})
		if err == nil {
			incarnation = *lease.Spec.HolderIdentity
		}
		return err
	})
	return incarnation
}

// isMet waits until another process holds the Lease of the second server than before, and the manager has read what
// that one writes.
func (c *cluster) isMet(t *testing.T, before string) {
	t.Helper()
	framework.Eventually(t, soon, func(ctx context.Context) error {
		holder := c.holder(t)
		if holder == before {
			return fmt.Errorf("%s still holds the Lease", holder)
		}
		state, err := c.States().Get(ctx, "secrets", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if evidence := state.Status.Evidence; evidence == nil || !slices.ContainsFunc(evidence.Servers,
			func(known v1alpha1.ServerEvidence) bool { return known.Incarnation == holder }) {
			return fmt.Errorf("the state of secrets does not know %s: %+v", holder, evidence)
		}
		return nil
	})
}

// flip makes v2 the version that is stored, when what was stored before is known.
func (c *cluster) flip(t *testing.T, r resource) {
	t.Helper()
	c.migrated(t, r)
	c.StoreVersion(t, r.GroupResource, "v2")
}

// retry asks for another migration at once.
func (c *cluster) retry(t *testing.T, r resource) {
	c.patchState(t, r, `{"spec":{"retryToken":"mended"}}`)
}

func (c *cluster) patchState(t *testing.T, r resource, patch string) {
	t.Helper()
	_, err := c.States().Patch(t.Context(), r.String(), types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// forbid has a policy refuse updates of what the rule is about, if the condition is true.
func (c *cluster) forbid(t *testing.T, name string, about admissionregistrationv1.Rule, condition string) {
	t.Helper()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: matching(about),
			Validations:      []admissionregistrationv1.Validation{{Expression: "!(" + condition + ")", Message: "not today"}},
		},
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	api := c.Kube.AdmissionregistrationV1()
	if _, err := api.ValidatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.ValidatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (c *cluster) permit(t *testing.T, name string) {
	t.Helper()
	err := c.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(
		t.Context(), name, metav1.DeleteOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// mutate has a policy label objects of the resource when somebody updates them.
func (c *cluster) mutate(t *testing.T, r resource) {
	t.Helper()
	policy := samples.Policy(r.Resource, r.WithVersion("*"))
	policy.Spec.MatchConstraints = matching(r.rule())
	change := policy.Spec.Mutations[0].ApplyConfiguration
	change.Expression = `Object{metadata: Object.metadata{labels: {"mutated": "yes"}}}`
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policy.Name},
		Spec:       admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: policy.Name},
	}
	api := c.Kube.AdmissionregistrationV1()
	if _, err := api.MutatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.MutatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// updatesAre waits until a check of what an update that changes nothing would do has nothing to complain about.
func (c *cluster) updatesAre(t *testing.T, r resource, check func(*unstructured.Unstructured, error) error) {
	t.Helper()
	dry := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	framework.Eventually(t, soon, func(ctx context.Context) error {
		return check(c.of(r).Patch(ctx, "object-0", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), dry))
	})
}

// rule is about all objects of the resource.
func (r resource) rule() admissionregistrationv1.Rule {
	return admissionregistrationv1.Rule{
		APIGroups: []string{r.Group}, APIVersions: []string{"*"}, Resources: []string{r.Resource},
	}
}

func matching(rule admissionregistrationv1.Rule) *admissionregistrationv1.MatchResources {
	return &admissionregistrationv1.MatchResources{
		ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
			RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update}, Rule: rule,
			},
		}},
	}
}

// shorten removes v1 from the stored versions of a definition.
func (c *cluster) shorten(t *testing.T, r resource) {
	t.Helper()
	framework.Eventually(t, soon, func(ctx context.Context) error {
		definition, err := c.Definitions().Get(ctx, r.String(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		definition.Status.StoredVersions = []string{"v2"}
		_, err = c.Definitions().UpdateStatus(ctx, definition, metav1.UpdateOptions{})
		return err
	})
}

// othersWrite has another client write that many objects.
func (c *cluster) othersWrite(t *testing.T, objects int) {
	t.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "others-"}}
	for range objects {
		_, err := c.Kube.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(t.Context(), object, metav1.CreateOptions{})
		if err != nil {
			t.Error(err)
			return
		}
	}
}

// compact drops the old revisions of all objects.
func (c *cluster) compact(ctx context.Context) error {
	etcd := c.Etcd().Client()
	latest, err := etcd.Get(ctx, "/", clientv3.WithKeysOnly(), clientv3.WithLimit(1))
	if err != nil {
		return err
	}
	if _, err = etcd.Compact(ctx, latest.Header.Revision); errors.Is(err, rpctypes.ErrCompacted) {
		return nil // Nothing was written since the last time.
	}
	return err
}
