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
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/releases"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// selected returns the resources to migrate.
func (o *Options) selected(ctx context.Context, cluster *cli.Cluster) ([]schema.GroupResource, error) {
	if !o.Everything {
		return cluster.Catalog.Resolve(o.Names)
	}
	if o.Custom || o.Aggregated {
		if o.Clients.ReadDefinitions(ctx, cluster); cluster.DefinitionsUnread != nil {
			return nil, cluster.DefinitionsUnread
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
		if all := !o.BuiltIn && !o.Custom && !o.Aggregated; all || o.includes(cluster, &resource) {
			selected = append(selected, resource.GroupResource)
		}
	}
	return selected, nil
}

// includes reports whether a resource is of a class that the person asked for.
func (o *Options) includes(cluster *cli.Cluster, resource *cli.Resource) bool {
	switch {
	case cluster.Definitions[resource.String()] != nil:
		return o.Custom
	case releases.BuiltIn(resource.Group):
		return o.BuiltIn
	default:
		return o.Aggregated
	}
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
	manager := assess.FindManager(ctx, o.Env, o.Clients, o.ManagerLease, cluster.States)
	if !manager.Migrates() {
		o.Notef("Warning: nothing is migrated until a manager runs the migrator. %s", manager.Message)
	}
	for i := range cluster.Migrations {
		m := &cluster.Migrations[i]
		if !m.Active() || !slices.Contains(resources, m.GroupResource()) {
			continue
		}
		then := "Only one of the two runs at a time"
		if m.Spec.Suspend {
			then = "It is suspended, so the new one does not wait for it"
		}
		o.Notef("Warning: the migration %s of %s has not ended. %s.", m.Name, m.GroupResource(), then)
	}
}
