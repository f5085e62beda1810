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
	"time"

	apiserverinternalv1alpha1 "k8s.io/api/apiserverinternal/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// unservedAfter is how many times in a row an API must not be found before it counts as one that is served no longer. A
// server that restarts may lack it for a moment.
const unservedAfter = 3

// watchStorageVersions watches StorageVersions while the servers serve them.
func (o *Observer) watchStorageVersions(ctx context.Context) {
	known := storageVersions{}
	for {
		if watching, cancel := o.storageVersionsContext(ctx); watching != nil {
			o.followStorageVersions(watching, &known)
			cancel()
			if ctx.Err() != nil {
				return
			}
			klog.FromContext(ctx).V(2).Info("StorageVersions are not served anymore")
			o.update(func(now time.Time) storageversion.Changes { return o.ledger.SetStorageVersionsServed(now, false) })
		}
		select {
		case <-ctx.Done():
			return
		case <-o.storageVersionsNow:
		}
	}
}

// storageVersionsContext returns a context for as long as StorageVersions are to be watched, nil if they are not.
func (o *Observer) storageVersionsContext(ctx context.Context) (context.Context, context.CancelFunc) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.storageVersionsWanted {
		return nil, nil
	}
	ctx, o.unwatchStorageVersions = context.WithCancel(ctx)
	return ctx, o.unwatchStorageVersions
}

// wantStorageVersions begins or ends the watch.
func (o *Observer) wantStorageVersions(wanted bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.storageVersionsWanted == wanted {
		return
	}
	o.storageVersionsWanted = wanted
	if !wanted && o.unwatchStorageVersions != nil {
		o.unwatchStorageVersions()
	}
	o.storageVersionsNow.raise()
}

// storageVersions outlives a watch: what is missing when another one begins was deleted meanwhile.
type storageVersions struct {
	names  map[string]struct{}
	listed bool
}

func (o *Observer) followStorageVersions(ctx context.Context, known *storageVersions) {
	notFound := 0
	from := source{client: o.clients.storageVersions, resource: "storageversions"}
	follow(ctx, o.clock, from, handlers[*apiserverinternalv1alpha1.StorageVersion]{
		replace: func(all []*apiserverinternalv1alpha1.StorageVersion) {
			notFound = 0
			o.replaceStorageVersions(all, known)
		},
		set: func(object *apiserverinternalv1alpha1.StorageVersion) {
			known.names[object.Name] = struct{}{}
			o.update(func(now time.Time) storageversion.Changes {
				o.heard(migrationv1alpha1.EvidenceFromStorageVersion, now)
				return o.ledger.SetStorageVersion(now, object.Name, slimStorageVersion(object), true)
			})
		},
		delete: func(object *apiserverinternalv1alpha1.StorageVersion) {
			delete(known.names, object.Name)
			o.update(func(now time.Time) storageversion.Changes {
				o.heard(migrationv1alpha1.EvidenceFromStorageVersion, now)
				return o.ledger.SetStorageVersion(now, object.Name, nil, true)
			})
		},
		upToDate: func() { o.alive(migrationv1alpha1.EvidenceFromStorageVersion) },
		failed: func(err error) {
			if !apierrors.IsNotFound(err) {
				return
			}
			if notFound++; notFound >= unservedAfter {
				o.wantStorageVersions(false)
			}
		},
	})
}

func (o *Observer) replaceStorageVersions(all []*apiserverinternalv1alpha1.StorageVersion, known *storageVersions) {
	gone, unbroken := known.names, !known.listed
	known.names, known.listed = map[string]struct{}{}, true
	o.update(func(now time.Time) storageversion.Changes {
		changes := storageversion.Changes{}
		for _, object := range all {
			known.names[object.Name] = struct{}{}
			delete(gone, object.Name)
			maps.Copy(changes, o.ledger.SetStorageVersion(now, object.Name, slimStorageVersion(object), unbroken))
		}
		for name := range gone {
			maps.Copy(changes, o.ledger.SetStorageVersion(now, name, nil, unbroken))
		}
		o.heard(migrationv1alpha1.EvidenceFromStorageVersion, now)
		maps.Copy(changes, o.ledger.SetStorageVersionsServed(now, true))
		return changes
	})
}

func slimStorageVersion(object *apiserverinternalv1alpha1.StorageVersion) *storageversion.StorageVersion {
	out := &storageversion.StorageVersion{UID: object.UID, ResourceVersion: object.ResourceVersion, Encodings: map[string]string{}}
	for _, entry := range object.Status.StorageVersions {
		out.Encodings[entry.APIServerID] = entry.EncodingVersion
	}
	return out
}
