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

package main

import (
	"context"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
)

const (
	policyName = "bench-deny"
	// deniedSuffix is how the names of one object in a hundred end.
	deniedSuffix = "50"
	denyWithin   = time.Minute
)

// deny lets a ValidatingAdmissionPolicy refuse all writes of one object in a hundred, and returns when it does.
func (w *widgets) deny(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(w.cp.AdminConfig())
	if err != nil {
		return err
	}
	policies := client.AdmissionregistrationV1()
	policy := &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: policyName},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
					RuleWithOperations: admissionregistrationv1.RuleWithOperations{
						Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
						Rule: admissionregistrationv1.Rule{
							APIGroups: []string{group}, APIVersions: []string{"*"}, Resources: []string{w.current.Resource},
						},
					},
				}},
			},
			Validations: []admissionregistrationv1.Validation{{
				Expression: fmt.Sprintf("!object.metadata.name.endsWith(%q)", deniedSuffix),
				Message:    "the benchmark refuses this object",
			}},
		},
	}
	if _, err := policies.ValidatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{}); err != nil {
		return err
	}
	binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policyName},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName:        policyName,
			ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
		},
	}
	_, err = policies.ValidatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	return w.awaitDenial(ctx, true)
}

// allow takes the refusal back, and returns when it has no effect any more.
func (w *widgets) allow(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(w.cp.AdminConfig())
	if err != nil {
		return err
	}
	policies := client.AdmissionregistrationV1()
	if err := policies.ValidatingAdmissionPolicyBindings().Delete(ctx, policyName, metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := policies.ValidatingAdmissionPolicies().Delete(ctx, policyName, metav1.DeleteOptions{}); err != nil {
		return err
	}
	return w.awaitDenial(ctx, false)
}

func (w *widgets) awaitDenial(ctx context.Context, denied bool) error {
	dryRun := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	return wait.PollUntilContextTimeout(ctx, poll, denyWithin, true, func(ctx context.Context) (bool, error) {
		_, err := w.client().Patch(ctx, objectName(50), types.MergePatchType, []byte("{}"), dryRun)
		return (err != nil) == denied, nil
	})
}
