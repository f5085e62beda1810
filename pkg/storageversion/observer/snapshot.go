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

// discoverySnapshot is what all servers said about their built-in resources, by address.
type discoverySnapshot struct {
	serverAddresses
	catalogs  map[string]catalog
	documents map[string]storageversion.Document
}

// serverAddresses is where to ask servers.
type serverAddresses struct {
	addresses []string
	// direct says that these are the servers' own addresses. Otherwise there is only the configured host, behind which
	// any server may answer.
	direct bool
	// processes are those that lived when this was made.
	processes []storageversion.Server
}

// incomplete returns the addresses from which something could not be read.
func (s discoverySnapshot) incomplete() []string {
	var addresses []string
	for address, document := range s.documents {
		if document.Failure != "" || len(document.FailedGroups) > 0 {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// storageVersionsServed says whether all servers serve StorageVersions. If only some do, the objects do not tell
// about all that is written, and a request for them may reach one of the others. It is not known if no server could
// be asked.
func (s discoverySnapshot) storageVersionsServed() (served, known bool) {
	for _, document := range s.documents {
		_, failed := document.FailedGroups[storageVersionsResource.Group]
		switch {
		case document.ServesStorageVersions:
			served, known = true, true
		case document.Failure == "" && !failed:
			return false, true
		}
	}
	return served, known
}

// reader returns a reader of the server at one of the addresses.
func (p *discoveryPoller) reader(at serverAddresses, address string) (documents.Reader, error) {
	if !at.direct {
		return p.clients.host, nil
	}
	return p.clients.at(address)
}

func (p *discoveryPoller) readCatalog(ctx context.Context, at serverAddresses, address string) (catalog, error) {
	from, err := p.reader(at, address)
	if err != nil {
		return catalog{}, err
	}
	return readCatalog(ctx, from)
}

// readServer asks a server for its catalog, and for the documents of all built-in group versions in it.
func (p *discoveryPoller) readServer(
	ctx context.Context, at serverAddresses, address string,
) (catalog, storageversion.Document) {
	from, err := p.reader(at, address)
	if err != nil {
		return catalog{}, storageversion.Document{Failure: err.Error()}
	}
	all, err := readCatalog(ctx, from)
	if err != nil {
		return catalog{}, storageversion.Document{Failure: err.Error()}
	}
	all = all.only(p.aggregated.isBuiltIn)
	document := readDocument(ctx, from, all, p.aggregated.isBuiltIn)
	p.mu.Lock()
	defer p.mu.Unlock()
	for resource := range p.definitions.defined {
		delete(document.Resources, resource)
	}
	return all, document
}

// readServers asks all servers at once.
func (p *discoveryPoller) readServers(ctx context.Context, at serverAddresses) discoverySnapshot {
	s := discoverySnapshot{
		serverAddresses: at, catalogs: map[string]catalog{}, documents: map[string]storageversion.Document{},
	}
	var mu sync.Mutex
	var readers sync.WaitGroup
	for _, address := range at.addresses {
		readers.Go(func() {
			serves, document := p.readServer(ctx, at, address)
			klog.FromContext(ctx).V(4).Info("Read the discovery documents of an API server", "address", address,
				"direct", at.direct, "resources", len(document.Resources), "failure", document.Failure,
				"failedGroups", document.FailedGroups)
			mu.Lock()
			defer mu.Unlock()
			s.catalogs[address], s.documents[address] = serves, document
		})
	}
	readers.Wait()
	return s
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
	for _, gv := range c.versions {
		if !c.mayStore(gv) {
			continue
		}
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
