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

package simulation

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// judge knows what is stored, and compares.
type judge struct {
	w      *world
	epochs map[types.UID]int64
	// compared counts stored objects that were found in a list that excludes something, proofs the lists that became
	// short.
	compared, proofs int
}

func newJudge(w *world) *judge {
	return &judge{w: w, epochs: map[types.UID]int64{}}
}

// check compares what is stored with what the states tell.
//
//   - What it did not tell of yet it must tell of as soon as the source of the encoding is due.
//   - What is due and it once told of since an object was written, it must go on to tell of: an encoding leaves the
//     list only when no object is stored in it.
func (j *judge) check() {
	if !j.w.store.changed {
		return // What only becomes due with time is looked at when a server writes next.
	}
	j.w.store.changed = false
	for i, resource := range everything {
		state := j.w.api.states[stateNames[i]]
		if state == nil || state.Status.Epoch == 0 {
			continue // Nothing is promised yet, or another controller promised it.
		}
		persisted := state.Status.PersistedStorageVersionHashes
		for _, one := range j.w.store.of(resource) {
			switch {
			case tells(persisted, one):
				if one.source.isDue(j.w) {
					one.covered[i] = state.UID
				}
				if !includesAll(persisted) {
					j.compared++
				}
			case one.covered[i] == state.UID:
				j.w.violated("P2: an object of %s is stored in %s by %s, which the state told of and does no longer: %s",
					resource.Resource, words(one.encoding), one.source.name, statusInWords(&state.Status))
			case one.source.isDue(j.w):
				j.w.violated("P1: an object of %s is stored in %s by %s since %s, and the state does not tell of it: %s",
					resource.Resource, words(one.encoding), one.source.name, one.source.began.Sub(beginning),
					statusInWords(&state.Status))
			}
		}
	}
}

// tells reports whether the persisted encodings of a state include that of an object.
func tells(persisted []string, one *object) bool {
	return includesAll(persisted) || slices.Contains(persisted, one.encoding)
}

// includesAll reports whether the persisted encodings of a state include all that there may be.
func includesAll(persisted []string) bool {
	return len(persisted) == 0 || slices.Contains(persisted, migrationv1alpha1.Unknown)
}

// decides looks at a status that a manager is about to write, and at the encodings that leave the list.
func (j *judge) decides(m *manager, state *migrationv1alpha1.StorageState, next *migrationv1alpha1.StorageStateStatus) {
	before, after := state.Status.PersistedStorageVersionHashes, next.PersistedStorageVersionHashes
	gone := func(hash string) bool { return !slices.Contains(after, hash) }
	if slices.Contains(after, migrationv1alpha1.Unknown) || !slices.ContainsFunc(before, gone) {
		return
	}
	known := func(from *source) bool { return m.observer.known[from] }
	j.leaves(schema.ParseGroupResource(state.Name), gone, known, "the manager is about to write "+statusInWords(next))
}

// succeeds looks at a migration that is about to succeed. Whoever ends it must have found out who has a Lease, and what
// the aggregated server writes.
func (j *judge) succeeds(m *migrationv1alpha1.StorageVersionMigration) {
	c := j.w.cluster
	found := c.aggregated.sources()
	for _, one := range c.living() {
		found = append(found, c.sources[one.Incarnation])
	}
	other := func(hash string) bool { return hash != m.Status.Target.StorageVersionHash }
	known := func(from *source) bool { return j.w.manager.observer.known[from] || slices.Contains(found, from) }
	j.leaves(m.GroupResource(), other, known, m.Name+" is about to succeed")
}

// prunes looks at a definition of which all versions but one are about to leave status.storedVersions.
func (j *judge) prunes(d *definition) {
	other := func(hash string) bool { return hash != d.encoding(d.storage) }
	known := func(from *source) bool { return j.w.manager != nil && j.w.manager.observer.known[from] }
	j.leaves(crontabs, other, known, "status.storedVersions is about to lose it")
}

// leaves is about encodings that somebody calls gone. No object may be stored in one, and no write may be on its way,
// that comes from a source which is due or known.
func (j *judge) leaves(resource schema.GroupResource, gone func(string) bool, known func(*source) bool, but string) {
	look := func(encoding string, from *source, what string) {
		if gone(encoding) && (from.due || known(from)) {
			j.w.violated("P2: %s of %s in %s by %s, and %s", what, resource.Resource, words(encoding), from.name, but)
		}
	}
	for _, one := range j.w.store.of(resource) {
		look(one.encoding, one.source, "there is an object")
	}
	for _, one := range j.w.store.flying {
		if storageOf(one.resource) == storageOf(resource) && one.mayLand() {
			look(one.encoding, one.source, "there is a write on its way")
		}
	}
}

// recorded looks at a state that was stored.
func (j *judge) recorded(state *migrationv1alpha1.StorageState) {
	status := &state.Status
	if status.Epoch < j.epochs[state.UID] {
		j.w.violated("the epoch of %s goes from %d to %d", state.Name, j.epochs[state.UID], status.Epoch)
	}
	j.epochs[state.UID] = status.Epoch
	only := status.CurrentStorageVersionHash != migrationv1alpha1.Unknown &&
		slices.Equal(status.PersistedStorageVersionHashes, []string{status.CurrentStorageVersionHash})
	for _, condition := range []string{migrationv1alpha1.StorageStateMigrated,
		migrationv1alpha1.StorageStateSafeToRemoveOldVersions} {
		if meta.IsStatusConditionTrue(status.Conditions, condition) && !only {
			j.w.violated("%s says %s, and is not", state.Name, condition)
		}
	}
	if only {
		j.proofs++
	}
}

// creates looks at a migration that the trigger is about to create: the state that is stored must justify it.
func (j *judge) creates(m *migrationv1alpha1.StorageVersionMigration) {
	target, resource := m.Spec.Target, m.GroupResource()
	state := j.w.api.states[resource.String()]
	switch {
	case state == nil || state.UID != target.StorageStateUID:
		j.w.violated("migration %s is created for a state that is gone", m.Name)
	case state.Status.Epoch != *target.Epoch || state.Status.CurrentStorageVersionHash != target.StorageVersionHash:
		j.w.violated("migration %s is created for epoch %d and %s, and the state that is stored says %s",
			m.Name, *target.Epoch, words(target.StorageVersionHash), statusInWords(&state.Status))
	}
	for name, other := range j.w.api.migrations {
		if name != m.Name && other.Spec.Target != nil && !other.Finished() && other.GroupResource() == resource &&
			sameTarget(other, m) {
			j.w.violated("migration %s is created while %s of the same epoch is unfinished", m.Name, name)
		}
	}
}
