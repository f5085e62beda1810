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
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// requestTimeout bounds every request for a document.
const requestTimeout = 5 * time.Second

// catalog asks for what a server itself serves.
func (r reader) catalog(ctx context.Context) (catalog, error) {
	// A server that does not know the profile ignores it; one that does not know aggregated discovery answers as ever.
	const accept = discovery.AcceptV2NoPeer + "," + discovery.AcceptV1
	all := catalog{listable: map[schema.GroupVersion][]string{}}
	for _, path := range []string{"/api", "/apis"} {
		body, contentType, err := r.get(ctx, path, accept)
		if err != nil {
			return catalog{}, fmt.Errorf("getting %s: %w", path, err)
		}
		part, err := parseCatalog(contentType, body)
		if err != nil {
			return catalog{}, fmt.Errorf("getting %s: %w", path, err)
		}
		all = all.merge(part)
	}
	return all, nil
}

// groupVersion asks for the document of one group version. It is the older kind, for the aggregated one has no hashes.
func (r reader) groupVersion(ctx context.Context, gv schema.GroupVersion) answer {
	path := "/apis/" + gv.String()
	if gv.Group == "" {
		path = "/api/" + gv.Version
	}
	body, _, err := r.get(ctx, path, discovery.AcceptV1)
	if err != nil {
		return answer{err: err}
	}
	list := &metav1.APIResourceList{}
	if err := json.Unmarshal(body, list); err != nil {
		return answer{err: fmt.Errorf("decoding %s: %w", path, err)}
	}
	if list.Kind != "APIResourceList" {
		return answer{err: fmt.Errorf("getting %s: the server answered with kind %q", path, list.Kind)}
	}
	return answer{list: list}
}

// reading is all that one server answered about built-in group versions.
type reading struct {
	catalog catalog
	answers map[schema.GroupVersion]answer
	err     error
}

// read asks a server for its catalog, and for the documents of all built-in group versions in it.
func (o *Observer) read(ctx context.Context, from reader) reading {
	all, err := from.catalog(ctx)
	if err != nil {
		return reading{err: err}
	}
	got := reading{catalog: all.only(o.isBuiltIn), answers: map[schema.GroupVersion]answer{}}
	for _, gv := range got.catalog.versions {
		if got.catalog.stores(gv) {
			got.answers[gv] = from.groupVersion(ctx, gv)
		}
	}
	return got
}

// document makes one of what a server answered, by what is known now of where group versions come from: it may have been
// asked for one that turned out to be custom.
func (o *Observer) document(got reading) storageversion.Document {
	if got.err != nil {
		return storageversion.Document{Failure: got.err.Error()}
	}
	document := newDocument(got.catalog.only(o.isBuiltIn), got.answers)
	o.mu.Lock()
	defer o.mu.Unlock()
	for resource := range o.definitions {
		delete(document.Resources, resource)
	}
	return document
}

func (o *Observer) isBuiltIn(gv schema.GroupVersion) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.origins[gv] == builtIn
}

// places are where servers can be asked.
type places struct {
	// readers are by address.
	readers map[string]reader
	// direct says that these are the servers' own addresses.
	direct bool
	// servers are the processes that lived when this was made.
	servers []storageversion.Server
	// failures are addresses that cannot be made a client for, which are no addresses.
	failures map[string]error
}

func (o *Observer) places() places {
	o.mu.Lock()
	addresses := o.addresses
	p := places{readers: map[string]reader{}, failures: map[string]error{}, servers: o.living}
	o.mu.Unlock()
	if len(addresses) == 0 {
		p.readers[o.clients.hostAddress] = o.clients.host
		return p
	}
	p.direct = true
	for _, address := range addresses {
		r, err := o.clients.at(address)
		if err != nil {
			p.failures[address] = err
			continue
		}
		p.readers[address] = r
	}
	return p
}

// readAll asks all servers at once.
func (o *Observer) readAll(ctx context.Context, at places) map[string]reading {
	all := map[string]reading{}
	for address, err := range at.failures {
		all[address] = reading{err: err}
	}
	var mu sync.Mutex
	var readers sync.WaitGroup
	for address, from := range at.readers {
		readers.Go(func() {
			got := o.read(ctx, from)
			mu.Lock()
			defer mu.Unlock()
			all[address] = got
		})
	}
	readers.Wait()
	return all
}
