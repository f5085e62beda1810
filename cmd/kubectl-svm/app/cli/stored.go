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
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/pager"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/releases"
)

var definitions = schema.GroupVersionResource{
	Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
}

// Rediscover asks again which resources are served. It changes nothing if the API server does not answer.
func (c *Clients) Rediscover(ctx context.Context, cluster *Cluster) {
	if catalog, err := Discover(ctx, c.Discovery); err == nil {
		cluster.Catalog = catalog
		c.MarkUnstored(ctx, cluster)
	}
}

// MarkUnstored finds out which resources aggregated servers do not store. Aggregated discovery does not say that, so it
// takes a request for each version of a resource that is not built-in and has no StorageState. Where a manager runs,
// these are few. What does not answer remains stored, and so does a custom resource: it has no hash if its storage
// version is not served.
func (c *Clients) MarkUnstored(ctx context.Context, cluster *Cluster) {
	observed := sets.New[schema.GroupResource]()
	for i := range cluster.States {
		observed.Insert(cluster.States[i].GroupResource())
	}
	var doubtful []*Resource
	versions := sets.New[schema.GroupVersion]()
	for i := range cluster.Catalog.resources {
		r := &cluster.Catalog.resources[i]
		if releases.BuiltIn(r.Group) || observed.Has(r.GroupResource) || len(r.Versions) == 0 {
			continue
		}
		doubtful = append(doubtful, r)
		versions.Insert(r.groupVersions()...)
	}
	unhashed := askUnhashed(ctx, c.Discovery, versions)
	for _, r := range doubtful {
		r.Unstored = !slices.ContainsFunc(r.groupVersions(), func(version schema.GroupVersion) bool {
			return !unhashed.Has(version.WithResource(r.Resource))
		}) && controller.SaysMissing(c.findDefinition(ctx, r.GroupResource), definitions.GroupResource(), r.String())
	}
}

// findDefinition returns nil if a resource has a CustomResourceDefinition, or why that cannot be read.
func (c *Clients) findDefinition(ctx context.Context, resource schema.GroupResource) error {
	_, err := c.Dynamic.Resource(definitions).Get(ctx, resource.String(), metav1.GetOptions{})
	return err
}

func (r *Resource) groupVersions() (versions []schema.GroupVersion) {
	for _, version := range r.Versions {
		versions = append(versions, schema.GroupVersion{Group: r.Group, Version: version})
	}
	return versions
}

// askUnhashed returns for which resources of these versions servers publish no hash of what they store.
func askUnhashed(
	ctx context.Context, client discovery.DiscoveryInterfaceWithContext, versions sets.Set[schema.GroupVersion],
) sets.Set[schema.GroupVersionResource] {
	unhashed := sets.New[schema.GroupVersionResource]()
	var mu sync.Mutex
	var asked sync.WaitGroup
	for version := range versions {
		asked.Go(func() {
			list, err := client.ServerResourcesForGroupVersionWithContext(ctx, version.String())
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, r := range list.APIResources {
				if r.StorageVersionHash == "" {
					unhashed.Insert(version.WithResource(r.Name))
				}
			}
		})
	}
	asked.Wait()
	return unhashed
}

// ReadDefinitions reads the metadata of all CustomResourceDefinitions into the cluster. A StorageState that is older
// than the definition is no proof: the servers may write another version by now.
func (c *Clients) ReadDefinitions(ctx context.Context, cluster *Cluster) {
	found := map[string]*metav1.ObjectMeta{}
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return c.Metadata.Resource(definitions).List(ctx, options)
	})
	err := list.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		if d, is := object.(*metav1.PartialObjectMetadata); is {
			found[d.Name] = &metav1.ObjectMeta{Name: d.Name, UID: d.UID, Generation: d.Generation}
		}
		return nil
	})
	if err != nil {
		cluster.DefinitionsUnread = fmt.Errorf("listing CustomResourceDefinitions: %w", Explain(err))
		return // Those that were read before are still better than none.
	}
	cluster.Definitions, cluster.DefinitionsUnread = found, nil
}
