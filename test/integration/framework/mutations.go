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

package framework

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/svm-controller-manager/test/samples"
)

// inForce is how long a new rule may take on a busy machine until it is in force.
const inForce = 10 * time.Minute

// Mutate has a policy set one of the labels or annotations at each update by these ways, and waits until it does.
func (c *Cluster) Mutate(t *testing.T, resource schema.GroupVersionResource, what string, ways ...string) {
	t.Helper()
	policy := samples.Policy("mutates-"+resource.Resource, resource)
	rule := &policy.Spec.MatchConstraints.ResourceRules[0].RuleWithOperations
	rule.Operations = []admissionregistrationv1.OperationType{admissionregistrationv1.Update}
	rule.APIVersions, rule.Resources = []string{"*"}, ways
	policy.Spec.Mutations[0].ApplyConfiguration.Expression = fmt.Sprintf(
		`Object{metadata: Object.metadata{%s: {"mutated": "yes"}}}`, what)
	api := c.Kube.AdmissionregistrationV1()
	if _, err := api.MutatingAdmissionPolicies().Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policy.Name},
		Spec:       admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: policy.Name},
	}
	if _, err := api.MutatingAdmissionPolicyBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitMutation(t, resource)
}

// mutator is a webhook.Hook. The tests of that package use this one.
type mutator interface {
	MutatingWebhook(
		name string, rules ...admissionregistrationv1.RuleWithOperations,
	) admissionregistrationv1.MutatingWebhook
}

// MutateByWebhook has a webhook asked at each update by these ways, and waits until it is.
func (c *Cluster) MutateByWebhook(
	t *testing.T, hook mutator, resource schema.GroupVersionResource, ways ...string,
) {
	t.Helper()
	rule := admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{resource.Group}, APIVersions: []string{"*"}, Resources: ways,
		},
	}
	configuration := &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: resource.Resource},
		Webhooks: []admissionregistrationv1.MutatingWebhook{
			hook.MutatingWebhook(resource.Resource+".migration.test", rule),
		},
	}
	configurations := c.Kube.AdmissionregistrationV1().MutatingWebhookConfigurations()
	if _, err := configurations.Create(t.Context(), configuration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitMutation(t, resource)
}

// awaitMutation waits until an update that changes nothing would change an object.
func (c *Cluster) awaitMutation(t *testing.T, resource schema.GroupVersionResource) {
	t.Helper()
	objects := c.Dynamic.Resource(resource).Namespace(metav1.NamespaceDefault)
	Eventually(t, inForce, func(ctx context.Context) error {
		list, err := objects.List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return err
		}
		before := list.Items[0]
		dry := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
		after, err := objects.Patch(ctx, before.GetName(), types.MergePatchType, []byte("{}"), dry)
		if err == nil && fmt.Sprint(before.Object) == fmt.Sprint(after.Object) {
			err = errors.New("the rule is not in force")
		}
		return err
	})
}
