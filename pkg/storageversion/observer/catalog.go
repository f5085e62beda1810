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
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// catalog is what a server says that it serves. It does not tell how resources are encoded.
type catalog struct {
	// versions are the group versions, those of one group in the order of preference.
	versions []schema.GroupVersion
	// listable are the resources of each group version that can be listed, in order. A group version is missing if the
	// server does not tell. One without resources stores nothing.
	listable map[schema.GroupVersion][]string
}

// readCatalog asks for the group versions and resources that a server itself serves.
func readCatalog(ctx context.Context, from documents.Reader) (catalog, error) {
	// A server that does not know the profile ignores it. One without aggregated discovery answers with the older kind.
	const accept = discovery.AcceptV2NoPeer + "," + discovery.AcceptV1
	all := newCatalog()
	for _, path := range []string{"/api", "/apis"} {
		body, contentType, err := from.Get(ctx, path, accept)
		if err != nil {
			return catalog{}, err
		}
		part, err := parseCatalog(contentType, body)
		if err != nil {
			return catalog{}, fmt.Errorf("decoding %s: %w", path, err)
		}
		all.versions = append(all.versions, part.versions...)
		maps.Copy(all.listable, part.listable)
	}
	return all, nil
}

func newCatalog() catalog { return catalog{listable: map[schema.GroupVersion][]string{}} }

// parseCatalog reads an answer at /api or /apis: aggregated discovery, or the older list of group versions.
func parseCatalog(contentType string, body []byte) (catalog, error) {
	c := newCatalog()
	aggregatedKind := apidiscoveryv2.SchemeGroupVersion.WithKind("APIGroupDiscoveryList")
	if aggregated, err := discovery.ContentTypeIsGVK(contentType, aggregatedKind); aggregated && err == nil {
		var list struct {
			Items []groupDiscovery `json:"items"`
		}
		err := json.Unmarshal(body, &list)
		for _, group := range list.Items {
			c.addGroup(group)
		}
		return c, err
	}
	var legacy struct {
		metav1.TypeMeta
		Versions []string          `json:"versions"`
		Groups   []metav1.APIGroup `json:"groups"`
	}
	if err := json.Unmarshal(body, &legacy); err != nil {
		return catalog{}, err
	}
	switch legacy.Kind {
	case "APIVersions":
		for _, v := range legacy.Versions {
			c.versions = append(c.versions, schema.GroupVersion{Version: v})
		}
	case "APIGroupList":
		for i := range legacy.Groups {
			for _, v := range documents.PreferredFirst(&legacy.Groups[i]) {
				c.versions = append(c.versions, schema.GroupVersion{Group: legacy.Groups[i].Name, Version: v})
			}
		}
	default:
		return catalog{}, fmt.Errorf("the server answered with kind %q", legacy.Kind)
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
			Resource string   `json:"resource"`
			Listable listable `json:"verbs"`
		} `json:"resources"`
	} `json:"versions"`
}

// listable says whether verbs include list.
type listable bool

// UnmarshalJSON looks into an array of verbs.
func (l *listable) UnmarshalJSON(verbs []byte) error {
	*l = listable(bytes.Contains(verbs, []byte(`"list"`)))
	return nil
}

func (c *catalog) addGroup(group groupDiscovery) {
	for _, v := range group.Versions {
		gv := schema.GroupVersion{Group: group.Metadata.Name, Version: v.Version}
		c.versions = append(c.versions, gv)
		if v.Freshness == apidiscoveryv2.DiscoveryFreshnessStale {
			continue
		}
		resources := []string{}
		for _, r := range v.Resources {
			if r.Listable {
				resources = append(resources, r.Resource)
			}
		}
		slices.Sort(resources)
		c.listable[gv] = resources
	}
}

// only returns the part with the group versions that pass.
func (c catalog) only(pass func(schema.GroupVersion) bool) catalog {
	out := newCatalog()
	for _, gv := range c.versions {
		if !pass(gv) {
			continue
		}
		out.versions = append(out.versions, gv)
		if resources, told := c.listable[gv]; told {
			out.listable[gv] = resources
		}
	}
	return out
}

func (c catalog) equal(other catalog) bool {
	return slices.Equal(c.versions, other.versions) && maps.EqualFunc(c.listable, other.listable, slices.Equal)
}

// mayStore says whether the group version may have a resource that is stored.
func (c catalog) mayStore(gv schema.GroupVersion) bool {
	resources, told := c.listable[gv]
	return !told || len(resources) > 0
}
