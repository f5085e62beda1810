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
	"errors"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
)

const (
	policyName = "bench-deny"
	// deniedSuffix is how the names of one object in a hundred end, and deniedObject is the first of these.
	deniedSuffix = "50"
	deniedObject = 50
	denyWithin   = time.Minute
)

// deny lets a ValidatingAdmissionPolicy refuse all writes of one object in a hundred, and returns when it does.
func (w *widgets) deny(ctx context.Context) error {
	policies, bindings := w.policies()
	err := createNamed(ctx, policies, "ValidatingAdmissionPolicy", map[string]any{
		"matchConstraints": map[string]any{"resourceRules": []any{map[string]any{
			"apiGroups": []any{group}, "apiVersions": []any{"*"}, "resources": []any{w.current.Resource},
			"operations": []any{"UPDATE"},
		}}},
		"validations": []any{map[string]any{
			"expression": fmt.Sprintf("!object.metadata.name.endsWith(%q)", deniedSuffix),
			"message":    "the benchmark refuses this object",
		}},
	})
	if err != nil {
		return err
	}
	err = createNamed(ctx, bindings, "ValidatingAdmissionPolicyBinding", map[string]any{
		"policyName": policyName, "validationActions": []any{"Deny"},
	})
	return errors.Join(err, w.awaitDenial(ctx, true))
}

// allow takes the refusal back, and returns when it has no effect any more.
func (w *widgets) allow(ctx context.Context) error {
	policies, bindings := w.policies()
	return errors.Join(
		bindings.Delete(ctx, policyName, metav1.DeleteOptions{}),
		policies.Delete(ctx, policyName, metav1.DeleteOptions{}),
		w.awaitDenial(ctx, false),
	)
}

func (w *widgets) policies() (policies, bindings dynamic.ResourceInterface) {
	api := admissionregistrationv1.SchemeGroupVersion
	return w.dynamic.Resource(api.WithResource("validatingadmissionpolicies")),
		w.dynamic.Resource(api.WithResource("validatingadmissionpolicybindings"))
}

func createNamed(ctx context.Context, client dynamic.ResourceInterface, kind string, spec map[string]any) error {
	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	object.SetGroupVersionKind(admissionregistrationv1.SchemeGroupVersion.WithKind(kind))
	object.SetName(policyName)
	_, err := client.Create(ctx, object, metav1.CreateOptions{})
	return err
}

func (w *widgets) awaitDenial(ctx context.Context, denied bool) error {
	dryRun := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	return wait.PollUntilContextTimeout(ctx, poll, denyWithin, true, func(ctx context.Context) (bool, error) {
		_, err := w.client().Patch(ctx, objectName(deniedObject), types.MergePatchType, []byte("{}"), dryRun)
		return (err != nil) == denied, nil
	})
}
