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

package observer

import (
	"context"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// catalog is the group versions that a server says it serves, those of one group in the order of preference. It does
// not tell how resources are encoded.
type catalog []servedVersion

// servedVersion is a group version of a catalog.
type servedVersion struct {
	schema.GroupVersion
	// mayStore says that a resource can be listed, or that the server does not tell. A group version without such a
	// resource stores nothing.
	mayStore bool
}

// readCatalog asks for the group versions and resources that a server itself serves.
func readCatalog(ctx context.Context, from documents.Reader) (catalog, error) {
	var all catalog
	for _, path := range []string{"/api", "/apis"} {
		list := &groupDiscoveryList{}
		// A server that does not know the profile ignores it.
		err := from.Decode(ctx, path, discovery.AcceptV2NoPeer, "APIGroupDiscoveryList", list)
		if err != nil {
			return nil, err
		}
		for _, group := range list.Items {
			all = append(all, group.versions()...)
		}
	}
	return all, nil
}

// groupDiscoveryList is an apidiscoveryv2.APIGroupDiscoveryList.
type groupDiscoveryList struct {
	metav1.TypeMeta
	Items []groupDiscovery `json:"items"`
}

// groupDiscovery has the few fields of apidiscoveryv2.APIGroupDiscovery that matter. The document has all custom
// resources as well.
type groupDiscovery struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Versions []struct {
		Version   string                            `json:"version"`
		Freshness apidiscoveryv2.DiscoveryFreshness `json:"freshness"`
		Resources []struct {
			Verbs []string `json:"verbs"`
		} `json:"resources"`
	} `json:"versions"`
}

func (g groupDiscovery) versions() (served []servedVersion) {
	for _, v := range g.Versions {
		mayStore := v.Freshness == apidiscoveryv2.DiscoveryFreshnessStale
		for _, r := range v.Resources {
			mayStore = mayStore || slices.Contains(r.Verbs, "list")
		}
		served = append(served, servedVersion{schema.GroupVersion{Group: g.Metadata.Name, Version: v.Version}, mayStore})
	}
	return served
}

// only returns the part with the group versions that pass.
func (c catalog) only(pass func(schema.GroupVersion) bool) catalog {
	return slices.DeleteFunc(slices.Clone(c), func(v servedVersion) bool { return !pass(v.GroupVersion) })
}
