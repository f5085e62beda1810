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

package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"

	"sigs.k8s.io/svm-controller-manager/test/chaos/model"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

const (
	// webhookTimeout is how long a server waits for the validation webhook.
	webhookTimeout = 3
	// installedWithin is how long definitions may take to be served.
	installedWithin = 10 * time.Minute
	poll            = 200 * time.Millisecond
)

// install creates the namespace, the definitions, and the webhooks.
func (c *Cluster) install(ctx context.Context) error {
	var err error
	if c.Webhooks, err = webhook.New(c.ListenAddress()); err != nil {
		return err
	}
	c.Conversion = c.Webhooks.Conversion(webhook.RenamedField(model.FieldNames()))
	c.Validation = c.Webhooks.Validation()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: model.Namespace}}
	err = create(ctx, "the namespace", func(ctx context.Context) error {
		_, err := c.Kube.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	gears := model.Gears.Definition("v1")
	gears.Spec.Conversion = c.Conversion.CustomResourceConversion()
	for _, definition := range []*apiextensionsv1.CustomResourceDefinition{gears, model.Springs.Definition("v1")} {
		if err := c.define(ctx, definition); err != nil {
			return err
		}
	}
	hook := c.Validation.ValidatingWebhook("springs."+model.Group, admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Update},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{model.Group}, APIVersions: []string{"*"}, Resources: []string{model.Springs.Resource},
		},
	})
	hook.TimeoutSeconds = ptr.To[int32](webhookTimeout)
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "chaos"}, Webhooks: []admissionregistrationv1.ValidatingWebhook{hook},
	}
	return create(ctx, "the validation webhook", func(ctx context.Context) error {
		configurations := c.Kube.AdmissionregistrationV1().ValidatingWebhookConfigurations()
		_, err := configurations.Create(ctx, configuration, metav1.CreateOptions{})
		return err
	})
}

// create tries until the object is there: servers that start do not answer every request in time.
func create(ctx context.Context, what string, try func(context.Context) error) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, poll, installedWithin, true, func(ctx context.Context) (bool, error) {
		last = try(ctx)
		return last == nil || apierrors.IsAlreadyExists(last), nil
	})
	if err != nil {
		return fmt.Errorf("creating %s: %w", what, errors.Join(err, last))
	}
	return nil
}

// define creates a definition and waits until it is served.
func (c *Cluster) define(ctx context.Context, definition *apiextensionsv1.CustomResourceDefinition) error {
	definitions := c.Extensions.ApiextensionsV1().CustomResourceDefinitions()
	err := create(ctx, "the definition of "+definition.Name, func(ctx context.Context) error {
		_, err := definitions.Create(ctx, definition, metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	established := func(ctx context.Context) (bool, error) {
		got, err := definitions.Get(ctx, definition.Name, metav1.GetOptions{})
		if err != nil {
			return false, nil
		}
		for _, condition := range got.Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				return true, nil
			}
		}
		return false, nil
	}
	if err := wait.PollUntilContextTimeout(ctx, poll, installedWithin, true, established); err != nil {
		return fmt.Errorf("waiting for the definition of %s: %w", definition.Name, err)
	}
	return nil
}

// Flip makes the definition store the other version.
func (c *Cluster) Flip(ctx context.Context, resource model.Resource) error {
	definitions := c.Extensions.ApiextensionsV1().CustomResourceDefinitions()
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		definition, err := definitions.Get(ctx, resource.GroupResource.String(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		for i := range definition.Spec.Versions {
			definition.Spec.Versions[i].Storage = !definition.Spec.Versions[i].Storage
		}
		_, err = definitions.Update(ctx, definition, metav1.UpdateOptions{})
		return err
	})
}

// ElectionLease is the name of the Lease that the leader of the managers holds.
const ElectionLease = "svm-controller-manager"

// DropLease deletes a Lease in kube-system.
func (c *Cluster) DropLease(ctx context.Context, name string) error {
	return c.Kube.CoordinationV1().Leases(metav1.NamespaceSystem).Delete(ctx, name, metav1.DeleteOptions{})
}

// StealLease has somebody else hold the Lease of the leader.
func (c *Cluster) StealLease(ctx context.Context) error {
	leases := c.Kube.CoordinationV1().Leases(metav1.NamespaceSystem)
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		lease, err := leases.Get(ctx, ElectionLease, metav1.GetOptions{})
		if err != nil {
			return err
		}
		lease.Spec.HolderIdentity = ptr.To("somebody-else")
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
		return err
	})
}

// DropState deletes a StorageState.
func (c *Cluster) DropState(ctx context.Context, name string) error {
	return c.Migration.MigrationV1alpha1().StorageStates().Delete(ctx, name, metav1.DeleteOptions{})
}

// Retry asks for another attempt at each resource whose migration failed, as an administrator does, and counts them.
func (c *Cluster) Retry(ctx context.Context, token string) (int, error) {
	states := c.Migration.MigrationV1alpha1().StorageStates()
	list, err := states.List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	retried := 0
	var errs []error
	for _, state := range list.Items {
		backoff := state.Status.Backoff
		if backoff == nil || backoff.Failures == 0 || state.Spec.RetryToken == token {
			continue
		}
		state.Spec.RetryToken = token
		if _, err := states.Update(ctx, &state, metav1.UpdateOptions{}); err != nil {
			errs = append(errs, err)
			continue
		}
		retried++
	}
	return retried, errors.Join(errs...)
}
