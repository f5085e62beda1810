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
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Validation adds a hook that validates admission requests. It allows everything that Refuse and Deny do not name.
func (s *Server) Validation() *Hook {
	return s.add(func(body []byte, b Behaviour) (any, error) {
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(body, &review); err != nil {
			return nil, fmt.Errorf("reading an admission review: %w", err)
		}
		if review.Request == nil {
			return nil, errors.New("an admission review without a request")
		}
		response := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if message, refused := b.Refuse[review.Request.Name]; refused {
			response.Allowed = false
			response.Result = &metav1.Status{Message: message, Code: http.StatusForbidden}
		}
		if status, denied := b.Deny[review.Request.Name]; denied {
			response.Allowed = false
			response.Result = &status
		}
		return admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: response}, nil
	})
}

// ValidatingWebhook returns the entry of a ValidatingWebhookConfiguration for a hook that Validation made. The name
// must have two dots. API servers ask the hook about requests that match the rules, and refuse a request if the hook
// does not answer. Change the failure policy and the timeout in the result.
func (h *Hook) ValidatingWebhook(
	name string, rules ...admissionregistrationv1.RuleWithOperations,
) admissionregistrationv1.ValidatingWebhook {
	none, fail := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Fail
	return admissionregistrationv1.ValidatingWebhook{
		Name:                    name,
		ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: &h.url, CABundle: h.caBundle},
		Rules:                   rules,
		FailurePolicy:           &fail,
		SideEffects:             &none,
		TimeoutSeconds:          ptr.To(timeoutSeconds),
		AdmissionReviewVersions: []string{"v1"},
	}
}
