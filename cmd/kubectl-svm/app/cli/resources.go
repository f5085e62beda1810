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
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/discovery"
)

// All names every resource.
const All = "all"

// Resource is a resource whose objects can be migrated, as the API server serves it.
type Resource struct {
	schema.GroupResource
	// Versions are the versions in which it is served, the preferred one first.
	Versions []string
	// ShortNames are other names of it, its singular among them.
	ShortNames []string
	// Unstored means that the manager keeps no StorageState: an aggregated server publishes no hash of the version in
	// which it stores the objects, or the resource is gone. It is false if that is not known.
	Unstored bool
}

// Catalog knows the resources that a person can name.
type Catalog struct {
	resources []Resource // in the order of their names
	index     map[schema.GroupResource]int
	// Incomplete is not nil if the API server could not list the resources of some groups.
	Incomplete error
}

// Discover asks the API server which resources it serves whose objects can be migrated: those that clients can list,
// and update or patch.
func Discover(ctx context.Context, client discovery.DiscoveryInterfaceWithContext) (*Catalog, error) {
	groups, lists, err := client.ServerGroupsAndResourcesWithContext(ctx)
	if err != nil && (ctx.Err() != nil || len(groups) == 0 || !errors.As(err, new(*discovery.ErrGroupDiscoveryFailed))) {
		return nil, fmt.Errorf("asking the API server which resources it serves: %w", Explain(err))
	}
	served := map[string][]metav1.APIResource{} // by group and version
	for _, list := range lists {
		served[list.GroupVersion] = list.APIResources
	}
	found := map[schema.GroupResource]*Resource{}
	for _, group := range groups {
		for _, version := range group.Versions { // The preferred one is the first.
			for _, r := range served[version.GroupVersion] {
				if !migratable(r) {
					continue
				}
				resource := schema.GroupResource{Group: group.Name, Resource: r.Name}
				if found[resource] == nil {
					names := append(slices.Clone(r.ShortNames), r.SingularName)
					found[resource] = &Resource{GroupResource: resource, ShortNames: names}
				}
				found[resource].Versions = append(found[resource].Versions, version.Version)
			}
		}
	}
	catalog := &Catalog{}
	if err != nil {
		catalog.Incomplete = fmt.Errorf("the API server could not list all its resources: %w", err)
	}
	for _, resource := range found {
		catalog.resources = append(catalog.resources, *resource)
	}
	catalog.arrange()
	return catalog, nil
}

// migratable reports whether clients can list and rewrite objects. Subresources have a slash in the name. Nobody checks
// the names that an aggregated server chooses, and one that cannot be the name of a StorageState may upset a terminal.
func migratable(r metav1.APIResource) bool {
	return slices.Contains(r.Verbs, "list") && len(validation.IsDNS1123Label(r.Name)) == 0 &&
		(slices.Contains(r.Verbs, "patch") || slices.Contains(r.Verbs, "update"))
}

// Resources returns all resources, in order.
func (c *Catalog) Resources() []Resource { return slices.Clone(c.resources) }

// Find returns a resource, or nil.
func (c *Catalog) Find(resource schema.GroupResource) *Resource {
	i, found := c.index[resource]
	if !found {
		return nil
	}
	return &c.resources[i]
}

// Add adds resources that the API server does not serve.
func (c *Catalog) Add(resources ...schema.GroupResource) {
	added := sets.New[schema.GroupResource]()
	for _, resource := range resources {
		if c.Find(resource) == nil && !added.Has(resource) {
			added.Insert(resource)
			c.resources = append(c.resources, Resource{GroupResource: resource})
		}
	}
	if len(added) > 0 {
		c.arrange()
	}
}

// markGone marks the resources that are gone: the API server does not serve them, and nobody needs them, because there
// are no StorageStates of them, and all their migrations have ended. Their definitions were deleted, or the migrations
// name them by mistake. A resource of a group that could not be listed may be served.
func (c *Catalog) markGone(needed sets.Set[schema.GroupResource]) {
	unlisted := sets.New[string]()
	if failed, is := errors.AsType[*discovery.ErrGroupDiscoveryFailed](c.Incomplete); is {
		for version := range failed.Groups {
			unlisted.Insert(version.Group)
		}
	}
	for i := range c.resources {
		if r := &c.resources[i]; len(r.Versions) == 0 {
			r.Unstored = !needed.Has(r.GroupResource) && !unlisted.Has(r.Group)
		}
	}
}

// Unstored reports whether the manager keeps no StorageState of a resource.
func (c *Catalog) Unstored(resource schema.GroupResource) bool {
	r := c.Find(resource)
	return r != nil && r.Unstored
}

// Gone reports whether nothing is left of a resource but migrations that have ended.
func (c *Catalog) Gone(resource schema.GroupResource) bool {
	return c.Unstored(resource) && len(c.Find(resource).Versions) == 0
}

// arrange sorts and indexes the resources. There may be thousands, so callers add all of them first.
func (c *Catalog) arrange() {
	slices.SortFunc(c.resources, func(a, b Resource) int { return strings.Compare(a.String(), b.String()) })
	c.index = make(map[schema.GroupResource]int, len(c.resources))
	for i := range c.resources {
		c.index[c.resources[i].GroupResource] = i
	}
}

// Resolve returns the resources that a person named: "widgets", "widgets.example.com", "deploy", "*.example.com" or
// "all". It returns each once, in order. An error lists names that are near. It leaves out what is not stored, unless a
// name is the full one of such a resource, or means nothing else.
func (c *Catalog) Resolve(names []string) ([]schema.GroupResource, error) {
	var resolved []schema.GroupResource
	for _, name := range names {
		matches, err := c.match(strings.ToLower(name))
		if err != nil {
			return nil, err
		}
		resolved = append(resolved, matches...)
	}
	slices.SortFunc(resolved, func(a, b schema.GroupResource) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(resolved), nil
}

func (c *Catalog) match(name string) ([]schema.GroupResource, error) {
	group, wholeGroup := strings.CutPrefix(name, "*.")
	several := NamesSeveral(name)
	exact := schema.ParseGroupResource(name)
	if r := c.Find(exact); r != nil && (r.Group != "" || len(r.Versions) > 0) {
		return []schema.GroupResource{exact}, nil
	}
	var matches, unstored []schema.GroupResource
	for _, r := range c.resources {
		named := name == All || wholeGroup && r.Group == group || !wholeGroup && r.hasName(name)
		// A migration named it without its group, so the name means the resource that is served.
		mistaken := !several && r.GroupResource == exact && len(r.Versions) == 0
		switch {
		case named && (r.Unstored || mistaken):
			unstored = append(unstored, r.GroupResource)
		case named:
			matches = append(matches, r.GroupResource)
		}
	}
	if len(matches) == 0 {
		matches = unstored
	}
	switch {
	case len(matches) == 0:
		return nil, c.unknown(name)
	case len(matches) > 1 && !several:
		return nil, fmt.Errorf("%q names %d resources: write one of %s", name, len(matches), join(matches))
	}
	return matches, nil
}

// unknown returns the error for a name that no resource has.
func (c *Catalog) unknown(name string) error {
	hint := ""
	if c.Incomplete != nil {
		hint = fmt.Sprintf(" But %v.", c.Incomplete)
	}
	if group, whole := strings.CutPrefix(name, "*."); whole {
		return fmt.Errorf("no resource is in the group %q; \""+Kubectl+" api-resources\" lists all.%s", group, hint)
	}
	return fmt.Errorf("no resource is named %q: write its plural, as in \"widgets\" or \"widgets.example.com\"; "+
		"\""+Kubectl+" api-resources\" lists all.%s", name, hint)
}

// hasName reports whether a name without a group, or with it, is one of the resource.
func (r *Resource) hasName(name string) bool {
	short, group, qualified := strings.Cut(name, ".")
	if qualified && group != r.Group {
		return false
	}
	return short == r.Resource || slices.Contains(r.ShortNames, short)
}

func join(resources []schema.GroupResource) string {
	names := make([]string, 0, len(resources))
	for _, resource := range resources {
		names = append(names, resource.String())
	}
	return strings.Join(names, ", ")
}
