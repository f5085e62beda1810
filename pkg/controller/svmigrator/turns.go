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

package svmigrator

import (
	"errors"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// begin gives a turn to a migration, unless another one of the same resource has one.
func (c *Controller) begin(t *turn) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active[t.resource] != nil {
		return false
	}
	c.active[t.resource] = t
	delete(c.found, t.journal.uid())
	return true
}

func (c *Controller) end(t *turn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.active, t.resource)
}

func (c *Controller) turnOf(resource schema.GroupResource) *turn {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.active[resource]
}

func (c *Controller) hasTurn(m *migrationv1alpha1.StorageVersionMigration) bool {
	t := c.turnOf(resourceOf(m))
	return t != nil && t.uid == m.UID
}

// resourceChanged stops what may not go on, and has all migrations of the resource decided anew.
func (c *Controller) resourceChanged(resource schema.GroupResource) {
	if t := c.turnOf(resource); t != nil {
		if m := t.bound.Load(); m != nil && c.decideCached(m).Verdict != Go {
			t.stop(errStopped)
		}
	}
	c.enqueueResource(resource)
}

// enqueueResource has all migrations of the resource decided anew.
func (c *Controller) enqueueResource(resource schema.GroupResource) {
	for _, name := range c.namesOf(resource) {
		c.queue.Add(name)
	}
}

// namesOf returns the names of all migrations of the resource.
func (c *Controller) namesOf(resource schema.GroupResource) []string {
	migrations, err := c.migrationsOf(resource)
	if err != nil {
		c.logger.Error(err, "Listing cached migrations failed", "resource", resource) // an index that is not there
		return nil
	}
	var names []string
	for _, m := range migrations {
		names = append(names, m.Name)
	}
	return names
}

func (c *Controller) migrationChanged(before, m *migrationv1alpha1.StorageVersionMigration) {
	if before.UID != m.UID {
		c.migrationDeleted(before)
	}
	if finished(m) {
		if t := c.turnOf(resourceOf(m)); t != nil && t.uid == m.UID && !t.ending.Load() {
			t.stop(errMigrationGone) // Somebody else ended it.
		}
		c.enqueueResource(resourceOf(m)) // others may have been kept until this one ended
		return
	}
	if t := c.turnOf(resourceOf(m)); t != nil && t.uid == m.UID {
		if m.DeletionTimestamp != nil {
			t.stop(errMigrationGone)
		}
		return // It writes its own status all the time.
	}
	c.queue.Add(m.Name)
}

// migrationDeleted stops the turn of a migration that is gone.
func (c *Controller) migrationDeleted(m *migrationv1alpha1.StorageVersionMigration) {
	if m == nil {
		return
	}
	if t := c.turnOf(resourceOf(m)); t != nil && t.uid == m.UID {
		t.stop(errMigrationGone)
	}
	c.sweeps.drop(m.UID)
	c.mu.Lock()
	delete(c.found, m.UID)
	c.stuck.Delete(m.UID)
	c.mu.Unlock()
	// One of the same name may be there already, and others may be kept because of this one.
	c.queue.Add(m.Name)
	c.enqueueResource(resourceOf(m))
}

// sweeps keeps what is known of interrupted sweeps beyond what their status says, so that nothing is done again.
type sweeps struct {
	mu   sync.Mutex
	kept map[types.UID]*sweep.Sweep
}

// take returns the sweep that was kept, or a new one.
func (s *sweeps) take(uid types.UID, create func() *sweep.Sweep) *sweep.Sweep {
	s.mu.Lock()
	defer s.mu.Unlock()
	if kept := s.kept[uid]; kept != nil {
		delete(s.kept, uid)
		return kept
	}
	return create()
}

func (s *sweeps) keep(uid types.UID, interrupted *sweep.Sweep) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept == nil {
		s.kept = map[types.UID]*sweep.Sweep{}
	}
	s.kept[uid] = interrupted
}

func (s *sweeps) drop(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.kept, uid)
	delete(s.kept, second(uid))
}

// isStuck says whether the last turn of a migration ended because nothing came about.
func (c *Controller) isStuck(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stuck.Has(uid)
}

// noteEnd remembers how a turn ended.
func (c *Controller) noteEnd(uid types.UID, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, errStuck) {
		c.stuck.Insert(uid)
	} else {
		c.stuck.Delete(uid)
	}
}

// inOrder is a queue from which the first comes first by an order that may change while things are in it.
type inOrder struct {
	names  []string
	before func(a, b string) bool
}

// Touch implements workqueue.Queue.
func (*inOrder) Touch(string) {}

// Push implements workqueue.Queue.
func (q *inOrder) Push(name string) { q.names = append(q.names, name) }

// Len implements workqueue.Queue.
func (q *inOrder) Len() int { return len(q.names) }

// Pop implements workqueue.Queue.
func (q *inOrder) Pop() string {
	first := 0
	for i := range q.names {
		if q.before(q.names[i], q.names[first]) {
			first = i
		}
	}
	name := q.names[first]
	q.names = slices.Delete(q.names, first, first+1)
	return name
}
