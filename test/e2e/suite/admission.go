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

package suite

import (
	"context"
	"fmt"
	"strings"

	"github.com/onsi/ginkgo/v2"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// Denial is what API servers answer to updates of denied objects.
const Denial = "this object is frozen"

// updates matches updates of a resource.
func updates(r Resource) admissionv1.RuleWithOperations {
	return admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Update},
		Rule: admissionv1.Rule{
			APIGroups: []string{r.Group}, APIVersions: []string{"*"}, Resources: []string{r.Resource, r.Resource + "/*"},
		},
	}
}

// allButProbe is a condition for all objects but that of the suite itself.
const allButProbe = `object.metadata.name != "` + probe + `"`

// Deny makes the API servers deny updates of these objects, or of all if none is named. It returns when all do. The
// function that it returns ends that, and returns when all API servers allow the updates.
func (c *Case) Deny(ctx context.Context, r Resource, names ...string) (allow func(ctx context.Context)) {
	ginkgo.GinkgoHelper()
	c.Step("denying updates of %v of %s", names, r)
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: c.Namespace},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				ResourceNames: names, RuleWithOperations: updates(r),
			}}},
			MatchConditions: []admissionv1.MatchCondition{{Name: "not-the-probe", Expression: allButProbe}},
			Validations:     []admissionv1.Validation{{Expression: "false", Message: Denial}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: c.Namespace},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}
	admission := c.Kube.AdmissionregistrationV1()
	_, err := admission.ValidatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{})
	c.Must(err)
	remove := func(ctx context.Context) error {
		err := admission.ValidatingAdmissionPolicyBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{})
		if ignoreMissing(err) != nil {
			return err
		}
		return ignoreMissing(admission.ValidatingAdmissionPolicies().Delete(ctx, policy.Name, metav1.DeleteOptions{}))
	}
	cleanUp(remove)
	_, err = admission.ValidatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{})
	c.Must(err)
	example := ObjectName(0)
	if len(names) > 0 {
		example = names[0]
	}
	c.awaitAnswer(ctx, r, example, func(err error) bool { return err != nil && strings.Contains(err.Error(), Denial) })
	return func(ctx context.Context) {
		c.Step("allowing updates again")
		c.Must(remove(ctx))
		c.awaitAnswer(ctx, r, example, func(err error) bool { return err == nil })
	}
}

// awaitAnswer waits until all API servers answer a dry run of an update as they should.
func (c *Case) awaitAnswer(ctx context.Context, r Resource, name string, right func(error) bool) {
	ginkgo.GinkgoHelper()
	c.Everywhere(ctx, func(ctx context.Context, config *rest.Config) error {
		_, err := c.dryRun(ctx, config, r, name)
		if !right(err) {
			return fmt.Errorf("an API server has not followed: its answer to an update is: %v", err)
		}
		return nil
	})
}

// dryRun tries an update that changes nothing.
func (c *Case) dryRun(ctx context.Context, config *rest.Config, r Resource, name string) (map[string]string, error) {
	objects, err := objectsAt(config, r, c.Namespace)
	if err != nil {
		return nil, err
	}
	object, err := objects.Patch(ctx, name, types.MergePatchType, []byte("{}"),
		metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return nil, err
	}
	return object.GetLabels(), nil
}

// mutation is the label that Mutate makes API servers set.
const mutation = "mutated"

// Mutate makes the API servers set a label on each object that is updated. It needs kube-apiserver 1.37.
func (c *Case) Mutate(ctx context.Context, r Resource) {
	ginkgo.GinkgoHelper()
	policy := newMutation(c.Namespace, r)
	binding := &admissionv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: c.Namespace},
		Spec:       admissionv1.MutatingAdmissionPolicyBindingSpec{PolicyName: policy.Name},
	}
	admission := c.Kube.AdmissionregistrationV1()
	_, err := admission.MutatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{})
	c.Must(err)
	cleanUp(func(ctx context.Context) error {
		return ignoreMissing(admission.MutatingAdmissionPolicies().Delete(ctx, policy.Name, metav1.DeleteOptions{}))
	})
	_, err = admission.MutatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{})
	c.Must(err)
	cleanUp(func(ctx context.Context) error {
		return ignoreMissing(admission.MutatingAdmissionPolicyBindings().Delete(ctx, binding.Name, metav1.DeleteOptions{}))
	})
	c.Everywhere(ctx, func(ctx context.Context, config *rest.Config) error {
		labels, err := c.dryRun(ctx, config, r, ObjectName(0))
		if err == nil && labels[mutation] == "" {
			err = fmt.Errorf("an API server does not set the label yet")
		}
		return err
	})
}

// newMutation is a policy that sets a label on each object that is updated.
func newMutation(name string, r Resource) *admissionv1.MutatingAdmissionPolicy {
	return &admissionv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.MutatingAdmissionPolicySpec{
			ReinvocationPolicy: admissionv1.NeverReinvocationPolicy,
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: updates(r),
			}}},
			MatchConditions: []admissionv1.MatchCondition{{Name: "not-the-probe", Expression: allButProbe}},
			Mutations: []admissionv1.Mutation{{
				PatchType: admissionv1.PatchTypeJSONPatch,
				JSONPatch: &admissionv1.JSONPatch{
					Expression: `[JSONPatch{op: "add", path: "/metadata/labels/` + mutation + `", value: "yes"}]`,
				},
			}},
		},
	}
}

// LoseWebhook registers a validating webhook that nobody answers, so that each update of an object fails. It returns
// when all API servers have followed. The function that it returns removes the webhook.
func (c *Case) LoseWebhook(ctx context.Context, r Resource, name string) (restore func(ctx context.Context)) {
	ginkgo.GinkgoHelper()
	c.Step("registering a webhook that does not answer")
	entry := admissionv1.ValidatingWebhook{
		ClientConfig:            admissionv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1/")},
		FailurePolicy:           ptr.To(admissionv1.Fail),
		SideEffects:             ptr.To(admissionv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"},
		MatchConditions: []admissionv1.MatchCondition{
			{Name: "one", Expression: `object.metadata.name == "` + name + `"`},
		},
	}
	return c.Register(ctx, r, entry, name, "failed calling webhook")
}

// Register registers a validating webhook and waits until all API servers answer updates of an object with these words.
// The function that it returns removes the webhook.
func (c *Case) Register(
	ctx context.Context, r Resource, entry admissionv1.ValidatingWebhook, name, words string,
) (remove func(ctx context.Context)) {
	ginkgo.GinkgoHelper()
	entry.Name = "updates." + r.Group
	entry.Rules = []admissionv1.RuleWithOperations{updates(r)}
	entry.MatchConditions = append(entry.MatchConditions,
		admissionv1.MatchCondition{Name: "not-the-probe", Expression: allButProbe})
	configuration := &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: c.Namespace}, Webhooks: []admissionv1.ValidatingWebhook{entry},
	}
	client := c.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	_, err := client.Create(ctx, configuration, metav1.CreateOptions{})
	c.Must(err)
	undo := func(ctx context.Context) error {
		return ignoreMissing(client.Delete(ctx, configuration.Name, metav1.DeleteOptions{}))
	}
	cleanUp(undo)
	refused := func(err error) bool { return err != nil && strings.Contains(err.Error(), words) }
	c.awaitAnswer(ctx, r, name, refused)
	return func(ctx context.Context) {
		c.Step("removing the webhook")
		c.Must(undo(ctx))
		c.awaitAnswer(ctx, r, name, func(err error) bool { return err == nil })
	}
}
