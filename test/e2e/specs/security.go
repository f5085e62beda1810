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

package specs

import (
	"context"
	"fmt"
	"net/http"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
	"sigs.k8s.io/svm-controller-manager/test/webhook"
)

var identity = []suite.Need{suite.NeedIdentity}

var security = []suite.Spec{
	{
		Name: "the-identity-cannot-change-objects", Profile: suite.ProfileSecurity, Controllers: migrator, Needs: identity,
		Features: []suite.Feature{suite.FeatureFence},
		Title:    "The API servers let the identity write without a change, and refuse each of its changes", Test: fenced,
	},
	{
		Name: "the-identity-has-no-needless-rights", Profile: suite.ProfileSecurity, Controllers: migrator, Needs: identity,
		Title: "The identity may not create, delete or run things, nor act as others, nor give rights", Test: narrow,
	},
	{
		Name: "tenants-cannot-migrate", Profile: suite.ProfileSecurity, Controllers: both,
		Title: "A user without rights may not ask for migrations, nor read or change records", Test: tenants,
	},
	{
		Name: "reports-have-no-values", Profile: suite.ProfileSecurity, Controllers: migrator, Timeout: long,
		Features: []suite.Feature{suite.FeaturePrivacy}, Needs: []suite.Need{suite.NeedWebhooks},
		Title: "What a migration reports about an invalid object has no values of its fields", Test: private,
	},
}

func fenced(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, 1)
	objects, err := c.As(r)
	c.Must(err)
	try := func(patch string, options metav1.PatchOptions) error {
		_, err := objects.Patch(ctx, suite.ObjectName(0), types.MergePatchType, []byte(patch), options)
		return err
	}
	c.Eventually(ctx, func(context.Context) error { return try(`{}`, metav1.PatchOptions{}) })
	for what, patch := range map[string]string{
		"a label":       `{"metadata":{"labels":{"changed":"yes"}}}`,
		"an annotation": `{"metadata":{"annotations":{"changed":"yes"}}}`,
		"a finalizer":   `{"metadata":{"finalizers":["example.com/changed"]}}`,
		"a field":       `{"spec":{"size":2}}`,
	} {
		if err := try(patch, metav1.PatchOptions{}); err == nil {
			c.Fail("the identity %s could change %s", c.Options.Identity, what)
		}
	}
	if err := objects.Delete(ctx, suite.ObjectName(0), metav1.DeleteOptions{}); err == nil {
		c.Fail("the identity %s could delete an object", c.Options.Identity)
	}
}

// needless is what a migrator does not need, by verb, group and resource.
var needless = []authorizationv1.ResourceAttributes{
	{Verb: "*", Group: "*", Resource: "*"},
	{Verb: "create", Resource: "pods"},
	{Verb: "create", Resource: "pods", Subresource: "exec"},
	{Verb: "delete", Resource: "secrets"},
	{Verb: "create", Resource: "secrets"},
	{Verb: "delete", Resource: "namespaces"},
	{Verb: "create", Resource: "serviceaccounts", Subresource: "token"},
	{Verb: "impersonate", Resource: "users"},
	{Verb: "bind", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
	{Verb: "escalate", Group: "rbac.authorization.k8s.io", Resource: "clusterroles"},
	{Verb: "create", Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"},
	{Verb: "delete", Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"},
	{Verb: "approve", Group: "certificates.k8s.io", Resource: "signers"},
	{Verb: "delete", Group: "admissionregistration.k8s.io", Resource: "validatingadmissionpolicies"},
	{Verb: "patch", Group: "admissionregistration.k8s.io", Resource: "validatingwebhookconfigurations"},
}

func narrow(ctx context.Context, c *suite.Case) {
	var has []string
	for _, attributes := range needless {
		attributes.Namespace = "kube-system"
		if allowed(ctx, c, c.Options.Identity, attributes) {
			has = append(has, strings.TrimSpace(fmt.Sprint(attributes.Verb, " ", attributes.Resource, "/",
				attributes.Subresource, " ", attributes.Group)))
		}
	}
	if len(has) > 0 {
		c.Fail("the identity %s may also: %s", c.Options.Identity, strings.Join(has, "; "))
	}
}

// allowed asks the API server what a user may do.
func allowed(ctx context.Context, c *suite.Case, user string, attributes authorizationv1.ResourceAttributes) bool {
	review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user, Groups: suite.GroupsOf(user), ResourceAttributes: &attributes,
	}}
	answer, err := c.Kube.AuthorizationV1().SubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
	c.Must(err)
	return answer.Status.Allowed
}

func tenants(ctx context.Context, c *suite.Case) {
	const tenant = "system:serviceaccount:default:default"
	for _, group := range []string{"migration.k8s.io", "storagemigration.k8s.io"} {
		for _, resource := range []string{"storageversionmigrations", "storagestates"} {
			for _, verb := range []string{"create", "get", "list", "watch", "update", "patch", "delete"} {
				attributes := authorizationv1.ResourceAttributes{Verb: verb, Group: group, Resource: resource}
				if allowed(ctx, c, tenant, attributes) {
					c.Fail("%s may %s %s.%s", tenant, verb, resource, group)
				}
			}
		}
	}
}

// private has an object denied by a webhook in the form in which API servers refuse invalid fields.
func private(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, few)
	const secret = "hunter2-of-conformance"
	name, detail := suite.ObjectName(0), `Invalid value: "`+secret+`": must be a number`
	hook := c.Webhooks().Validation()
	hook.Behave(webhook.Behaviour{Deny: map[string]metav1.Status{name: {
		Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: "spec.token: " + detail,
		Details: &metav1.StatusDetails{Kind: r.Kind, Name: name, Causes: []metav1.StatusCause{
			{Type: metav1.CauseTypeFieldValueInvalid, Field: "spec.token", Message: detail},
		}},
	}}})
	c.Register(ctx, r, hook.ValidatingWebhook(""), name, secret)
	c.Store(ctx, r, v2)
	outcome := c.Await(ctx, c.Start(ctx, r))
	if outcome.Succeeded {
		c.Fail("the migration claims success: %s", outcome.Message)
	}
	if strings.Contains(outcome.Everything, secret) {
		c.Fail("the migration shows a value of an object: %s", outcome.Everything)
	}
}
