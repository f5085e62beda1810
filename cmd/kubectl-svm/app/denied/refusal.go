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
	"fmt"
	"regexp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/fence"
)

// The wording of refusals of kube-apiserver.
var (
	byWebhook     = regexp.MustCompile(`admission webhook "([^"]+)"`)
	webhookFailed = regexp.MustCompile(`failed calling webhook "([^"]+)"`)
	byPolicy      = regexp.MustCompile(`(ValidatingAdmissionPolicy|MutatingAdmissionPolicy) '([^']+)'`)
	leftBehind    = regexp.MustCompile(`^namespaces "([^"]+)" not found$`)
	notAllowed    = regexp.MustCompile(`User "([^"]+)" cannot (\w+) resource`)
)

// refusal says who refuses an object, and what to do.
func refusal(object migrationv1alpha1.DeniedObject) (who, remedy string) {
	if strings.Contains(object.Message, fence.DeniedChange) {
		return "the fence", "Read the message, which says what may be the cause and what helps."
	}
	if strings.Contains(object.Message, rewrite.WouldDrop) {
		return "the manager", "The objects would lose fields that clients read. The message says what helps."
	}
	if m := webhookFailed.FindStringSubmatch(object.Message); m != nil {
		return "webhook " + m[1], "The webhook does not work. Repair it, or exclude these objects from it."
	}
	if m := byWebhook.FindStringSubmatch(object.Message); m != nil {
		return "webhook " + m[1], "Change the objects so that the webhook accepts them. Or add a matchCondition to the " +
			"webhook that skips the user of the manager."
	}
	if m := byPolicy.FindStringSubmatch(object.Message); m != nil {
		return m[1] + " " + m[2], "Change the objects so that the policy accepts them. Or add a matchCondition to the " +
			"policy that skips the user of the manager."
	}
	if m := notAllowed.FindStringSubmatch(object.Message); m != nil {
		return "RBAC", fmt.Sprintf("Allow the user %s to %s the objects. For custom resources: kubectl svm rbac | "+
			"kubectl apply -f -", m[1], m[2])
	}
	if m := leftBehind.FindStringSubmatch(object.Message); m != nil {
		return "namespace " + m[1], "The objects still exist, but their namespace does not. Create the namespace again. " +
			"Then delete it, which deletes the objects too, or retry."
	}
	if object.Reason == metav1.StatusReasonInvalid {
		return "validation", "The objects are not valid any more. Repair them with kubectl edit, or delete them."
	}
	return "API server", "Read the message, and change the objects or the rule that refuses them."
}
