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
	"maps"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

const (
	kind = "CronTab"
	// objects is how many objects there are besides the frozen one.
	objects = 2000
	frozen  = "payroll"
	policy  = "payroll-is-frozen"
	denial  = "payroll is frozen until the audit is over"
	// writers is how many goroutines create objects.
	writers = 16
)

var (
	crontabs = schema.GroupResource{Group: "example.com", Resource: "crontabs"}
	oldOne   = crontabs.WithVersion("v1")
	newOne   = crontabs.WithVersion("v2")
)

// definition has both versions and stores one of them. It has no status subresource, because the migrator could store a
// denied object through that.
func definition(storage string) *apiextensionsv1.CustomResourceDefinition {
	text, count := apiextensionsv1.JSONSchemaProps{Type: "string"}, apiextensionsv1.JSONSchemaProps{Type: "integer"}
	spec := apiextensionsv1.JSONSchemaProps{
		Type:       "object",
		Properties: map[string]apiextensionsv1.JSONSchemaProps{"cronSpec": text, "image": text, "replicas": count},
	}
	d := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: crontabs.String()},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: crontabs.Group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: crontabs.Resource, Kind: kind},
		},
	}
	for _, version := range []string{oldOne.Version, newOne.Version} {
		d.Spec.Versions = append(d.Spec.Versions, apiextensionsv1.CustomResourceDefinitionVersion{
			Name: version, Served: true, Storage: version == storage,
			Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
				Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": spec},
			}},
		})
	}
	return d
}

// change changes the definition. With a dry run it only finds out whether it could.
func (d *demo) change(
	ctx context.Context, options metav1.UpdateOptions, change func(*apiextensionsv1.CustomResourceDefinition),
) error {
	client := d.extensions.ApiextensionsV1().CustomResourceDefinitions()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		live, err := client.Get(ctx, crontabs.String(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(live)
		_, err = client.Update(ctx, live, options)
		return err
	})
}

func dropOldVersion(definition *apiextensionsv1.CustomResourceDefinition) {
	versions := definition.Spec.Versions
	definition.Spec.Versions = slices.DeleteFunc(versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Name == oldOne.Version
	})
}

// fill creates the objects with several writers.
func (d *demo) fill(ctx context.Context) error {
	client := d.dynamic.Resource(oldOne).Namespace(metav1.NamespaceDefault)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range objects + 1 {
		name := fmt.Sprintf("crontab-%04d", i)
		if i == objects {
			name = frozen
		}
		object := &unstructured.Unstructured{Object: map[string]any{
			"spec": map[string]any{"cronSpec": "* * * * */5", "image": "my-awesome-cron-image", "replicas": int64(i)},
		}}
		object.SetGroupVersionKind(oldOne.GroupVersion().WithKind(kind))
		object.SetName(name)
		group.Go(func() error {
			if _, err := client.Create(ctx, object, metav1.CreateOptions{}); err != nil {
				return fmt.Errorf("creating crontab %q: %w", name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// freeze makes the API servers deny updates of one object. It returns when all of them do.
func (d *demo) freeze(ctx context.Context) error {
	rule := admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Update},
		Rule: admissionv1.Rule{
			APIGroups: []string{crontabs.Group}, APIVersions: []string{"*"}, Resources: []string{crontabs.Resource},
		},
	}
	made := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: policy},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{
				ResourceRules: []admissionv1.NamedRuleWithOperations{{ResourceNames: []string{frozen}, RuleWithOperations: rule}},
			},
			Validations: []admissionv1.Validation{{Expression: "false", Message: denial}},
		},
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: policy},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: policy, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}
	admission := d.kube.AdmissionregistrationV1()
	if _, err := admission.ValidatingAdmissionPolicies().Create(ctx, made, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating a policy: %w", err)
	}
	if _, err := admission.ValidatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("binding a policy: %w", err)
	}
	return d.awaitFrozen(ctx, true)
}

// thaw deletes the policy. It returns when no server applies it any more.
func (d *demo) thaw(ctx context.Context) error {
	admission := d.kube.AdmissionregistrationV1()
	if err := admission.ValidatingAdmissionPolicyBindings().Delete(ctx, policy, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting the binding of a policy: %w", err)
	}
	if err := admission.ValidatingAdmissionPolicies().Delete(ctx, policy, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting a policy: %w", err)
	}
	return d.awaitFrozen(ctx, false)
}

// awaitFrozen waits until all servers deny an update, or until all allow it. It sends dry runs only.
func (d *demo) awaitFrozen(ctx context.Context, want bool) error {
	for _, server := range d.cp.Servers() {
		if !server.Process().Running() {
			continue
		}
		client, err := dynamic.NewForConfig(server.Config("administrator", "system:masters"))
		if err != nil {
			return fmt.Errorf("making a client: %w", err)
		}
		err = d.until(ctx, server.Host()+" follows the policy", func(ctx context.Context) (bool, error) {
			objects := client.Resource(newOne).Namespace(metav1.NamespaceDefault)
			_, err := objects.Patch(ctx, frozen, types.MergePatchType, []byte("{}"),
				metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			denied := err != nil && strings.Contains(err.Error(), denial)
			if err != nil && !denied {
				return false, fmt.Errorf("trying an update: %w", err)
			}
			return denied == want, nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// readStored reads the objects from etcd directly, and returns how many are stored in each encoding.
func (d *demo) readStored(ctx context.Context) ([]controlplane.StoredObject, string, error) {
	stored, err := d.cp.Stored(ctx, crontabs)
	if err != nil {
		return nil, "", err
	}
	counts := countOf(stored)
	var parts []string
	for _, encoding := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s in %s", number(counts[encoding]), encoding))
	}
	return stored, strings.Join(parts, ", "), nil
}

func (d *demo) count(ctx context.Context) (map[string]int, error) {
	stored, err := d.cp.Stored(ctx, crontabs)
	return countOf(stored), err
}

func countOf(stored []controlplane.StoredObject) map[string]int {
	counts := map[string]int{}
	for _, object := range stored {
		counts[object.Encoding]++
	}
	return counts
}

func (d *demo) storedVersions(ctx context.Context) ([]string, error) {
	definitions := d.extensions.ApiextensionsV1().CustomResourceDefinitions()
	live, err := definitions.Get(ctx, crontabs.String(), metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("getting the definition: %w", err)
	}
	return live.Status.StoredVersions, nil
}
