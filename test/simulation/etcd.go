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
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

const (
	// backupInterval is the time between backups, of which the latest keptBackups are kept.
	backupInterval = 3 * time.Minute
	keptBackups    = 4
)

// backup is what etcd had at a moment. It is older than any identity Lease is kept, so it has none that matters.
type backup struct {
	objects    [resources][]object
	states     map[string]*migrationv1alpha1.StorageState
	migrations map[string]*migrationv1alpha1.StorageVersionMigration
	definition *definition
	// due are the sources that states had to tell of.
	due map[*source]bool
}

// keepBackups makes backups from time to time. What an aggregated server writes must be recorded in them: it may have
// changed to and fro since, and nobody can know.
func (w *world) keepBackups() {
	w.after(backupInterval, w.keepBackups)
	state, a := w.api.states[flunders.String()], w.cluster.aggregated
	if state == nil || a.next != nil || state.Status.CurrentStorageVersionHash != a.encoding() {
		return
	}
	b := &backup{
		states: maps.Clone(w.api.states), migrations: maps.Clone(w.api.migrations), due: map[*source]bool{},
		definition: w.cluster.definition, // which is replaced when it changes
	}
	for i, objects := range w.store.objects {
		for _, one := range objects {
			b.objects[i] = append(b.objects[i], *one)
			b.due[one.source] = one.source.isDue(w)
		}
	}
	w.backups = append(w.backups, b)
	w.backups = w.backups[max(0, len(w.backups)-keptBackups):]
}

// restore has etcd go back to a backup. All servers are down for that, and start again with their releases or an
// earlier one. A manager that survives it ends when it hears that the revision of etcd went back.
func (w *world) restore(which, release int) {
	if len(w.backups) == 0 {
		return
	}
	b := w.backups[which%len(w.backups)]
	w.log("etcd is restored from a backup")
	if !w.mutant.survivesRestores {
		w.endManager(0)
		w.after(w.dice.upTo(time.Minute), w.startManager)
	}
	w.migrant.crash(0)
	down := slices.Clone(w.cluster.servers)
	for _, s := range down {
		if w.cluster.of(s.identity) == s {
			w.cluster.kill(s.identity)
		}
		w.cluster.end(s)
	}
	w.putBack(b)
	for _, s := range down {
		if !s.leaves {
			w.cluster.start(s.identity, min(s.release, release), s.publishes)
		}
	}
}

// putBack puts a backup in the place of what is stored. States told of sources that were due. Others are new to them.
// What a server wrote of which a state did not tell yet is left out: it has left since, and the backup has no Lease.
func (w *world) putBack(b *backup) {
	renewed := map[*source]*source{}
	since := func(s *source) *source {
		if s == nil || b.due[s] {
			return s
		}
		if renewed[s] == nil {
			again := *s
			again.due, again.began, again.grace = false, w.now, max(s.grace, w.cluster.processGrace())
			renewed[s] = &again
		}
		return renewed[s]
	}
	w.store.changed, w.store.objects, w.store.flying = true, [resources][]*object{}, nil
	for i, objects := range b.objects {
		for _, one := range objects {
			if !b.due[one.source] && one.source.identity != "" && b.isUntold(&one, everything[i]) {
				continue
			}
			one.source = since(one.source)
			w.store.objects[i] = append(w.store.objects[i], &one)
		}
	}
	w.api.states, w.api.migrations = maps.Clone(b.states), maps.Clone(b.migrations)
	for _, state := range b.states {
		w.judge.epochs[state.UID] = state.Status.Epoch
	}
	if w.cluster.definition = b.definition; b.definition != nil {
		d := *b.definition
		for i, from := range d.sources {
			d.sources[i] = since(from)
		}
		w.cluster.definition = &d
	}
	w.cluster.aggregated.source = since(w.cluster.aggregated.source)
	if next := w.cluster.aggregated.next; next != nil {
		next.source = since(next.source)
	}
}

// isUntold reports whether a state of the resource does not tell of the encoding of an object.
func (b *backup) isUntold(one *object, stored schema.GroupResource) bool {
	return slices.ContainsFunc(everything[:], func(resource schema.GroupResource) bool {
		state := b.states[resource.String()]
		return storageOf(resource) == stored && state != nil && !tells(state.Status.PersistedStorageVersionHashes, one)
	})
}
