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

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Converter converts an object from one version to another, in place. It does not change the apiVersion.
type Converter func(object *unstructured.Unstructured, from, to string) error

// SameFields is for versions that differ only in the apiVersion.
func SameFields(*unstructured.Unstructured, string, string) error { return nil }

// RenamedField is for versions in which one field of spec has different names. names has the name by version.
func RenamedField(names map[string]string) Converter {
	return func(object *unstructured.Unstructured, from, to string) error {
		before, after := names[from], names[to]
		if before == "" || after == "" {
			return fmt.Errorf("the field has no name in %s or in %s", from, to)
		}
		value, found, err := unstructured.NestedFieldNoCopy(object.Object, "spec", before)
		if err != nil || !found {
			return err
		}
		unstructured.RemoveNestedField(object.Object, "spec", before)
		return unstructured.SetNestedField(object.Object, value, "spec", after)
	}
}

// Conversion adds a hook that converts custom resources.
func (s *Server) Conversion(convert Converter) *Hook {
	return s.add(func(body []byte, b Behaviour) (any, error) {
		var review apiextensionsv1.ConversionReview
		if err := json.Unmarshal(body, &review); err != nil {
			return nil, fmt.Errorf("reading a conversion review: %w", err)
		}
		if review.Request == nil {
			return nil, errors.New("a conversion review without a request")
		}
		success := metav1.Status{Status: metav1.StatusSuccess}
		response := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: success}
		for _, object := range review.Request.Objects {
			converted, err := convertOne(object.Raw, review.Request.DesiredAPIVersion, convert, b.Refuse)
			if err != nil {
				response.ConvertedObjects = nil
				response.Result = metav1.Status{Status: metav1.StatusFailure, Message: err.Error()}
				break
			}
			response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Raw: converted})
		}
		return apiextensionsv1.ConversionReview{TypeMeta: review.TypeMeta, Response: response}, nil
	})
}

func convertOne(raw []byte, apiVersion string, convert Converter, refuse map[string]string) ([]byte, error) {
	object := &unstructured.Unstructured{}
	// This decoder distinguishes integers from other numbers.
	if err := object.UnmarshalJSON(raw); err != nil {
		return nil, fmt.Errorf("reading an object: %w", err)
	}
	if message, refused := refuse[object.GetName()]; refused {
		return nil, errors.New(message)
	}
	to, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return nil, fmt.Errorf("reading the version that %s is asked for in: %w", object.GetName(), err)
	}
	if err := convert(object, object.GroupVersionKind().Version, to.Version); err != nil {
		return nil, fmt.Errorf("converting %s: %w", object.GetName(), err)
	}
	object.SetAPIVersion(apiVersion)
	return object.MarshalJSON()
}

// CustomResourceConversion returns the conversion of a CRD for a hook that Conversion made.
func (h *Hook) CustomResourceConversion() *apiextensionsv1.CustomResourceConversion {
	return &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter,
		Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig:             &apiextensionsv1.WebhookClientConfig{URL: &h.url, CABundle: h.caBundle},
			ConversionReviewVersions: []string{"v1"},
		},
	}
}
