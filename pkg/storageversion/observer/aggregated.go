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
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/retry"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// aggregatedBackoff is between attempts to read documents of aggregated servers.
var aggregatedBackoff = wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: time.Minute, Jitter: 0.1}

// maxAggregated bounds what one document adds to etcd and to the caches: each resource gets a StorageState and a
// migration.
const maxAggregated = 1000

// aggregatedReader knows who serves each group version, and gives the Ledger what aggregated servers say in their
// discovery documents.
type aggregatedReader struct {
	*sharedLedger
	apiServices *watchedList
	host        documents.Reader // the aggregator
	objects     documents.Reader // reads EndpointSlices and Pods
	wake        signal

	// services are those of all group versions that ever had an APIService, because documents list a group version for a
	// while when its APIService is gone. Guarded by sharedLedger.mu.
	services map[schema.GroupVersion]service
	// begun numbers reads of documents in the order in which they began. latest is the number of the latest one that the
	// Ledger knows of. The poll and a migration may read at the same time. Guarded by sharedLedger.mu.
	begun  int
	latest map[schema.GroupVersion]int
}

// service is who serves a group version.
type service struct {
	builtIn      bool   // kube-apiserver itself
	address      string // of an aggregated server, otherwise empty
	name         types.NamespacedName
	availability string
}

// isBuiltIn says whether kube-apiserver itself serves the group version. It also serves some without an APIService.
func (r *aggregatedReader) isBuiltIn(gv schema.GroupVersion) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, known := r.services[gv]
	return s.builtIn || !known
}

func (r *aggregatedReader) watchAPIServices(ctx context.Context) {
	followWithHealth(ctx, r.healthOf(storageversion.Aggregated), r.apiServices, func(d delta[*documents.APIService]) {
		r.update(func(now time.Time) storageversion.Changes {
			changes := storageversion.Changes{}
			for _, s := range d.set {
				by := service{s.BuiltIn(), s.Address(), s.ServiceName(), s.Availability()}
				maps.Copy(changes, r.set(now, s.GroupVersion(), by))
			}
			for _, name := range d.gone {
				version, group, _ := strings.Cut(name, ".")
				gv := schema.GroupVersion{Group: group, Version: version}
				maps.Copy(changes, r.set(now, gv, service{builtIn: r.services[gv].builtIn}))
			}
			return changes
		})
	})
}

// set notes who serves a group version. It runs under the lock.
func (r *aggregatedReader) set(now time.Time, gv schema.GroupVersion, after service) storageversion.Changes {
	before, known := r.services[gv]
	r.services[gv] = after
	if known && before.builtIn != after.builtIn {
		r.serversChanged.raise()
	}
	if after.address != "" && after != before {
		r.wake.raise()
	}
	switch {
	case after.address == before.address:
		return nil
	case after.address == "":
		return r.ledger.SetAggregated(now, gv, nil)
	default: // Until its document is read, nobody knows what the server serves.
		return r.ledger.SetAggregated(now, gv,
			&storageversion.AggregatedDocument{Address: after.address, Failure: "nobody has asked for it yet"})
	}
}

func (r *aggregatedReader) run(ctx context.Context) {
	var failures retry.Streak
	r.keepReading(ctx, r.wake, aggregatedBackoff, func(ctx context.Context, _ cause) (missing bool, due time.Time) {
		err := r.read(ctx)
		if err != nil {
			failed := ""
			for _, line := range strings.Split(err.Error(), "\n") { // Each begins with who failed.
				name, _, _ := strings.Cut(line, ": ")
				failed += name + ", "
			}
			failures.Failed(ctx, failed, "Cannot read what aggregated API servers write, will retry", "err", err)
		} else {
			failures.Succeeded(ctx, "Can read again what aggregated API servers write")
		}
		return err != nil, time.Time{}
	})
}

// read reads all documents.
func (r *aggregatedReader) read(ctx context.Context) error {
	found, err := r.readGroups(ctx, func(string) bool { return true })
	switch {
	case !found:
		r.forgetSource(migrationv1alpha1.EvidenceFromAggregatedDiscovery)
	case err == nil:
		r.noteRead(migrationv1alpha1.EvidenceFromAggregatedDiscovery)
	}
	return err
}

// readGroups reads the documents of the wanted groups. found means that aggregated servers serve any of them.
func (r *aggregatedReader) readGroups(ctx context.Context, wanted func(group string) bool) (found bool, err error) {
	r.mu.Lock()
	services := maps.Clone(r.services)
	r.mu.Unlock()
	asks := map[string]func() error{}
	for gv, s := range services {
		if s.address != "" && wanted(gv.Group) {
			asks[gv.String()] = func() error { return r.readVersion(ctx, gv, s) }
		}
	}
	return len(asks) > 0, askAll("the aggregated server of", asks)
}

// readVersion reads the document of a group version. Even "not served" is a failure, because an APIService says
// otherwise.
func (r *aggregatedReader) readVersion(ctx context.Context, gv schema.GroupVersion, of service) error {
	address := of.address
	document := &storageversion.AggregatedDocument{
		Address: address, Resources: map[schema.GroupResource]storageversion.Resource{},
	}
	r.mu.Lock()
	r.begun++
	number := r.begun
	r.mu.Unlock()
	list, err := r.host.Resources(ctx, gv)
	if ctx.Err() != nil {
		return ctx.Err() // An interrupted request says nothing about the server.
	}
	if err == nil {
		err = addResources(document.Resources, gv, list)
	}
	if n := len(document.Resources); err == nil && n > maxAggregated {
		err = fmt.Errorf("it has %d resources, and this manager follows at most %d of a group version", n, maxAggregated)
	}
	var unknown error
	document.WhyReplicasDiffer, unknown = whyReplicasDiffer(ctx, r.objects, of.name)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err == nil && unknown != nil && !apierrors.IsForbidden(unknown) {
		err = errors.New(document.WhyReplicasDiffer) // A read that failed shows no rollout. It is repeated.
	}
	if err != nil {
		document.Failure, document.Resources = err.Error(), nil
		if unknown != nil { // Nothing could be read, so nothing tells of other replicas.
			document.WhyReplicasDiffer = ""
		}
	}
	klog.FromContext(ctx).V(4).Info("Read the discovery document of an aggregated server", "groupVersion", gv,
		"address", address, "resources", len(document.Resources), "failure", document.Failure,
		"replicasDiffer", document.WhyReplicasDiffer)
	r.update(func(now time.Time) storageversion.Changes {
		if r.services[gv].address != address {
			return nil // Another server serves it now. Its APIService has raised wake.
		}
		if number < r.latest[gv] {
			return nil // The Ledger knows already what a later read has shown.
		}
		r.latest[gv] = number
		return r.ledger.SetAggregated(now, gv, document)
	})
	return cmp.Or(err, unknown)
}
