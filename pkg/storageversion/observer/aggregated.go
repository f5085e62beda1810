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
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// aggregatedBackoff is between attempts to read documents of aggregated servers.
var aggregatedBackoff = wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: time.Minute, Jitter: 0.1}

// aggregatedReader knows who serves each group version, and tells the Ledger what aggregated servers say in their
// discovery documents.
type aggregatedReader struct {
	*facts
	apiServices    *source
	host           documents.Reader // the aggregator
	wake           signal
	serversChanged signal

	// Guarded by facts.mu. builtIn says of each group version that ever had an APIService whether kube-apiserver itself
	// serves it. It keeps those whose APIService is gone, because documents list them for a while.
	builtIn  map[schema.GroupVersion]bool
	versions map[schema.GroupVersion]aggregatedVersion
}

// aggregatedVersion is who serves a group version that the aggregator hands to another server.
type aggregatedVersion struct {
	address      string
	availability string
}

// isBuiltIn says whether kube-apiserver itself serves the group version. It also serves some without an APIService.
func (r *aggregatedReader) isBuiltIn(gv schema.GroupVersion) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	builtIn, known := r.builtIn[gv]
	return builtIn || !known
}

func (r *aggregatedReader) watchAPIServices(ctx context.Context) {
	follow(ctx, r.clock, r.apiServices, func(n news[*documents.APIService]) {
		r.update(func(now time.Time) storageversion.Changes {
			changes := storageversion.Changes{}
			for _, s := range n.set {
				maps.Copy(changes, r.set(now, s))
			}
			for _, name := range n.gone {
				version, group, _ := strings.Cut(name, ".")
				maps.Copy(changes, r.withdraw(now, schema.GroupVersion{Group: group, Version: version}))
			}
			return changes
		})
	}, nil)
}

// set notes who serves a group version. It runs under the lock.
func (r *aggregatedReader) set(now time.Time, s *documents.APIService) storageversion.Changes {
	gv := s.GroupVersion()
	if before, known := r.builtIn[gv]; known && before != s.BuiltIn() {
		r.serversChanged.raise() // The group version may now be built-in, or be so no longer.
	}
	r.builtIn[gv] = s.BuiltIn()
	if s.Spec.Service == nil {
		return r.withdraw(now, gv)
	}
	if version := (aggregatedVersion{s.Address(), s.Availability()}); version != r.versions[gv] {
		r.versions[gv] = version
		r.wake.raise()
	}
	return nil
}

// withdraw notes that the aggregator does not hand the group version to another server any more. It runs under the
// lock.
func (r *aggregatedReader) withdraw(now time.Time, gv schema.GroupVersion) storageversion.Changes {
	if _, known := r.versions[gv]; !known {
		return nil
	}
	delete(r.versions, gv)
	return r.ledger.SetAggregated(now, gv, nil)
}

// run reads all documents until ctx ends: at every poll, whenever somebody raises wake, and again while one of them
// cannot be read.
func (r *aggregatedReader) run(ctx context.Context) {
	for backoff := aggregatedBackoff; ; {
		failing := r.read(ctx)
		until := r.nextPoll()
		if !failing {
			backoff = aggregatedBackoff
		} else if retry := r.clock.Now().Add(backoff.Step()); retry.Before(until) {
			until = retry
		}
		raised, err := r.wake.await(ctx, r.clock, until)
		if err != nil {
			return
		}
		if raised {
			backoff = aggregatedBackoff
		}
	}
}

// read reads all documents, and says whether any could not be read.
func (r *aggregatedReader) read(ctx context.Context) (failing bool) {
	r.mu.Lock()
	versions := maps.Clone(r.versions)
	r.mu.Unlock()

	var failed atomic.Bool
	var readers sync.WaitGroup
	for gv, version := range versions {
		readers.Go(func() {
			if !r.readVersion(ctx, gv, version.address) {
				failed.Store(true)
			}
		})
	}
	readers.Wait()
	if len(versions) > 0 && !failed.Load() {
		r.current(migrationv1alpha1.EvidenceFromAggregatedDiscovery)
	}
	return failed.Load()
}

func (r *aggregatedReader) readVersion(ctx context.Context, gv schema.GroupVersion, address string) (ok bool) {
	list, err := r.host.Resources(ctx, gv)
	if ctx.Err() != nil {
		return false // An interrupted request says nothing about the server.
	}
	document := newAggregatedDocument(address, gv, list, err)
	klog.FromContext(ctx).V(4).Info("Read the discovery document of an aggregated server", "groupVersion", gv,
		"address", address, "resources", len(document.Resources), "failure", document.Failure)
	r.update(func(now time.Time) storageversion.Changes {
		if r.versions[gv].address != address {
			return nil // Another server serves it now. Its APIService has raised wake.
		}
		return r.ledger.SetAggregated(now, gv, document)
	})
	return document.Failure == ""
}

// newAggregatedDocument makes a document of what the aggregator answered. Even "not served" is a failure, because an
// APIService says otherwise.
func newAggregatedDocument(
	address string, gv schema.GroupVersion, list *metav1.APIResourceList, err error,
) *storageversion.AggregatedDocument {
	resources := map[schema.GroupResource]storageversion.Resource{}
	if err == nil {
		err = addResources(resources, gv, list)
	}
	if err != nil {
		return &storageversion.AggregatedDocument{Address: address, Failure: err.Error()}
	}
	return &storageversion.AggregatedDocument{Address: address, Resources: resources}
}
