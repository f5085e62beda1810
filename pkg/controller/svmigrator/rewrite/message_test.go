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

package rewrite

import (
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// unencodable is a type that cannot be encoded, as types inside of an API server cannot.
type unencodable struct{ Password string }

func (unencodable) MarshalJSON() ([]byte, error) { return nil, errors.New("not for the outside") }

// TestMessagesHaveNoValues makes errors as the API server does.
func TestMessagesHaveNoValues(t *testing.T) {
	path := field.NewPath("spec", "password")
	for want, errs := range map[string]field.ErrorList{
		`spec.password: Invalid value: must be longer`: {
			field.Invalid(path, "secret: \"of\" one", "must be longer"),
			field.Invalid(path, map[string]any{"a": "secret: {}"}, "must be longer"),
			field.Invalid(path, []string{"secret"}, "must be longer"),
			field.Invalid(path, 4711, "must be longer"),
		},
		`spec.password: Invalid value: in body must be of type uuid`: {
			field.Invalid(path, "secret", `in body must be of type uuid: "secret"`),
			field.Invalid(path, field.OmitValueType{}, `in body must be of type uuid: "secret"`),
		},
		`spec.password: Invalid value: (value) is in the dictionary`: {
			field.Invalid(path, "secret", "secret is in the dictionary"),
		},
		`spec.password: Invalid value: 10 characters are needed`: {
			field.Invalid(path, field.OmitValueType{}, "10 characters are needed"),
		},
		`spec.password: Invalid value: size must be more than that: call the storage team`: {
			field.Invalid(path, field.OmitValueType{}, "size must be more than that: call the storage team"),
		},
		`spec.password: Invalid value`: {
			field.Invalid(path, unencodable{Password: "secret"}, "must be longer"),
		},
		`spec.password: Unsupported value: supported values: "a", "b"`: {
			field.NotSupported(path, "secret", []string{"a", "b"}),
		},
		"spec.password: Duplicate value":              {field.Duplicate(path, "secret")},
		"spec.password: Required value: it is needed": {field.Required(path, "it is needed")},
		"spec.password: Forbidden: it is immutable": {
			field.Forbidden(path, "it is immutable"), field.Forbidden(path, "it is immutable\n  password: secret"),
		},
	} {
		for _, err := range errs {
			invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "Vault"}, "one", field.ErrorList{err})
			got := Classify(invalid, "one").message
			if got != `Vault "one" is invalid: `+want || strings.Contains(got, "secret") || strings.Contains(got, "4711") {
				t.Errorf("got %s\nfor %s", got, invalid.Error())
			}
		}
	}
	other := apierrors.NewForbidden(schema.GroupResource{Resource: "vaults"}, "one", nil)
	if got := Classify(other, "one").message; got != other.Error() {
		t.Errorf("got %s, want %s", got, other.Error())
	}
}
