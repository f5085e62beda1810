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

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// followDefinitions reports CustomResourceDefinitions to the Ledger.
func (s *sharedLedger) followDefinitions(ctx context.Context, from *watchedList) {
	followWithHealth(ctx, s.healthOf(storageversion.Custom), from, func(d delta[*documents.Definition]) {
		s.update(func(now time.Time) storageversion.Changes {
			s.lastRead[migrationv1alpha1.EvidenceFromCustomResourceDefinition] = from.revisionSeen
			changes := storageversion.Changes{}
			for _, definition := range d.set {
				maps.Copy(changes, s.ledger.SetDefinition(now, definition.Resource(), definitionFact(definition)))
			}
			for _, name := range d.gone {
				maps.Copy(changes, s.ledger.SetDefinition(now, schema.ParseGroupResource(name), nil))
			}
			return changes
		})
	})
}

func definitionFact(d *documents.Definition) *storageversion.Definition {
	return &storageversion.Definition{
		UID:                   d.Metadata.UID,
		Generation:            d.Metadata.Generation,
		Group:                 d.Spec.Group,
		Kind:                  d.Spec.Names.Kind,
		StorageVersion:        d.StorageVersion(),
		ServedVersions:        d.ServedVersions(),
		DefinedVersions:       d.DefinedVersions(),
		StoredVersions:        d.Status.StoredVersions,
		StoredVersionsManager: d.StoredVersionsManager(),
		Established:           d.Established(),
		Content:               d.Content(),
	}
}
