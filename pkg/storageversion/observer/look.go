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
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/discovery"
	"k8s.io/klog/v2"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// storageVersionsResource is served by servers that take part in the StorageVersion API.
var storageVersionsResource = schema.GroupResource{Group: "internal.apiserver.k8s.io", Resource: "storageversions"}

// answer is what a server said about its built-in resources.
type answer struct {
	serves   []schema.GroupVersion
	document storageversion.Document
}

// readServer asks a server which built-in group versions it serves, and for their documents.
func (p *discoveryPoller) readServer(ctx context.Context, address string, direct bool) answer {
	from, who, err := p.holds.identify(ctx, address, direct)
	var builtIn []schema.GroupVersion
	if err == nil {
		builtIn, err = builtInVersions(ctx, from, p.aggregated.isBuiltIn)
	}
	if err != nil {
		return answer{document: storageversion.Document{Failure: err.Error()}}
	}
	return answer{builtIn, readDocument(ctx, from, who, builtIn, p.aggregated.isBuiltIn)}
}

// readServers asks all servers at once. It returns what they said about their built-in resources.
func (p *discoveryPoller) readServers(
	ctx context.Context,
) (storageversion.Look, map[string][]schema.GroupVersion) {
	p.mu.Lock()
	addresses, direct := p.clients.addresses(p.addresses.ready)
	look := storageversion.Look{
		Living: p.ledger.Living(), Advertised: p.leases.advertised, Direct: direct,
		Documents: map[string]storageversion.Document{},
	}
	p.mu.Unlock()
	if p.planMeeting(&look, addresses) {
		if served, told := p.readProcesses(ctx, &look, addresses); told {
			return look, served
		}
	}
	return look, collect(ctx, &look, addresses, func(address string) (answer, bool) {
		return p.readServer(ctx, address, look.Direct), true
	})
}

// planMeeting notes whether servers share addresses, and from when on they are to be met there. It reports whether that
// time has come. Where Leases do not say that servers share addresses, it comes when the addresses of servers that
// started should be there.
func (p *discoveryPoller) planMeeting(look *storageversion.Look, addresses []string) bool {
	shares, certain := look.SharesAddresses(addresses)
	now := p.clock.Now()
	if look.Shared = shares; !shares {
		p.shortSince = time.Time{}
		return false
	}
	if p.shortSince.IsZero() {
		p.shortSince = now
	}
	p.meetFrom = p.shortSince.Add(addressDelay)
	if certain || !now.Before(p.meetFrom) {
		p.meetFrom = now
		return true
	}
	look.Unmet = fmt.Sprintf("the API servers answer only at %s. If no other address appears within %s, the manager "+
		"looks for several servers behind each address", strings.Join(addresses, ", "), addressDelay)
	return false
}

// readProcesses asks each process that it meets behind addresses which servers share. It reports false if it cannot
// tell processes apart. What a process writes never changes, so its documents are not read again while it lives.
func (p *discoveryPoller) readProcesses(
	ctx context.Context, look *storageversion.Look, addresses []string,
) (map[string][]schema.GroupVersion, bool) {
	m := p.clients.meet(ctx, addresses, look.Direct, len(look.Living))
	defer m.close()
	if look.Unmet = m.unmet(); len(m.met) == 0 {
		return nil, false
	}
	processes := map[string]string{}
	for started := range m.met {
		processes[m.name(started)] = started
	}
	for address, err := range m.lost() {
		look.Documents[address] = storageversion.Document{Failure: err.Error()}
	}
	var mu sync.Mutex
	return collect(ctx, look, slices.Collect(maps.Keys(processes)), func(name string) (answer, bool) {
		started, times := processes[name], manyTimes
		one := m.met[started]
		var now answer
		var err error
		now.serves, err = builtInVersions(ctx, one.reader, p.aggregated.isBuiltIn)
		before, known := p.last.Documents[name]
		switch {
		case err != nil:
			now.document.Failure = err.Error()
		case known && p.last.Shared && slices.Equal(p.served[name], now.serves) && before.Failure == "" &&
			len(before.FailedGroups) == 0:
			now.document, times = before, 1
		default:
			var who process
			who, err = identifyMet(ctx, one, started)
			if err == nil {
				now.document = readDocument(ctx, one.reader, who, now.serves, p.aggregated.isBuiltIn)
			} else {
				now.document.Failure = err.Error()
			}
		}
		err = m.confirm(ctx, started, times)
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			if now.document.Held && p.holds.of(name) == nil {
				m.leaveOpen(one)
				who := process{version: now.document.Version, started: now.document.Started, held: true}
				p.holds.keep(ctx, name, &hold{connection: one, process: who})
			}
			return now, true
		}
		look.Unmet = m.whyUnconfirmed(err)
		return now, false
	}), true
}

// identifyMet asks a process that was met behind a shared address who it is.
func identifyMet(ctx context.Context, one *connection, started string) (who process, err error) {
	if who.version, err = one.reader.ServerVersion(ctx); err == nil {
		who.held = storageversion.MayOutliveProcess(who.version)
		who.started, err = time.Parse(time.RFC3339Nano, started)
	}
	return who, err
}

// collect asks several servers at once, and puts those documents into the look that count. It returns
// the group versions that each serves.
func collect(
	ctx context.Context, look *storageversion.Look, names []string, ask func(name string) (answer, bool),
) map[string][]schema.GroupVersion {
	served := map[string][]schema.GroupVersion{}
	var mu sync.Mutex
	var readers sync.WaitGroup
	for _, name := range names {
		readers.Go(func() {
			said, counts := ask(name)
			klog.FromContext(ctx).V(4).Info("Read the discovery documents of an API server", "address", name,
				"direct", look.Direct, "resources", len(said.document.Resources), "failure", said.document.Failure,
				"failedGroups", said.document.FailedGroups, "counts", counts)
			mu.Lock()
			defer mu.Unlock()
			if counts {
				served[name], look.Documents[name] = said.serves, said.document
			}
		})
	}
	readers.Wait()
	return served
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
		if err := from.Decode(ctx, path, discovery.AcceptV2NoPeer, "APIGroupDiscoveryList", &list); err != nil {
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

// readDocument asks a server for the documents of group versions. It leaves out those that have turned out to be custom
// or aggregated when the server has answered.
func readDocument(
	ctx context.Context, from documents.Reader, who process, served []schema.GroupVersion,
	isBuiltIn func(schema.GroupVersion) bool,
) storageversion.Document {
	document := storageversion.Document{
		Version: who.version, Started: who.started, Held: who.held,
		Resources:    map[schema.GroupResource]storageversion.Resource{},
		FailedGroups: map[string]string{},
	}
	for _, gv := range served {
		list, err := from.Resources(ctx, gv)
		if documents.NotServed(err) || !isBuiltIn(gv) {
			continue // It is gone since the server listed it, or it is not built-in.
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
