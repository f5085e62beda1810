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
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// storageVersionsResource is served by servers that take part in the StorageVersion API.
var storageVersionsResource = schema.GroupResource{Group: "internal.apiserver.k8s.io", Resource: "storageversions"}

// catalog is what a server says that it serves, without how that is encoded.
type catalog struct {
	// versions are the group versions, those of a group in the order of the server's preference.
	versions []schema.GroupVersion
	// listable are, by group version, the resources that can be listed, in order. A group version is missing where the
	// server did not tell; one that is there without resources has nothing that is stored.
	listable map[schema.GroupVersion][]string
}

// parseCatalog reads the answer to a request for /api or /apis: aggregated discovery, or the older list of group
// versions where the server knows no better.
func parseCatalog(contentType string, body []byte) (catalog, error) {
	c := catalog{listable: map[schema.GroupVersion][]string{}}
	if isAggregated(contentType) {
		var list struct {
			Items []groupDiscovery `json:"items"`
		}
		if err := json.Unmarshal(body, &list); err != nil {
			return catalog{}, fmt.Errorf("decoding aggregated discovery: %w", err)
		}
		for _, group := range list.Items {
			c.addGroup(group)
		}
		return c, nil
	}
	var legacy struct {
		metav1.TypeMeta
		Versions []string          `json:"versions"`
		Groups   []metav1.APIGroup `json:"groups"`
	}
	if err := json.Unmarshal(body, &legacy); err != nil {
		return catalog{}, fmt.Errorf("decoding discovery: %w", err)
	}
	switch legacy.Kind {
	case "APIVersions":
		for _, v := range legacy.Versions {
			c.versions = append(c.versions, schema.GroupVersion{Version: v})
		}
	case "APIGroupList":
		for i := range legacy.Groups {
			c.addLegacyGroup(&legacy.Groups[i])
		}
	default:
		return catalog{}, fmt.Errorf("decoding discovery: the server answered with kind %q", legacy.Kind)
	}
	return c, nil
}

func isAggregated(contentType string) bool {
	gvk := apidiscoveryv2.SchemeGroupVersion.WithKind("APIGroupDiscoveryList")
	matches, err := discovery.ContentTypeIsGVK(contentType, gvk)
	return matches && err == nil
}

// groupDiscovery is what matters of apidiscoveryv2.APIGroupDiscovery. The document has all custom resources, too.
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

// listable says whether verbs have that of lists.
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

func (c *catalog) addLegacyGroup(group *metav1.APIGroup) {
	add := func(v string) {
		gv := schema.GroupVersion{Group: group.Name, Version: v}
		if v != "" && !slices.Contains(c.versions, gv) {
			c.versions = append(c.versions, gv)
		}
	}
	add(group.PreferredVersion.Version)
	for _, v := range group.Versions {
		add(v.Version)
	}
}

// merge returns the catalog of both.
func (c catalog) merge(other catalog) catalog {
	merged := catalog{versions: slices.Concat(c.versions, other.versions), listable: maps.Clone(c.listable)}
	maps.Copy(merged.listable, other.listable)
	return merged
}

// only returns the part with the group versions that pass.
func (c catalog) only(pass func(schema.GroupVersion) bool) catalog {
	out := catalog{listable: map[schema.GroupVersion][]string{}}
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

// stores says whether the group version may have a resource that is stored.
func (c catalog) stores(gv schema.GroupVersion) bool {
	resources, told := c.listable[gv]
	return !told || len(resources) > 0
}

// answer is what came of asking a server for the document of one group version.
type answer struct {
	list *metav1.APIResourceList
	err  error
}

// newDocument makes one of what a server answered. Group versions that it was not asked for are left out.
func newDocument(c catalog, answers map[schema.GroupVersion]answer) storageversion.Document {
	document := storageversion.Document{
		Resources:    map[schema.GroupResource]storageversion.Resource{},
		FailedGroups: map[string]string{},
	}
	for _, gv := range c.versions {
		if slices.Contains(c.listable[gv], storageVersionsResource.Resource) && gv.Group == storageVersionsResource.Group {
			document.ServesStorageVersions = true
		}
		a, asked := answers[gv]
		switch {
		case !asked:
		case apierrors.IsNotFound(a.err):
			// The older list of group versions has those that only a peer serves, too.
		case a.err != nil:
			document.FailedGroups[gv.Group] = fmt.Sprintf("%s: %v", gv.Version, a.err)
		default:
			if err := addResources(document.Resources, gv, a.list); err != nil {
				document.FailedGroups[gv.Group] = fmt.Sprintf("%s: %v", gv.Version, err)
			}
		}
	}
	if _, serves := document.Resources[storageVersionsResource]; serves {
		document.ServesStorageVersions = true
	}
	return document
}

// addResources adds the resources of a group version that are stored. Group versions come in the order of preference.
func addResources(resources map[schema.GroupResource]storageversion.Resource, gv schema.GroupVersion, list *metav1.APIResourceList) error {
	var contradicting []string
	for _, r := range list.APIResources {
		if r.StorageVersionHash == "" || strings.Contains(r.Name, "/") {
			continue
		}
		resource := schema.GroupResource{Group: gv.Group, Resource: r.Name}
		known, before := resources[resource]
		if !before {
			known = storageversion.Resource{Kind: r.Kind, Hash: r.StorageVersionHash}
		}
		if known.Hash != r.StorageVersionHash {
			// Answers of two processes, one of which took the other's place.
			contradicting = append(contradicting, r.Name)
		}
		known.Versions = append(known.Versions, gv.Version)
		verbs := sets.New(r.Verbs...)
		known.Migratable = known.Migratable || verbs.Has("list") && verbs.HasAny("update", "patch")
		resources[resource] = known
	}
	if len(contradicting) > 0 {
		slices.Sort(contradicting)
		return fmt.Errorf("another encoding of %s than in the version before", strings.Join(contradicting, ", "))
	}
	return nil
}

// newAggregatedDocument makes one of what the aggregator answered.
func newAggregatedDocument(address string, gv schema.GroupVersion, a answer) *storageversion.AggregatedDocument {
	document := &storageversion.AggregatedDocument{Address: address, Resources: map[schema.GroupResource]storageversion.Resource{}}
	err := a.err
	if err == nil {
		err = addResources(document.Resources, gv, a.list)
	}
	if err != nil {
		document.Failure, document.Resources = err.Error(), nil
	}
	return document
}
