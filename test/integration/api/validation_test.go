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

package api

import (
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// refusal is what has to be in the message of an answer that says Invalid; empty where the request has to succeed.
type refusal string

const accepted refusal = ""

func objectOf(t *testing.T, kind, name, part, content string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("migration.k8s.io/v1alpha1")
	object.SetKind(kind)
	object.SetName(name)
	setPart(t, object, part, content)
	return object
}

// setPart sets the spec or the status of object to the YAML, or removes it if that is null.
func setPart(t *testing.T, object *unstructured.Unstructured, part, content string) {
	t.Helper()
	data, err := yaml.YAMLToJSON([]byte(`{apiVersion: v1, kind: Part, content: ` + content + `}`))
	if err != nil {
		t.Fatal(err)
	}
	parsed := &unstructured.Unstructured{}
	if err := parsed.UnmarshalJSON(data); err != nil {
		t.Fatal(err)
	}
	delete(object.Object, part)
	if content := parsed.Object["content"]; content != nil {
		object.Object[part] = content
	}
}

func requireAnswer(t *testing.T, err error, want refusal) {
	t.Helper()
	switch {
	case want == accepted && err != nil:
		t.Errorf("refused: %v", err)
	case want != accepted && err == nil:
		t.Errorf("accepted, want a refusal that says %q", want)
	case want != accepted && !apierrors.IsInvalid(err):
		t.Errorf("another error than Invalid: %v", err)
	case want != accepted && !strings.Contains(err.Error(), string(want)):
		t.Errorf("the refusal does not say %q: %v", want, err)
	}
}
