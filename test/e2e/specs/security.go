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
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

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
		Title: "A user without rights may not ask for migrations, nor read or change records, and users with the usual " +
			"roles of a namespace may only read them",
		Test: tenants,
	},
	{
		Name: "reports-have-no-values", Profile: suite.ProfileSecurity, Controllers: migrator, Timeout: long,
		Features: []suite.Feature{suite.FeaturePrivacy}, Needs: []suite.Need{suite.NeedWebhooks},
		Title: "What a migration reports about an invalid object, also in Events, has no values of its fields", Test: private,
	},
}

// fenced sends only dry runs: a fence judges them as it judges writes, and without a fence nothing changes.
func fenced(ctx context.Context, c *suite.Case) {
	c.CreateNamespaces(ctx)
	r := c.Define(ctx, []string{v1, v2})
	c.Fill(ctx, r, 1)
	objects, err := c.As(r)
	c.Must(err)
	dryRun, name := []string{metav1.DryRunAll}, suite.ObjectName(0)
	patch := func(client dynamic.ResourceInterface, patch string) error {
		_, err := client.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dryRun})
		return err
	}
	refused := func(what string, err error) {
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			c.Fail("the API server has to refuse that %s %s, and its answer is: %v", c.Options.Identity, what, err)
		}
	}
	c.Eventually(ctx, func(context.Context) error { return patch(objects, `{}`) })
	for what, change := range map[string]string{
		"changes a label":       `{"metadata":{"labels":{"changed":"yes"}}}`,
		"changes an annotation": `{"metadata":{"annotations":{"changed":"yes"}}}`,
		"changes a finalizer":   `{"metadata":{"finalizers":["example.com/changed"]}}`,
		"changes a field":       `{"spec":{"size":2}}`,
	} {
		c.Must(patch(c.Objects(r), change)) // What nobody may do would show nothing.
		refused(what, patch(objects, change))
	}
	refused("deletes an object", objects.Delete(ctx, name, metav1.DeleteOptions{DryRun: dryRun}))
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
	if !allowed(ctx, c, c.Options.Identity, authorizationv1.ResourceAttributes{Verb: "list", Resource: "podtemplates"}) {
		c.Fail("the identity %s may not list PodTemplates, so it is not that of a migrator", c.Options.Identity)
	}
	var has []string
	for _, attributes := range needless {
		attributes.Namespace = "kube-system"
		if allowed(ctx, c, c.Options.Identity, attributes) {
			has = append(has, wordsOf(attributes))
		}
	}
	if len(has) > 0 {
		c.Fail("the identity %s may also: %s", c.Options.Identity, strings.Join(has, "; "))
	}
}

// wordsOf are the words for a right, such as "update pods/status" or "patch deployments.apps".
func wordsOf(may authorizationv1.ResourceAttributes) string {
	words := may.Verb + " " + schema.GroupResource{Group: may.Group, Resource: may.Resource}.String()
	if may.Subresource != "" {
		words += "/" + may.Subresource
	}
	return words
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

// tenants asks about a ServiceAccount of a namespace that nobody has given a role, and about the roles that
// administrators give to users of a namespace: whatever is aggregated into these, all such users have. They may read.
func tenants(ctx context.Context, c *suite.Case) {
	tenant := "system:serviceaccount:" + c.Namespace + ":default"
	roles := map[string][]rbacv1.PolicyRule{}
	for _, name := range []string{"admin", "edit", "view"} {
		roles[name] = aggregated(ctx, c, name)
	}
	var has []string
	for _, may := range powers() {
		if allowed(ctx, c, tenant, may) {
			has = append(has, tenant+" may "+wordsOf(may))
		}
		for name, rules := range roles {
			if !slices.Contains(reading, may.Verb) && slices.ContainsFunc(rules, allows(may)) {
				has = append(has, "the ClusterRole "+name+" allows "+wordsOf(may))
			}
		}
	}
	if len(has) > 0 {
		c.Fail("%s", strings.Join(has, "; "))
	}
}

var reading = []string{"get", "list", "watch"}

// powers are all rights about migrations and records.
func powers() []authorizationv1.ResourceAttributes {
	var all []authorizationv1.ResourceAttributes
	for _, group := range []string{"migration.k8s.io", "storagemigration.k8s.io"} {
		for _, resource := range []string{"storageversionmigrations", "storagestates"} {
			for _, subresource := range []string{"", "status"} {
				for _, verb := range append(reading, "create", "update", "patch", "delete", "deletecollection") {
					all = append(all, authorizationv1.ResourceAttributes{
						Verb: verb, Group: group, Resource: resource, Subresource: subresource,
					})
				}
			}
		}
	}
	return all
}

// aggregated are the rules of a ClusterRole of each cluster, which gets them from other ones.
func aggregated(ctx context.Context, c *suite.Case, name string) (rules []rbacv1.PolicyRule) {
	usual := authorizationv1.ResourceAttributes{Verb: "list", Resource: "pods"}
	c.Eventually(ctx, func(ctx context.Context) error {
		role, err := c.Kube.RbacV1().ClusterRoles().Get(ctx, name, metav1.GetOptions{})
		if err == nil && !slices.ContainsFunc(role.Rules, allows(usual)) {
			err = fmt.Errorf("the ClusterRole %s does not have its usual rules", name)
		}
		rules = role.Rules
		return err
	})
	return rules
}

// allows tells whether a rule gives a right, if only for objects of some names.
func allows(may authorizationv1.ResourceAttributes) func(rbacv1.PolicyRule) bool {
	among := func(names []string, accepted ...string) bool {
		return slices.ContainsFunc(names, func(name string) bool { return name == "*" || slices.Contains(accepted, name) })
	}
	resources := []string{may.Resource}
	if may.Subresource != "" {
		resources = []string{may.Resource + "/" + may.Subresource, "*/" + may.Subresource}
	}
	return func(rule rbacv1.PolicyRule) bool {
		return among(rule.Verbs, may.Verb) && among(rule.APIGroups, may.Group) && among(rule.Resources, resources...)
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
	migration := c.Start(ctx, r)
	switch outcome := c.Await(ctx, migration); {
	case outcome.Succeeded:
		c.Fail("the migration claims success: %s", outcome.Message)
	case outcome.Everything == "":
		c.Fail("the adapter tells nothing of what users can read, so this spec would show nothing")
	}
	c.Eventually(ctx, func(ctx context.Context) error {
		outcome, err := migration.Outcome(ctx)
		if err == nil && !strings.Contains(outcome.Everything, corev1.EventTypeWarning) {
			err = errors.New("the adapter tells of no Event that warns of the failure, so this spec would show little")
		}
		return err
	})
	c.Consistently(ctx, while, func(ctx context.Context) error {
		outcome, err := migration.Outcome(ctx)
		if before, _, shown := strings.Cut(outcome.Everything, secret); err == nil && shown {
			err = fmt.Errorf("users can read a value of an object, after …%s", before[max(0, len(before)-200):])
		}
		return err
	})
}
