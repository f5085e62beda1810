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
	"cmp"
	"maps"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmtrigger"
)

const (
	maxUnfinished = 2
	minRetry      = time.Second
	maxRetry      = time.Minute
)

// manager stands for the process that runs the trigger: its caches, its queue and its worker.
type manager struct {
	w        *world
	observer *observer

	states     map[string]*migrationv1alpha1.StorageState
	migrations map[string]*migrationv1alpha1.StorageVersionMigration
	names      []string // of migrations, sorted; nil if they changed
	// own is what was written last, until the cache shows it.
	own map[schema.GroupResource]*migrationv1alpha1.StorageState

	queue    []schema.GroupResource
	waiting  map[schema.GroupResource]bool // for a slot
	failures map[schema.GroupResource]int
	alarms   map[schema.GroupResource]time.Time
	job      *job

	decisions map[schema.GroupResource]int
}

// startManager begins a process. It lists everything and looks before it decides anything.
func (w *world) startManager() {
	if w.manager != nil {
		return
	}
	w.lives++
	w.log("manager %d starts", w.lives)
	m := &manager{
		w: w, own: map[schema.GroupResource]*migrationv1alpha1.StorageState{}, waiting: map[schema.GroupResource]bool{},
		failures: map[schema.GroupResource]int{}, alarms: map[schema.GroupResource]time.Time{}, decisions: map[schema.GroupResource]int{},
	}
	m.observer = newObserver(m)
	w.manager = m
	w.feeds.reset()
	w.after(w.dice.upTo(listDelay), func() {
		if w.manager == m {
			m.states, m.migrations = maps.Clone(w.api.states), maps.Clone(w.api.migrations)
			m.observer.list()
		}
	})
}

// endManager kills the process. If it had sent a request, that may arrive later.
func (w *world) endManager(late time.Duration) {
	m := w.manager
	if m == nil {
		return
	}
	w.log("manager %d ends", w.lives)
	w.manager = nil
	w.feeds.reset()
	w.cluster.noteUnwatched()
	if job := m.job; job != nil && late > 0 && len(job.effects) > 0 {
		w.after(late, func() {
			w.log("a late request arrives")
			_ = job.effects[0]()
		})
	}
}

// begin lets the worker begin: everything was listed and looked at.
func (m *manager) begin() {
	m.observer.synced = true
	m.w.feeds.reckon()
	for _, resource := range everything {
		if m.states[resource.String()] != nil || slices.Contains(m.observer.ledger.Resources(), resource) {
			m.enqueue(resource)
		}
	}
}

func (m *manager) cacheState(name string, state *migrationv1alpha1.StorageState) {
	if m.states[name] = state; state == nil {
		delete(m.states, name)
	}
	m.changed(schema.ParseGroupResource(name))
}

func (m *manager) cacheMigration(name string, gone, migration *migrationv1alpha1.StorageVersionMigration) {
	m.names = nil
	if m.migrations[name] = migration; migration == nil {
		delete(m.migrations, name)
		migration = gone
	}
	m.changed(resourceOf(migration))
	for _, resource := range everything {
		if m.waiting[resource] {
			m.enqueue(resource)
		}
	}
}

// relist reads anew what a watch lost track of.
func (m *manager) relist(on stream) {
	switch on {
	case streamStates:
		m.states = maps.Clone(m.w.api.states)
	case streamMigrations:
		m.migrations, m.names = maps.Clone(m.w.api.migrations), nil
	default:
		m.observer.relist(on)
		return
	}
	for _, resource := range everything {
		m.enqueue(resource)
	}
}

// changed enqueues a resource whose state or migrations changed, and those that share its storage.
func (m *manager) changed(resource schema.GroupResource) {
	m.enqueue(resource)
	if storageOf(resource) != newIngresses {
		return
	}
	for _, other := range m.observer.ledger.Observe(m.w.now, resource).SharedWith {
		m.enqueue(other)
	}
}

func (m *manager) enqueue(resource schema.GroupResource) {
	if !m.observer.synced || slices.Contains(m.queue, resource) {
		return
	}
	m.queue = append(m.queue, resource)
	m.work()
}

func (m *manager) enqueueAfter(resource schema.GroupResource, d time.Duration) {
	at := m.w.now.Add(d)
	if planned, ok := m.alarms[resource]; ok && !planned.After(at) {
		return
	}
	m.alarms[resource] = at
	m.w.after(d, func() {
		if m.w.manager == m && m.alarms[resource].Equal(at) {
			delete(m.alarms, resource)
			m.enqueue(resource)
		}
	})
}

// work decides about the next resource, if nothing is being done.
func (m *manager) work() {
	if m.job != nil || len(m.queue) == 0 {
		return
	}
	m.job = &job{resource: m.queue[0]}
	m.queue = m.queue[1:]
	m.w.after(m.w.dice.upTo(50*time.Millisecond), func() {
		if m.w.manager == m {
			m.decide(m.job)
		}
	})
}

func (m *manager) decide(j *job) {
	j.in = m.input(j.resource)
	if mutate := m.w.mutant.input; mutate != nil {
		mutate(m.w, &j.in)
	}
	decision := svmtrigger.Decide(j.in)
	if mutate := m.w.mutant.decision; mutate != nil {
		mutate(m.w, j.in, &decision)
	}
	m.decisions[j.resource]++
	delete(m.waiting, j.resource)
	if decision.Due && !j.in.Slot {
		m.waiting[j.resource] = true
	}
	j.again = decision.LookAgain
	m.effects(j, decision)
	m.perform(j)
}

// input gathers what is known, as the controller does.
func (m *manager) input(resource schema.GroupResource) svmtrigger.Input {
	in := svmtrigger.Input{
		Observation: m.observer.ledger.Observe(m.w.now, resource), State: m.newest(resource),
		AutoMigrate: true, Now: m.w.now, Periods: m.w.periods,
	}
	by := in.Observation.SharedBy
	if by != resource && by != (schema.GroupResource{}) {
		in.SharedBy = m.newest(by)
	}
	if m.names == nil {
		m.names = slices.Sorted(maps.Keys(m.migrations))
	}
	for _, name := range m.names {
		if of := resourceOf(m.migrations[name]); of == resource || of == by {
			in.Migrations = append(in.Migrations, m.migrations[name])
		}
	}
	in.Slot = promise(in.State) != "" || m.unfinished() < maxUnfinished
	return in
}

// newest is the state as this process wrote it, or as the cache has it if that is newer.
func (m *manager) newest(resource schema.GroupResource) *migrationv1alpha1.StorageState {
	cached, own := m.states[resource.String()], m.own[resource]
	if own == nil {
		return cached
	}
	if cached != nil && number(cached.ResourceVersion) >= number(own.ResourceVersion) {
		delete(m.own, resource)
		return cached
	}
	if cached == nil && m.w.api.states[resource.String()] == nil {
		delete(m.own, resource) // Somebody deleted it, and the cache has reached that.
		return nil
	}
	return own
}

// unfinished counts the migrations that take up slots.
func (m *manager) unfinished() int {
	names := map[string]struct{}{}
	for name, migration := range m.migrations {
		if byTrigger(migration) && !finished(migration) {
			names[name] = struct{}{}
		}
	}
	for _, resource := range everything {
		if name := promise(m.newest(resource)); name != "" && m.migrations[name] == nil {
			names[name] = struct{}{}
		}
	}
	return len(names)
}

// done ends the work on a resource.
func (m *manager) done(j *job, err error) {
	m.job = nil
	switch {
	case err != nil:
		m.w.log("%s: %v", j.resource.Resource, err)
		m.enqueueAfter(j.resource, min(minRetry<<m.failures[j.resource], maxRetry))
		m.failures[j.resource] = min(m.failures[j.resource]+1, 6)
	default:
		delete(m.failures, j.resource)
		if !j.again.IsZero() {
			m.enqueueAfter(j.resource, max(j.again.Sub(m.w.now), minRetry))
		}
	}
	m.work()
}

func promise(state *migrationv1alpha1.StorageState) string {
	if state == nil || state.Status.Migration == nil || state.Status.Migration.UID != "" {
		return ""
	}
	return state.Status.Migration.Name
}

func byTrigger(m *migrationv1alpha1.StorageVersionMigration) bool {
	return m.Spec.Target != nil && m.Spec.Target.StorageStateUID != ""
}

func finished(m *migrationv1alpha1.StorageVersionMigration) bool {
	return hasCondition(m, migrationv1alpha1.MigrationSucceeded) || hasCondition(m, migrationv1alpha1.MigrationFailed)
}

func hasCondition(m *migrationv1alpha1.StorageVersionMigration, kind migrationv1alpha1.MigrationConditionType) bool {
	return slices.ContainsFunc(m.Status.Conditions, func(c migrationv1alpha1.MigrationCondition) bool {
		return c.Type == kind && c.Status == "True"
	})
}

func resourceOf(m *migrationv1alpha1.StorageVersionMigration) schema.GroupResource {
	return schema.GroupResource{Group: m.Spec.Resource.Group, Resource: m.Spec.Resource.Resource}
}

func number(resourceVersion string) int {
	n, err := strconv.Atoi(cmp.Or(resourceVersion, "0"))
	if err != nil {
		panic(err)
	}
	return n
}
