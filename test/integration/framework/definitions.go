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

package framework

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	definitionclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/retry"
)

// Definitions is a client for CustomResourceDefinitions.
func (c *Cluster) Definitions() definitionclient.CustomResourceDefinitionInterface {
	return c.Extensions.ApiextensionsV1().CustomResourceDefinitions()
}

// ChangeDefinition changes the definition of a resource, and returns when the API server has taken it.
func (c *Cluster) ChangeDefinition(
	t *testing.T, resource schema.GroupResource, change func(*apiextensionsv1.CustomResourceDefinition),
) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		definition, err := c.Definitions().Get(t.Context(), resource.String(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		change(definition)
		_, err = c.Definitions().Update(t.Context(), definition, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// StoreVersion makes the definition of a resource store that version.
func (c *Cluster) StoreVersion(t *testing.T, resource schema.GroupResource, version string) {
	t.Helper()
	c.ChangeDefinition(t, resource, func(definition *apiextensionsv1.CustomResourceDefinition) {
		for i := range definition.Spec.Versions {
			definition.Spec.Versions[i].Storage = definition.Spec.Versions[i].Name == version
		}
	})
}
