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

package migrate

import (
	"context"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// automanagedContinuously is the value of documents.AutomanagedLabel on APIServices of CustomResourceDefinitions.
const automanagedContinuously = "true"

var apiServices = schema.GroupVersionResource{
	Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices",
}

// selected returns the resources to migrate.
func (o *Options) selected(ctx context.Context, cluster *cli.Cluster) ([]schema.GroupResource, error) {
	if !o.Everything {
		return cluster.Catalog.Resolve(o.Names)
	}
	classes := map[string]storageversion.Class{}
	if o.BuiltIn || o.Custom || o.Aggregated {
		var err error
		if classes, err = o.classes(ctx); err != nil {
			return nil, err
		}
	}
	excepted, err := cluster.Catalog.Resolve(o.Except)
	if err != nil {
		return nil, err
	}
	var selected []schema.GroupResource
	for _, resource := range cluster.Catalog.Resources() {
		stored := len(resource.Versions) > 0 && !resource.Unstored // Others cannot be migrated.
		if !stored || storageversion.Expires(resource.GroupResource) || slices.Contains(excepted, resource.GroupResource) {
			continue
		}
		if len(classes) == 0 || o.includes(classes[apiServiceName(resource.Group, resource.Versions[0])]) {
			selected = append(selected, resource.GroupResource)
		}
	}
	return selected, nil
}

func (o *Options) includes(class storageversion.Class) bool {
	return class == storageversion.BuiltIn && o.BuiltIn || class == storageversion.Custom && o.Custom ||
		class == storageversion.Aggregated && o.Aggregated
}

func apiServiceName(group, version string) string { return version + "." + group }

// classes returns the class of each group version, by the names of APIServices.
func (o *Options) classes(ctx context.Context) (map[string]storageversion.Class, error) {
	list, err := o.Clients.Dynamic.Resource(apiServices).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("listing APIServices, which distinguish built-in, custom and aggregated resources: %w",
			cli.Explain(err))
	}
	classes := map[string]storageversion.Class{}
	for _, service := range list.Items {
		class := storageversion.BuiltIn
		if behind, _, _ := unstructured.NestedMap(service.Object, "spec", "service"); behind != nil {
			class = storageversion.Aggregated
		} else if service.GetLabels()[documents.AutomanagedLabel] == automanagedContinuously {
			class = storageversion.Custom
		}
		classes[service.GetName()] = class
	}
	return classes, nil
}

// checkComplete is CheckComplete, but the built-in resources are those of the API server itself.
func (o *Options) checkComplete(catalog *cli.Catalog) error {
	if o.BuiltIn && !o.Custom && !o.Aggregated {
		return nil
	}
	return o.CheckComplete(catalog)
}

// warn prints what a person may not expect. The migrations are created anyway.
func (o *Options) warn(ctx context.Context, cluster *cli.Cluster, resources []schema.GroupResource) {
	lease, err := o.Clients.Lease(ctx, o.ManagerLease)
	if manager := assess.ManagerOf(lease, err, cluster.States, o.Clock.Now()); !manager.Migrates() {
		o.Notef("Warning: nothing is migrated until a manager runs the migrator. %s", manager.Message)
	}
	for i := range cluster.Migrations {
		m := &cluster.Migrations[i]
		if !m.Finished() && slices.Contains(resources, m.GroupResource()) {
			o.Notef("Warning: the migration %s of %s has not ended. The new one waits for it.", m.Name, m.GroupResource())
		}
	}
}
