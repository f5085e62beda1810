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

package webhook

import (
	"encoding/json"
	"errors"
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/utils/ptr"
)

// Mutation adds a hook that changes every object by a JSON patch.
func (s *Server) Mutation(patch string) *Hook {
	return s.add(func(body []byte, _ Behaviour) (any, error) {
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(body, &review); err != nil {
			return nil, fmt.Errorf("reading an admission review: %w", err)
		}
		if review.Request == nil {
			return nil, errors.New("an admission review without a request")
		}
		return admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: true,
			Patch: []byte(patch), PatchType: ptr.To(admissionv1.PatchTypeJSONPatch),
		}}, nil
	})
}

// MutatingWebhook returns the entry of a MutatingWebhookConfiguration for a hook that Mutation made. The name must have
// two dots.
func (h *Hook) MutatingWebhook(
	name string, rules ...admissionregistrationv1.RuleWithOperations,
) admissionregistrationv1.MutatingWebhook {
	return admissionregistrationv1.MutatingWebhook{
		Name:                    name,
		ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: &h.url, CABundle: h.caBundle},
		Rules:                   rules,
		FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
		SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
		TimeoutSeconds:          ptr.To(timeoutSeconds),
		AdmissionReviewVersions: []string{"v1"},
	}
}
