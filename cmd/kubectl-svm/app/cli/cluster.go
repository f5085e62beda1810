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

package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/definition"
)

// installDefinitions is the advice if a definition is missing, or is not that of this release.
const installDefinitions = "Check which cluster the context of the kubeconfig selects. If svm-controller-manager is " +
	"installed there, apply build/manifests/crds of its release or of the release of this plugin, whichever is newer. " +
	"If it is not installed, docs/install.md says how to install it."

// Cluster has the resources, the StorageStates and the migrations of a cluster at one moment.
type Cluster struct {
	Catalog    *Catalog
	States     []migrationv1alpha1.StorageState
	Migrations []migrationv1alpha1.StorageVersionMigration
	// Definitions are the CustomResourceDefinitions by name, after ReadDefinitions. If they could not be read the last
	// time, DefinitionsUnread says why.
	Definitions       map[string]*metav1.ObjectMeta
	DefinitionsUnread error
}

// Read reads which resources are served, all StorageStates and all migrations. The Catalog also knows resources that
// only these name.
func (c *Clients) Read(ctx context.Context) (*Cluster, error) {
	catalog, err := Discover(ctx, c.Discovery)
	if err != nil {
		return nil, err
	}
	if err := c.checkDefinitions(ctx, catalog); err != nil {
		return nil, err
	}
	cluster := &Cluster{Catalog: catalog}
	if err := c.ReadStates(ctx, cluster); err != nil {
		return nil, err
	}
	c.MarkUnstored(ctx, cluster)
	cluster.AddNamed()
	return cluster, nil
}

// ReadStates reads the StorageStates and the migrations as etcd has them now.
func (c *Clients) ReadStates(ctx context.Context, cluster *Cluster) error {
	states, err := c.Migration.StorageStates().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing StorageStates: %w", Explain(err))
	}
	migrations, err := c.Migration.StorageVersionMigrations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing StorageVersionMigrations: %w", Explain(err))
	}
	cluster.States, cluster.Migrations = states.Items, migrations.Items
	return nil
}

// AddNamed adds to the catalog the resources that only StorageStates or migrations name.
func (c *Cluster) AddNamed() {
	var ended []schema.GroupResource
	needed := sets.New[schema.GroupResource]()
	for i := range c.States {
		needed.Insert(c.States[i].GroupResource())
	}
	for i := range c.Migrations {
		if m := &c.Migrations[i]; m.Finished() {
			ended = append(ended, m.GroupResource())
		} else {
			needed.Insert(m.GroupResource())
		}
	}
	c.Catalog.Add(append(ended, needed.UnsortedList()...)...)
	c.Catalog.markGone(needed)
}

// State returns the StorageState of a resource, or nil.
func (c *Cluster) State(resource schema.GroupResource) *migrationv1alpha1.StorageState {
	for i := range c.States {
		if c.States[i].GroupResource() == resource {
			return &c.States[i]
		}
	}
	return nil
}

// Migration returns the migration of that name, or nil.
func (c *Cluster) Migration(name string) *migrationv1alpha1.StorageVersionMigration {
	for i := range c.Migrations {
		if c.Migrations[i].Name == name {
			return &c.Migrations[i]
		}
	}
	return nil
}

// RequireState returns the StorageState of a resource. It returns an error if there is none.
func (c *Cluster) RequireState(resource schema.GroupResource) (*migrationv1alpha1.StorageState, error) {
	if state := c.State(resource); state != nil {
		return state, nil
	}
	if c.Catalog.Gone(resource) {
		return nil, fmt.Errorf("%s has no StorageState: the API server does not serve it, and only migrations that have "+
			"ended name it", resource)
	}
	if c.Catalog.Unstored(resource) {
		return nil, fmt.Errorf("%s has no StorageState, because its API server does not publish in which version it "+
			"stores the objects", resource)
	}
	return nil, fmt.Errorf("%s has no StorageState yet: the trigger creates it. "+
		"\""+SVM+" status\" shows whether a manager runs", resource)
}

// MigrationsOf returns the migrations of a resource, the newest first.
func (c *Cluster) MigrationsOf(resource schema.GroupResource) []migrationv1alpha1.StorageVersionMigration {
	var migrations []migrationv1alpha1.StorageVersionMigration
	for i := range c.Migrations {
		if c.Migrations[i].GroupResource() == resource {
			migrations = append(migrations, c.Migrations[i])
		}
	}
	NewestFirst(migrations)
	return migrations
}

// ResolveMigrations returns the migrations that a person named: the one of that name, and those of the resources that
// the name means. Those of a resource come together, the newest first. "all" leaves out resources that are gone.
func (c *Cluster) ResolveMigrations(name string) ([]migrationv1alpha1.StorageVersionMigration, error) {
	if IsAll(name) {
		migrations := slices.DeleteFunc(slices.Clone(c.Migrations), func(m migrationv1alpha1.StorageVersionMigration) bool {
			return c.Catalog.Gone(m.GroupResource())
		})
		NewestFirst(migrations)
		slices.SortStableFunc(migrations, func(a, b migrationv1alpha1.StorageVersionMigration) int {
			return strings.Compare(a.GroupResource().String(), b.GroupResource().String())
		})
		return migrations, nil
	}
	named := c.Migration(name)
	resources, err := c.Catalog.Resolve([]string{name})
	if err != nil && named == nil {
		return nil, fmt.Errorf("no migration is named %q, and %w", name, err)
	}
	var migrations []migrationv1alpha1.StorageVersionMigration
	if named != nil && !slices.Contains(resources, named.GroupResource()) {
		migrations = append(migrations, *named)
	}
	for _, resource := range resources {
		migrations = append(migrations, c.MigrationsOf(resource)...)
	}
	return migrations, nil
}

// WithKind returns a copy of a migration with its apiVersion and kind, which clients drop, for printing.
func WithKind(m *migrationv1alpha1.StorageVersionMigration) *migrationv1alpha1.StorageVersionMigration {
	typed := m.DeepCopy()
	typed.SetGroupVersionKind(migrationv1alpha1.SchemeGroupVersion.WithKind("StorageVersionMigration"))
	return typed
}

// ListOf returns a list of migrations for printing.
func ListOf(
	migrations []migrationv1alpha1.StorageVersionMigration,
) *migrationv1alpha1.StorageVersionMigrationList {
	list := &migrationv1alpha1.StorageVersionMigrationList{Items: []migrationv1alpha1.StorageVersionMigration{}}
	list.SetGroupVersionKind(migrationv1alpha1.SchemeGroupVersion.WithKind("StorageVersionMigrationList"))
	for i := range migrations {
		list.Items = append(list.Items, *WithKind(&migrations[i]))
	}
	return list
}

// DefinitionsError says which definition the API server does not have, and what to do.
type DefinitionsError struct {
	Problem string
	// NoStates is whether the API server serves no StorageStates, so that there are none.
	NoStates bool
}

func (e DefinitionsError) Error() string { return e.Problem + "\n" + installDefinitions }

// checkDefinitions returns a DefinitionsError if the API server does not have the definitions of this release.
func (c *Clients) checkDefinitions(ctx context.Context, catalog *Catalog) error {
	for _, wanted := range []schema.GroupVersionResource{definition.States, definition.Migrations} {
		resource := wanted.GroupResource()
		served, missing, err := definition.Check(ctx, c.Discovery, wanted)
		switch {
		case err != nil:
			return fmt.Errorf("asking the API server for its definition of %s: %w", resource, Explain(err))
		case !served:
			problem := fmt.Sprintf("the API server does not serve %s.", resource)
			noStates, why := c.noStates(ctx, catalog)
			return DefinitionsError{Problem: problem + why, NoStates: noStates}
		case missing != "":
			return DefinitionsError{Problem: fmt.Sprintf("the CustomResourceDefinition of %s has no field %s: it is older "+
				"than this plugin, or it belongs to kube-storage-version-migrator. If that runs, stop it first: docs/install.md.",
				resource, missing)}
		}
	}
	return nil
}

// noStates reports whether the API server serves no StorageStates in any version. A definition that is new has no
// schema for some seconds, although its objects can be read. whyUnknown is what keeps a person from knowing.
func (c *Clients) noStates(ctx context.Context, catalog *Catalog) (none bool, whyUnknown string) {
	_, err := c.Migration.StorageStates().List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Sprintf(" Perhaps there are StorageStates all the same: %v.", Explain(err))
	}
	return err != nil && catalog.Find(definition.States.GroupResource()) == nil, ""
}
