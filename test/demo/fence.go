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
	"slices"
	"strings"

	admissionv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	// settings is how many ConfigMaps the rule would change.
	settings = 20
	labeller = "everything-has-a-team"
)

var configMaps = schema.GroupResource{Resource: "configmaps"}

// showFence has a rule that changes every object that is updated.
func (d *demo) showFence(ctx context.Context) error {
	d.out.step("Somebody adds a rule that changes whatever is updated, and then migrates ConfigMaps")
	if err := d.createSettings(ctx); err != nil {
		return err
	}
	if err := d.label(ctx); err != nil {
		return err
	}
	d.out.explain("There are %d ConfigMaps, and a MutatingAdmissionPolicy now sets a label on each ConfigMap that "+
		"somebody updates. A rewrite is an update that changes nothing, so this rule would change all of them.", settings)
	before, err := d.cp.Stored(ctx, configMaps)
	if err != nil {
		return err
	}
	if err := d.kubectl(ctx, []string{"svm", "migrate", configMaps.Resource, "--wait"}, notSafe); err != nil {
		return err
	}
	after, err := d.cp.Stored(ctx, configMaps)
	if err != nil {
		return err
	}
	for key, writes := range controlplane.CompareStored(before, after).Writes {
		if writes > 0 && strings.Contains(key, "/setting-") {
			return fmt.Errorf("%s was written", key)
		}
	}
	d.out.saw("etcd says that none of the %d ConfigMaps was written: the migrator tried one as a dry run, and the fence "+
		"refused it", settings)
	return d.unlabel(ctx)
}

func (d *demo) createSettings(ctx context.Context) error {
	for i := range settings {
		configMap := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("setting-%02d", i)}}
		_, err := d.kube.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, configMap, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating ConfigMap %q: %w", configMap.Name, err)
		}
	}
	return nil
}

// label makes the API servers label ConfigMaps that are updated. It returns when all of them do.
func (d *demo) label(ctx context.Context) error {
	admission := d.kube.AdmissionregistrationV1beta1()
	made := &admissionv1beta1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: labeller},
		Spec: admissionv1beta1.MutatingAdmissionPolicySpec{
			ReinvocationPolicy: admissionv1beta1.NeverReinvocationPolicy,
			MatchConstraints: &admissionv1beta1.MatchResources{ResourceRules: []admissionv1beta1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1beta1.RuleWithOperations{
					Operations: []admissionv1beta1.OperationType{admissionv1beta1.Update},
					Rule: admissionv1beta1.Rule{
						APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{configMaps.Resource},
					},
				},
			}}},
			Mutations: []admissionv1beta1.Mutation{{
				PatchType: admissionv1beta1.PatchTypeApplyConfiguration,
				ApplyConfiguration: &admissionv1beta1.ApplyConfiguration{
					Expression: `Object{metadata: Object.metadata{labels: {"team": "unknown"}}}`,
				},
			}},
		},
	}
	if _, err := admission.MutatingAdmissionPolicies().Create(ctx, made, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating a policy: %w", err)
	}
	binding := &admissionv1beta1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: labeller},
		Spec:       admissionv1beta1.MutatingAdmissionPolicyBindingSpec{PolicyName: labeller},
	}
	if _, err := admission.MutatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("binding a policy: %w", err)
	}
	return d.awaitLabels(ctx, true)
}

// unlabel ends that. The policy stays, without a binding.
func (d *demo) unlabel(ctx context.Context) error {
	bindings := d.kube.AdmissionregistrationV1beta1().MutatingAdmissionPolicyBindings()
	if err := bindings.Delete(ctx, labeller, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting the binding of a policy: %w", err)
	}
	return d.awaitLabels(ctx, false)
}

// awaitLabels waits until all servers label an update, or until none does. It sends dry runs only.
func (d *demo) awaitLabels(ctx context.Context, want bool) error {
	for _, server := range d.cp.Servers() {
		client, err := kubernetes.NewForConfig(server.Config(administrator, masters))
		if err != nil {
			return fmt.Errorf("making a client: %w", err)
		}
		err = d.until(ctx, server.Host()+" follows the policy", func(ctx context.Context) (bool, error) {
			updated, err := client.CoreV1().ConfigMaps(metav1.NamespaceDefault).Patch(ctx, "setting-00",
				types.MergePatchType, []byte("{}"), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			if err != nil {
				return false, fmt.Errorf("trying an update: %w", err)
			}
			return (updated.Labels["team"] != "") == want, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// install applies the manifests of this project, as for static pods: each manager is a process with an identity of its
// own.
func (d *demo) install(ctx context.Context) error {
	const overlay = "build/manifests/overlays/static-pod"
	d.out.command("kubectl apply --server-side -k %s", overlay)
	printed, err := d.quietly(ctx, []string{"apply", "--server-side", "-k", overlay})
	if err != nil {
		return err
	}
	var roles, others []string
	for line := range strings.Lines(printed) {
		what, _, _ := strings.Cut(line, " ")
		if kind, name, _ := strings.Cut(what, "/"); strings.Contains(kind, "rbac.authorization") {
			roles = append(roles, name)
		} else {
			others = append(others, what)
		}
	}
	if len(others) == 0 || len(roles) == 0 {
		return errors.New("kubectl has applied nothing")
	}
	slices.Sort(others)
	d.out.saw("installed %d roles and bindings, and %s", len(roles), strings.Join(others, ", "))
	return nil
}
