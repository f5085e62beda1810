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
	"fmt"
	"slices"
	"strings"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// storageVersionsResource is served by servers that take part in the StorageVersion API.
var storageVersionsResource = schema.GroupResource{Group: "internal.apiserver.k8s.io", Resource: "storageversions"}

// readCatalog asks a server for the part of its catalog that is built-in, and returns a reader of the server.
func (p *discoveryPoller) readCatalog(
	ctx context.Context, address string, direct bool,
) (from documents.Reader, builtIn catalog, err error) {
	if from, err = p.clients.reader(address, direct); err == nil {
		builtIn, err = readCatalog(ctx, from)
	}
	return from, builtIn.only(p.aggregated.isBuiltIn), err
}

// readServer asks a server for its catalog, and for the documents of all built-in group versions in it.
func (p *discoveryPoller) readServer(
	ctx context.Context, address string, direct bool,
) (catalog, storageversion.Document) {
	from, builtIn, err := p.readCatalog(ctx, address, direct)
	if err != nil {
		return nil, storageversion.Document{Failure: err.Error()}
	}
	return builtIn, readDocument(ctx, from, builtIn, p.aggregated.isBuiltIn)
}

// readServers asks all servers at once. It returns what they said about their built-in resources.
func (p *discoveryPoller) readServers(ctx context.Context) (storageversion.Look, map[string]catalog) {
	p.mu.Lock()
	look := storageversion.Look{
		Servers: p.ledger.Living(), Advertised: p.leases.advertised, Direct: true,
		Documents: map[string]storageversion.Document{},
	}
	addresses := p.addresses.ready
	p.mu.Unlock()
	if len(addresses) == 0 {
		addresses, look.Direct = []string{p.clients.host.Client.Get().URL().Host}, false
	}

	catalogs := map[string]catalog{}
	var mu sync.Mutex
	var readers sync.WaitGroup
	for _, address := range addresses {
		readers.Go(func() {
			serves, document := p.readServer(ctx, address, look.Direct)
			klog.FromContext(ctx).V(4).Info("Read the discovery documents of an API server", "address", address,
				"direct", look.Direct, "resources", len(document.Resources), "failure", document.Failure,
				"failedGroups", document.FailedGroups)
			mu.Lock()
			defer mu.Unlock()
			catalogs[address], look.Documents[address] = serves, document
		})
	}
	readers.Wait()
	return look, catalogs
}

// readDocument asks a server for all group versions of its catalog. It leaves out those that have turned out to be
// custom or aggregated when the server has answered.
func readDocument(
	ctx context.Context, from documents.Reader, c catalog, isBuiltIn func(schema.GroupVersion) bool,
) storageversion.Document {
	document := storageversion.Document{
		Resources:    map[schema.GroupResource]storageversion.Resource{},
		FailedGroups: map[string]string{},
	}
	for _, served := range c {
		if !served.mayStore {
			continue
		}
		gv := served.GroupVersion
		list, err := from.Resources(ctx, gv)
		if documents.NotServed(err) || !isBuiltIn(gv) {
			continue // The older list of group versions includes those that only a peer serves.
		}
		if err == nil {
			err = addResources(document.Resources, gv, list)
		}
		if err != nil {
			document.FailedGroups[gv.Group] = err.Error()
		}
	}
	_, document.ServesStorageVersions = document.Resources[storageVersionsResource]
	return document
}

// addResources adds the resources of a group version that are stored. Group versions come in the order of preference.
func addResources(
	resources map[schema.GroupResource]storageversion.Resource, gv schema.GroupVersion, list *metav1.APIResourceList,
) error {
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
			contradicting = append(contradicting, r.Name)
		}
		known.Versions = append(known.Versions, gv.Version)
		verbs := sets.New(r.Verbs...)
		known.Migratable = known.Migratable || verbs.Has("list") && verbs.HasAny("update", "patch")
		resources[resource] = known
	}
	if len(contradicting) > 0 {
		slices.Sort(contradicting)
		return fmt.Errorf("%s has another encoding of %s than the version before: a restarted server has answered in between",
			gv, strings.Join(contradicting, ", "))
	}
	return nil
}
