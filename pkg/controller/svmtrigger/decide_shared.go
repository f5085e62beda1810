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

package svmtrigger

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// storage is what a migration is of: objects that may have several names, under the one that stands for all of them, and the
// state and the epoch of that name.
type storage struct {
	resource schema.GroupResource
	state    types.UID
	epoch    int64
}

func (d *deciding) storage() storage {
	if by := d.in.SharedBy; by != nil {
		return storage{d.in.Observation.SharedBy, by.UID, by.Status.Epoch}
	}
	return storage{d.in.Observation.SharedBy, d.state.UID, d.next.Epoch}
}

// of says whether a migration with that target is one of the storage, and of the epoch that is current.
func (s storage) of(m *migrationv1alpha1.StorageVersionMigration, target *migrationv1alpha1.MigrationTarget) bool {
	return ofResource(m, s.resource) && target != nil && target.Epoch != nil && *target.Epoch == s.epoch && target.StorageStateUID == s.state
}

// goesByItself says that nobody migrates the storage any more: the name that stands for all of them has its proof, which is
// too old for this one. A migration on behalf of this one is of that name all the same, and does not touch its state.
func (d *deciding) goesByItself() bool {
	by := &d.in.SharedBy.Status
	return isMigrated(by) && by.CurrentStorageVersionHash == d.next.CurrentStorageVersionHash
}

// isShared says that a reference was taken over from the name that stands for all.
func (d *deciding) isShared(ref *migrationv1alpha1.MigrationReference) bool {
	return d.in.SharedBy != nil && d.in.SharedBy.Status.Migration != nil && d.in.SharedBy.Status.Migration.Name == ref.Name
}
