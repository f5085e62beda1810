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

package assess

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
)

// typed returns a text with its commands as a person types them.
var typed = strings.NewReplacer(cli.SVM, "kubectl svm", cli.Kubectl, "kubectl").Replace

func TestAfterFailure(t *testing.T) {
	const policies = "validatingadmissionpolicies.admissionregistration.k8s.io"
	again := allowAdmission + "\n  Then: kubectl svm migrate " + policies + " --wait\n" +
		"  At the end, take the permission away: " + removeAdmission
	for _, test := range []struct {
		resource, reason string
		message          string
		denied           int64
		want             string
	}{
		{"widgets.example.com", "ObjectsDenied", "", 1, "kubectl svm denied widgets-1"},
		{"widgets.example.com", "RewritesChangeObjects", "", 0, "Change the rule so that it skips the manager (docs/tasks"},
		{"widgets.example.com", "ListRefused", rewrite.PermissionRemedy, 0,
			"To allow it: kubectl svm rbac | kubectl apply -f -\n  Then: kubectl svm migrate widgets"},
		{"widgets.example.com", "ListRefused", "The API server does not continue lists that it began", 1,
			"kubectl svm denied widgets-1"},
		{"widgets.example.com", "AgreementLost", "", 0, "To try again: kubectl svm migrate widgets.example.com --wait"},
		{"secrets", "RewritesRefused", rewrite.PermissionRemedy, 1, "Apply the manifests"},
		{"widgets.example.com", "VerbsNotSupported", "", 0, "would fail as well"},
		{policies, "ListRefused", rewrite.PermissionRemedy, 0, again},
		{policies, "AgreementLost", "", 0, "To try again: " + again},
		{policies, "RewritesChangeObjects", "", 0, "change nothing. Then: " + again},
		{policies, "VerbsNotSupported", "", 0, "changes\n  At the end, take the permission away: " + removeAdmission},
		{policies, "ObjectsDenied", "", 1,
			"kubectl svm denied widgets-1\n  At the end, take the permission away: " + removeAdmission},
		{"widgets.example.com", "RewritesRefused", rewrite.PermissionRemedy, 1, "kubectl svm rbac | kubectl apply -f -"},
	} {
		r := schema.ParseGroupResource(test.resource)
		m := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "widgets-1"}}
		m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: r.Group, Resource: r.Resource}
		m.Status.Conditions = []migrationv1alpha1.MigrationCondition{
			{Type: migrationv1alpha1.MigrationFailed, Status: "True", Reason: test.reason, Message: test.message},
		}
		m.Status.Progress = &migrationv1alpha1.MigrationProgress{Denied: test.denied}
		got := AfterFailure(m)
		if !strings.Contains(typed(got), typed(test.want)) {
			t.Errorf("%s, %s: %q, want %q", test.resource, test.reason, got, test.want)
		}
	}
}

func TestCommands(t *testing.T) {
	resource := func(name, verb, permission string) Resource {
		return Resource{GroupResource: schema.ParseGroupResource(name), Name: name, Verb: verb, Permission: permission}
	}
	known := []Resource{
		resource("a.whole.io", "migrate", "allow it"), resource("b.whole.io", "migrate", "allow it"),
		resource("a.part.io", "migrate", ""), resource("b.part.io", "", ""), resource("b.part.io", "resume", ""),
		resource("secrets", "migrate", ""), resource("pods", "migrate", ""),
	}
	of := []*Resource{&known[0], &known[1], &known[2], &known[4], &known[5], &known[6]}
	const group = "allow it; kubectl svm migrate '*.whole.io' a.part.io secrets pods; kubectl svm resume b.part.io"
	if got := typed(strings.Join(Commands(of, known), "; ")); got != group {
		t.Errorf("got %s, want %s", got, group)
	}
	const admission = "validatingwebhookconfigurations.admissionregistration.k8s.io"
	awaited := allowAdmission + "; kubectl svm migrate --wait " + admission + "; " + removeAdmission
	r := resource(admission, "migrate", allowAdmission)
	if got := strings.Join(Commands([]*Resource{&r}, nil), "; "); typed(got) != typed(awaited) {
		t.Errorf("admission objects: got %s, want %s", got, awaited)
	}
	const each = "allow it; kubectl svm migrate a.whole.io b.whole.io"
	if got := typed(strings.Join(Commands(of[:2], nil), "; ")); got != each {
		t.Errorf("some are named: got %s, want %s", got, each)
	}
}
