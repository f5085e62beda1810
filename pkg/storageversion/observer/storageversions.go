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

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// followStorageVersions reports StorageVersions to the Ledger, from when all servers serve them.
func (s *sharedLedger) followStorageVersions(ctx context.Context, from *watchedList) {
	select {
	case <-ctx.Done():
		return
	case <-s.storageVersionsServed:
	}
	// While they cannot be read, the documents of the servers tell what is written.
	health := &watchHealth{sharedLedger: s}
	health.report = func(now time.Time, failing storageversion.Unreadable) storageversion.Changes {
		return s.ledger.SetStorageVersionsWatched(now, failing.Failure == "")
	}
	follow(ctx, from, func(d delta[*apiserverinternalv1alpha1.StorageVersion]) {
		s.update(func(now time.Time) storageversion.Changes {
			s.lastRead[migrationv1alpha1.EvidenceFromStorageVersion] = from.revisionSeen
			changes := storageversion.Changes{}
			for _, object := range d.set {
				maps.Copy(changes, s.ledger.SetStorageVersion(now, object.Name, slimStorageVersion(object), !d.listed))
			}
			for _, name := range d.gone {
				maps.Copy(changes, s.ledger.SetStorageVersion(now, name, nil, !d.listed))
			}
			return changes
		})
		health.applied(d.revision)
	}, func(err error) {
		health.tried(err)
		if documents.IsNotServed(err) {
			s.forgetSource(migrationv1alpha1.EvidenceFromStorageVersion) // It is not there any more, and not late.
		}
	})
}

func slimStorageVersion(object *apiserverinternalv1alpha1.StorageVersion) *storageversion.StorageVersion {
	slim := &storageversion.StorageVersion{
		UID: object.UID, ResourceVersion: object.ResourceVersion, EncodingVersions: map[string]string{},
	}
	for _, entry := range object.Status.StorageVersions {
		slim.EncodingVersions[entry.APIServerID] = entry.EncodingVersion
	}
	return slim
}
