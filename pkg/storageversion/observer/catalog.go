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
	"encoding/json"
	"fmt"
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
	// A server that does not know the profile ignores it. One without aggregated discovery answers with the older kind.
	const accept = discovery.AcceptV2NoPeer + "," + discovery.AcceptV1
	var all catalog
	for _, path := range []string{"/api", "/apis"} {
		body, contentType, err := from.Get(ctx, path, accept)
		if err != nil {
			return nil, err
		}
		part, err := parseCatalog(contentType, body)
		if err != nil {
			return nil, fmt.Errorf("decoding %s: %w", path, err)
		}
		all = append(all, part...)
	}
	return all, nil
}

// parseCatalog reads an answer at /api or /apis: aggregated discovery, or the older list of group versions.
func parseCatalog(contentType string, body []byte) (catalog, error) {
	var c catalog
	aggregatedKind := apidiscoveryv2.SchemeGroupVersion.WithKind("APIGroupDiscoveryList")
	if aggregated, err := discovery.ContentTypeIsGVK(contentType, aggregatedKind); aggregated && err == nil {
		var list struct {
			Items []groupDiscovery `json:"items"`
		}
		err := json.Unmarshal(body, &list)
		for _, group := range list.Items {
			c = append(c, group.versions()...)
		}
		return c, err
	}
	var legacy struct {
		metav1.TypeMeta
		Versions []string          `json:"versions"`
		Groups   []metav1.APIGroup `json:"groups"`
	}
	if err := json.Unmarshal(body, &legacy); err != nil {
		return nil, err
	}
	switch legacy.Kind {
	case "APIVersions":
		for _, v := range legacy.Versions {
			c = append(c, servedVersion{schema.GroupVersion{Version: v}, true})
		}
	case "APIGroupList":
		for _, group := range legacy.Groups {
			for _, v := range documents.PreferredFirst(&group) {
				c = append(c, servedVersion{schema.GroupVersion{Group: group.Name, Version: v}, true})
			}
		}
	default:
		return nil, fmt.Errorf("the server answered with kind %q", legacy.Kind)
	}
	return c, nil
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
