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
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// aggregatedBackoff is between readings of documents of aggregated servers that failed.
var aggregatedBackoff = wait.Backoff{Duration: time.Second, Factor: 2, Steps: 10, Cap: time.Minute, Jitter: 0.1}

// aggregatedVersion is a group version that the aggregator hands to another server.
type aggregatedVersion struct {
	address      string
	availability string
	// due says that the document is to be read, failing that it could not be.
	due, failing bool
}

func (o *Observer) watchAPIServices(ctx context.Context) {
	from := source{client: o.clients.apiServices, resource: "apiservices"}
	follow(ctx, o.clock, from, handlers[*apiService]{
		replace: func(all []*apiService) {
			o.update(func(now time.Time) storageversion.Changes {
				present := map[schema.GroupVersion]bool{}
				changes := storageversion.Changes{}
				for _, s := range all {
					present[s.groupVersion()] = true
					maps.Copy(changes, o.setAPIService(now, s))
				}
				for gv := range o.aggregated {
					if !present[gv] {
						maps.Copy(changes, o.withdraw(now, gv))
					}
				}
				o.done(apiServicesListed)
				return changes
			})
		},
		set: func(s *apiService) {
			o.update(func(now time.Time) storageversion.Changes { return o.setAPIService(now, s) })
		},
		delete: func(s *apiService) {
			o.update(func(now time.Time) storageversion.Changes { return o.withdraw(now, s.groupVersion()) })
		},
	})
}

// setAPIService notes where a group version comes from. Callers hold the lock.
func (o *Observer) setAPIService(now time.Time, s *apiService) storageversion.Changes {
	gv, from := s.groupVersion(), s.origin()
	if before, known := o.origins[gv]; known && before != from {
		o.lookNow.raise() // It may have become built-in, or ceased to be.
	}
	o.origins[gv] = from
	if from != aggregated {
		return o.withdraw(now, gv)
	}
	version, known := o.aggregated[gv]
	if !known {
		version = &aggregatedVersion{}
		o.aggregated[gv] = version
	}
	if version.address != s.address() || version.availability != s.availability() {
		version.address, version.availability, version.due = s.address(), s.availability(), true
		o.readAggregatedNow.raise()
	}
	return nil
}

// withdraw notes that the aggregator hands the group version to no other server, if it did. Callers hold the lock.
func (o *Observer) withdraw(now time.Time, gv schema.GroupVersion) storageversion.Changes {
	if _, known := o.aggregated[gv]; !known {
		return nil
	}
	delete(o.aggregated, gv)
	return o.ledger.SetAggregated(now, gv, nil)
}

// ReadAggregated has the documents of all aggregated servers read soon. It is for those who saw that one of them has changed.
func (o *Observer) ReadAggregated() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, version := range o.aggregated {
		version.due = true
	}
	o.readAggregatedNow.raise()
}

// keepReadingAggregated reads the documents of aggregated servers until ctx ends.
func (o *Observer) keepReadingAggregated(ctx context.Context) {
	backoff := aggregatedBackoff
	nextPoll := o.nextPoll()
	for {
		next := nextPoll
		if o.readAggregated(ctx) {
			if retry := o.clock.Now().Add(backoff.Step()); retry.Before(next) {
				next = retry
			}
		} else {
			backoff = aggregatedBackoff
		}
		timer := o.clock.NewTimer(next.Sub(o.clock.Now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C():
		case <-o.readAggregatedNow:
			timer.Stop()
			backoff = aggregatedBackoff
			if !pause(ctx, o.clock, burst) {
				return
			}
		}
		if !o.clock.Now().Before(nextPoll) {
			nextPoll = o.nextPoll()
			o.ReadAggregated()
		}
	}
}

// readAggregated reads all documents that are due, and says whether some could not be read.
func (o *Observer) readAggregated(ctx context.Context) (failing bool) {
	o.mu.Lock()
	due := map[schema.GroupVersion]string{}
	for gv, version := range o.aggregated {
		if version.due || version.failing {
			due[gv] = version.address
			version.due = false
		}
	}
	o.mu.Unlock()

	var readers sync.WaitGroup
	for gv, address := range due {
		readers.Go(func() { o.readAggregatedVersion(ctx, gv, address) })
	}
	readers.Wait()

	o.mu.Lock()
	defer o.mu.Unlock()
	for _, version := range o.aggregated {
		failing = failing || version.failing
	}
	if len(due) > 0 && !failing {
		o.heard(migrationv1alpha1.EvidenceFromAggregatedDiscovery, o.clock.Now())
	}
	return failing
}

func (o *Observer) readAggregatedVersion(ctx context.Context, gv schema.GroupVersion, address string) {
	document := newAggregatedDocument(address, gv, o.clients.host.groupVersion(ctx, gv))
	if ctx.Err() != nil {
		return // What was interrupted says nothing about the server.
	}
	klog.FromContext(ctx).V(4).Info("Read the discovery document of an aggregated server", "groupVersion", gv, "address", address,
		"resources", len(document.Resources), "failure", document.Failure)
	o.update(func(now time.Time) storageversion.Changes {
		version, still := o.aggregated[gv]
		if !still || version.address != address {
			return nil // It was handed to another server while this one answered.
		}
		version.failing = document.Failure != ""
		return o.ledger.SetAggregated(now, gv, document)
	})
}
