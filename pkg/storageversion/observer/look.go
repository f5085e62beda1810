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
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/discovery"
	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// storageVersionsResource is served by servers that take part in the StorageVersion API.
var storageVersionsResource = schema.GroupResource{Group: "internal.apiserver.k8s.io", Resource: "storageversions"}

// readServer asks a server which built-in group versions it serves, and for their documents.
func (p *discoveryPoller) readServer(ctx context.Context, address string) storageversion.Document {
	from, document, err := p.kept.identify(ctx, address, p.direct)
	if err == nil {
		document.Serves, err = builtInVersions(ctx, from, p.aggregated.isBuiltIn)
	}
	if err == nil {
		err = readResources(ctx, from, &document, p.aggregated.isBuiltIn)
	}
	if err != nil {
		return storageversion.Document{Failure: err.Error()}
	}
	return document
}

// readServers asks all servers at once what they say about their built-in resources. meets says that it has tried to
// meet all of those that share addresses.
func (p *discoveryPoller) readServers(ctx context.Context) (look storageversion.Look, meets bool) {
	p.mu.Lock()
	var addresses []string
	addresses, p.direct = p.clients.addresses(p.ready)
	look = storageversion.Look{LivingServers: p.livingServers(), Documents: map[string]storageversion.Document{}}
	p.mu.Unlock()
	if p.direct { // Otherwise no address is known for now.
		p.clients.forgetOthers(addresses)
	}
	meets = p.planMeeting(&look, addresses)
	if !meets || !p.readProcesses(ctx, &look, addresses) {
		collect(ctx, &look, addresses, func(address string) (storageversion.Document, error) {
			document := p.readServer(ctx, address)
			document.Connected = document.Connected && !look.Shared // The next look may reach another process there.
			return document, nil
		})
	}
	return look, meets
}

// planMeeting finds out whether servers share addresses, and reports whether to meet them there now. Where Leases do
// not say that they share, it waits until the addresses of servers that started should be there.
func (p *discoveryPoller) planMeeting(look *storageversion.Look, addresses []string) bool {
	shares, certain := look.SharesAddresses(addresses)
	if look.Shared = shares; !shares {
		p.shortSince = time.Time{}
		return false
	}
	now := p.clock.Now()
	p.shortSince = cmp.Or(p.shortSince, now)
	sure := p.shortSince.Add(addressDelay)
	if certain || !now.Before(sure) {
		return true
	}
	p.meetFrom = sure
	look.WhyUnmet = fmt.Sprintf("the API servers answer only at %s. If no other address appears within %s, the manager "+
		"looks for several servers behind each address", strings.Join(addresses, ", "), addressDelay)
	return false
}

// readProcesses asks each process that it meets behind addresses which servers share. It reports false if it cannot
// tell processes apart.
func (p *discoveryPoller) readProcesses(
	ctx context.Context, look *storageversion.Look, addresses []string,
) (distinguished bool) {
	m := p.clients.meet(ctx, addresses, p.direct, len(look.Living))
	defer m.close()
	if look.WhyUnmet = m.whyUnmet(); len(m.met) == 0 {
		return false
	}
	for address, err := range m.unanswered() {
		look.Documents[address] = storageversion.Document{Failure: err.Error()}
	}
	names := slices.Sorted(maps.Keys(m.met))
	unconfirmed := collect(ctx, look, names, func(name string) (storageversion.Document, error) {
		one := m.met[name]
		document, times := p.readProcess(ctx, one, name)
		return document, one.confirm(ctx, times)
	})
	look.WhyUnmet = cmp.Or(m.whyUnconfirmed(unconfirmed), look.WhyUnmet)
	for name, one := range m.met {
		if document := look.Documents[name]; document.Connected && p.kept.find(name) == nil {
			m.leaveOpen(one)
			one.who.Version, one.who.Connected = document.Version, true
			p.kept.keep(ctx, name, one)
		}
	}
	return true
}

// readProcess asks a process that was met behind a shared address, and returns how often it has to confirm its start.
// What a process writes never changes, so its documents are not read again while it lives.
func (p *discoveryPoller) readProcess(
	ctx context.Context, one *connection, name string,
) (document storageversion.Document, times int) {
	serves, err := builtInVersions(ctx, one.reader, p.aggregated.isBuiltIn)
	before, known := p.last.Documents[name]
	if err == nil && known && p.last.Shared && before.Failure == "" && slices.Equal(before.Serves, serves) {
		return before, 1
	}
	document.Serves, document.Started = serves, one.who.Started
	if err == nil {
		document.Version, err = one.reader.ServerVersion(ctx)
	}
	if err == nil {
		document.Connected = storageversion.LeaseMayOutliveProcess(document.Version)
		err = readResources(ctx, one.reader, &document, p.aggregated.isBuiltIn)
	}
	if err != nil {
		document = storageversion.Document{Failure: err.Error()}
	}
	return document, manyTimes
}

// collect asks several servers at once, and puts their documents into the look. If a document does not count, ask
// returns why not. collect returns these errors in the order of the names.
func collect(
	ctx context.Context, look *storageversion.Look, names []string,
	ask func(name string) (storageversion.Document, error),
) []error {
	found, errs := make([]storageversion.Document, len(names)), make([]error, len(names))
	var readers sync.WaitGroup
	for i, name := range names {
		readers.Go(func() {
			found[i], errs[i] = ask(name)
			klog.FromContext(ctx).V(4).Info("Read the discovery documents of an API server", "address", name,
				"resources", len(found[i].Resources), "failure", found[i].Failure, "counts", errs[i] == nil)
		})
	}
	readers.Wait()
	for i, name := range names {
		if errs[i] == nil {
			look.Documents[name] = found[i]
		}
	}
	return errs
}

// builtInVersions asks a server for the built-in group versions that it serves itself. Those of one group come in the
// order of preference.
func builtInVersions(
	ctx context.Context, from documents.Reader, isBuiltIn func(schema.GroupVersion) bool,
) (served []schema.GroupVersion, err error) {
	for _, path := range []string{"/api", "/apis"} {
		// These few fields of an apidiscoveryv2.APIGroupDiscoveryList matter. It has all custom resources as well.
		var list struct {
			metav1.TypeMeta
			Items []struct {
				Metadata struct{ Name string }
				Versions []struct{ Version string }
			}
		}
		// A server that does not know the profile ignores it.
		if err := from.Decode(ctx, path, nil, discovery.AcceptV2NoPeer, "APIGroupDiscoveryList", &list); err != nil {
			return nil, err
		}
		for _, group := range list.Items {
			for _, v := range group.Versions {
				if gv := (schema.GroupVersion{Group: group.Metadata.Name, Version: v.Version}); isBuiltIn(gv) {
					served = append(served, gv)
				}
			}
		}
	}
	return served, nil
}

// readResources asks a server for the documents of the group versions that it serves. It leaves out those that have
// turned out to be custom or aggregated when the server has answered. Every server stores something, so it counts as
// unread if its documents have no storage version hash.
func readResources(
	ctx context.Context, from documents.Reader, document *storageversion.Document,
	isBuiltIn func(schema.GroupVersion) bool,
) error {
	document.Resources = map[schema.GroupResource]storageversion.Resource{}
	for _, gv := range document.Serves {
		list, err := from.Resources(ctx, gv)
		if documents.IsNotServed(err) || !isBuiltIn(gv) {
			continue // It is gone since the server listed it, or it is not built-in.
		}
		if err != nil {
			return err
		}
		list.APIResources = slices.DeleteFunc(list.APIResources, func(r metav1.APIResource) bool {
			return r.StorageVersionHash == "" // It is not stored.
		})
		if err := addResources(document.Resources, gv, list); err != nil {
			return err
		}
	}
	document.ServesStorageVersions = slices.Contains(document.Resources[storageVersionsResource].Versions,
		apiserverinternalv1alpha1.SchemeGroupVersion.Version) // The one that is watched.
	if len(document.Resources) == 0 {
		return errNoHashes
	}
	return nil
}

// errNoHashes says that a server does not tell what it writes.
var errNoHashes = errors.New("its discovery documents have no storage version hashes. Switch the feature gate " +
	"StorageVersionHash of the API server on, if it is off")

// maxHashLength is how long a hash in a StorageState may be. Those of kube-apiserver have 12 characters.
const maxHashLength = 64

// addResources adds the resources of a group version. Group versions come in the order of preference.
func addResources(
	resources map[schema.GroupResource]storageversion.Resource, gv schema.GroupVersion, list *metav1.APIResourceList,
) error {
	for _, r := range list.APIResources {
		if len(validation.IsDNS1123Label(r.Name)) > 0 {
			continue // It is a subresource, or an aggregated server calls it what no StorageState can be called.
		}
		resource := schema.GroupResource{Group: gv.Group, Resource: r.Name}
		known, before := resources[resource]
		hash := r.StorageVersionHash
		if len(hash) > maxHashLength {
			hash = storageversion.Unknown
		}
		if !before {
			known = storageversion.Resource{Kind: r.Kind, Hash: hash}
		}
		if known.Hash != hash {
			return fmt.Errorf("%s has another encoding of %s than the version before: a restarted server has answered in "+
				"between", gv, r.Name)
		}
		known.Versions = append(known.Versions, gv.Version)
		verbs := sets.New(r.Verbs...)
		known.Migratable = known.Migratable || verbs.Has("list") && verbs.HasAny("update", "patch")
		resources[resource] = known
	}
	return nil
}
