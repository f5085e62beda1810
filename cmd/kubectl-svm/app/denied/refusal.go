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

package denied

import (
	"regexp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/fence"
)

// refusals are the words of refusals, with who refuses, and what to do. $1 and $2 stand for parts of the words. Those
// of webhooks come first, because their authors may quote all others.
var refusals = []struct {
	words       *regexp.Regexp
	who, remedy string
}{
	{regexp.MustCompile(`^Internal error occurred: failed calling webhook "([^"]+)"`), "webhook $1",
		"The webhook does not work. Repair it, or exclude these objects from it. If its software is gone, delete its " +
			"configuration."},
	{regexp.MustCompile(`^admission webhook "([^"]+)"`), "webhook $1", "Change the objects so that the webhook accepts " +
		"them. Or add a matchCondition to the webhook that skips the user of the manager."},
	{regexp.MustCompile(regexp.QuoteMeta(fence.DeniedChange)), "the fence",
		"Read the message, which says what may be the cause and what helps."},
	{regexp.MustCompile(regexp.QuoteMeta(rewrite.WouldDrop)), "the manager",
		"The objects would lose fields that clients read. The message says what helps."},
	{regexp.MustCompile(regexp.QuoteMeta(rewrite.NoRequestReaches)), "the manager",
		"The objects are left from a definition with another scope. The message says what helps."},
	{regexp.MustCompile(`(ValidatingAdmissionPolicy|MutatingAdmissionPolicy) '([^']+)'`), "$1 $2", "Change the " +
		"objects so that the policy accepts them. Or add a matchCondition to the policy that skips the user of the manager."},
	{regexp.MustCompile(`^[^"]*"[^"]*" is forbidden: User "([^"]+)" cannot (\w+) resource`), "RBAC",
		"Allow the user $1 to $2 the objects. For custom resources: " + cli.SVM + " rbac | " + cli.Kubectl +
			" apply -f -"},
	{rewrite.NotDecrypted, "API server", "It lacks the encryption key of the objects, or its KMS does not work. " +
		rewrite.KeyRemedy + "."},
	{regexp.MustCompile(`^namespaces "([^"]+)" not found$`), "namespace $1", "The objects still exist, but their " +
		"namespace does not. Create the namespace again. Then delete it, which deletes the objects too, or retry."},
}

// refusal says who refuses an object, and what to do.
func refusal(object migrationv1alpha1.DeniedObject) (who, remedy string) {
	for _, r := range refusals {
		if m := r.words.FindStringSubmatchIndex(object.Message); m != nil {
			return string(r.words.ExpandString(nil, r.who, object.Message, m)),
				string(r.words.ExpandString(nil, r.remedy, object.Message, m))
		}
	}
	if object.Reason == metav1.StatusReasonInvalid {
		return "validation",
			"The objects are not valid any more. Repair them with " + cli.Kubectl + " edit, or delete them."
	}
	return "API server", "Read the message, and change the objects or the rule that refuses them."
}
