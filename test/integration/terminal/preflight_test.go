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

package terminal

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/preflight"
	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// TestMissingStates gives each resource that the server stores a StorageState, except one.
func TestMissingStates(t *testing.T) {
	c := start(t, controlplane.Server{}, controlplane.EtcdConfig{})
	c.InstallMigrationAPI(t)
	without := schema.GroupResource{Resource: "secrets"}
	for _, resource := range c.hashed(t) {
		if resource == without {
			continue
		}
		state := &migrationv1alpha1.StorageState{ObjectMeta: metav1.ObjectMeta{Name: resource.String()}}
		state.Spec.Resource = migrationv1alpha1.GroupResource{Group: resource.Group, Resource: resource.Resource}
		if _, err := c.Migration.MigrationV1alpha1().StorageStates().Create(
			t.Context(), state, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var answer struct{ Findings preflight.Findings }
	decode(t, c.svm(t.Context(), t, notSafe, "", "preflight", "-o=json"), &answer)
	if !slices.ContainsFunc(answer.Findings, func(f preflight.Finding) bool {
		return f.Level == preflight.Error && f.Code == preflight.CodeNoStorageState &&
			strings.HasPrefix(f.Message, "there is no StorageState of secrets, so")
	}) {
		t.Errorf("nothing but secrets has no StorageState, and preflight finds %+v", answer.Findings)
	}
}

// hashed returns the resources that the server can list and patch, and of which it publishes a hash. Only the documents
// of each version have hashes.
func (c *cluster) hashed(t *testing.T) (resources []schema.GroupResource) {
	t.Helper()
	client, err := discovery.NewDiscoveryClientForConfig(c.AdminConfig)
	if err != nil {
		t.Fatal(err)
	}
	client.UseLegacyDiscovery = true
	_, lists, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			resource := schema.GroupResource{Group: version.Group, Resource: r.Name}
			if r.StorageVersionHash != "" && slices.Contains(r.Verbs, "list") && slices.Contains(r.Verbs, "patch") &&
				!slices.Contains(resources, resource) {
				resources = append(resources, resource)
			}
		}
	}
	return resources
}
