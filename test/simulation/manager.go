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

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmtrigger"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	minRetry = time.Second
	maxRetry = time.Minute
)

// manager stands for the process that runs the trigger: its caches, its queue and its worker.
type manager struct {
	w        *world
	observer *observer
	// skew is by how much the clock of its host is ahead.
	skew   time.Duration
	memory svmtrigger.Memory
	// leads says that it may decide. standsBy is how long it observes before.
	leads    bool
	standsBy time.Duration

	states     map[string]*migrationv1alpha1.StorageState
	migrations map[string]*migrationv1alpha1.StorageVersionMigration
	names      []string // of migrations, sorted; nil if they changed
	// seen is the version that each cache has come to, wrote what this process wrote last about each resource.
	seen  [streams]int
	wrote [streams][resources]int

	queue    []schema.GroupResource
	failures [resources]int
	alarms   [resources]time.Time
	job      *job

	decisions [resources]int
}

// startManager begins a process. It lists everything and looks before it decides anything.
func (w *world) startManager() { w.startStandby(0) }

// startStandby has the manager lead only when it has observed for that long.
func (w *world) startStandby(standsBy time.Duration) {
	if w.manager != nil {
		return
	}
	w.lives++
	w.log("manager %d starts, and stands by for %s", w.lives, standsBy)
	m := &manager{w: w, memory: svmtrigger.Memory{}, standsBy: standsBy}
	host := newDice(w.dice.state)
	m.skew = skews[host.below(len(skews))]
	if host.thrown {
		m.setClocks(host)
	}
	m.observer = newObserver(m)
	w.manager = m
	w.feeds.reset()
	w.afterWhenServed(w.dice.upTo(listDelay), func() {
		if w.manager == m {
			m.states, m.migrations = maps.Clone(w.api.states), maps.Clone(w.api.migrations)
			for _, on := range ownStreams {
				m.seen[on] = w.api.version
			}
			m.observer.list()
		}
	})
}

// skews are by how much the clock of a host may be ahead.
var skews = []time.Duration{0, 0, 0, 66 * time.Second, -66 * time.Second, 2 * time.Hour, -2 * time.Hour}

// now is the reading of the clock of the host.
func (m *manager) now() time.Time { return read(m.w.now.Add(m.skew), m.w.now.Sub(beginning)) }

// clock is the time on the clock of whoever runs the manager.
func (w *world) clock() time.Time {
	if w.manager == nil {
		return w.now
	}
	return w.manager.now()
}

// endManager kills the process. If it had sent a request, that may arrive later.
func (w *world) endManager(late time.Duration) {
	m := w.manager
	if m == nil {
		return
	}
	w.log("manager %d ends", w.lives)
	w.manager = nil
	w.migrant.forget()
	w.feeds.reset()
	w.cluster.noteUnwatched()
	if job := m.job; job != nil && late > 0 && len(job.effects) > 0 {
		w.after(late, func() {
			w.log("a late request arrives")
			_ = job.effects[0]()
		})
	}
}

// begin lets the worker begin, at once or when nobody else leads any more: everything was listed and looked at.
func (m *manager) begin() {
	m.observer.synced = true
	if m.standsBy == 0 {
		m.lead()
		return
	}
	m.w.after(m.standsBy, func() {
		if m.w.manager == m {
			m.lead()
		}
	})
}

func (m *manager) lead() {
	m.leads = true
	m.w.feeds.reckon()
	m.w.migrant.wake()
	for _, resource := range everything {
		if m.states[nameOf(resource)] != nil || slices.Contains(m.observer.ledger.Resources(), resource) {
			m.enqueue(resource)
		}
	}
}

func (m *manager) cacheState(name string, state *migrationv1alpha1.StorageState) {
	if m.states[name] = state; state == nil {
		delete(m.states, name)
	}
	m.enqueue(schema.ParseGroupResource(name))
}

func (m *manager) cacheMigration(name string, gone, migration *migrationv1alpha1.StorageVersionMigration) {
	m.names = nil
	if m.migrations[name] = migration; migration == nil {
		delete(m.migrations, name)
		migration = gone
	}
	m.enqueue(migration.GroupResource())
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
	m.seen[on] = m.w.api.version
	for _, resource := range everything {
		m.enqueue(resource)
	}
}

func (m *manager) enqueue(resource schema.GroupResource) {
	if !m.leads || slices.Contains(m.queue, resource) {
		return
	}
	m.queue = append(m.queue, resource)
	m.work()
}

func (m *manager) enqueueAfter(resource schema.GroupResource, d time.Duration) {
	at, alarm := m.w.now.Add(d), &m.alarms[position(resource)]
	if !alarm.IsZero() && !alarm.After(at) {
		return
	}
	*alarm = at
	m.w.after(d, func() {
		if m.w.manager == m && alarm.Equal(at) {
			*alarm = time.Time{}
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
	if !m.visible(j.resource) {
		j.again = j.in.Now.Add(minRetry)
		m.done(j, nil)
		return
	}
	decision := svmtrigger.Decide(j.in)
	if mutate := m.w.mutant.decision; mutate != nil {
		mutate(m.w, j.in, &decision)
	}
	m.decisions[position(j.resource)]++
	j.again = decision.DecideAt
	m.effects(j, decision)
	m.perform(j)
}

// input gathers what is known, as the controller does.
func (m *manager) input(resource schema.GroupResource) svmtrigger.Input {
	in := svmtrigger.Input{
		Observation: m.observe(resource), State: m.states[nameOf(resource)],
		AutoMigrate: true, Now: m.now(), Periods: m.w.periods,
	}
	if m.names == nil {
		m.names = slices.Sorted(maps.Keys(m.migrations))
	}
	for _, name := range m.names {
		if m.migrations[name].GroupResource() == resource {
			in.Migrations = append(in.Migrations, m.migrations[name])
		}
	}
	m.memory.Update(&in)
	return in
}

// observe is what is known of a resource.
func (m *manager) observe(resource schema.GroupResource) storageversion.Observation {
	observation := m.observer.ledger.Observe(m.now(), resource)
	if mutate := m.w.mutant.observation; mutate != nil {
		mutate(&observation)
	}
	return observation
}

// ownStreams are those of objects that the manager itself writes.
var ownStreams = []stream{streamStates, streamMigrations}

// wroteAt notes that something about a resource was written just now.
func (m *manager) wroteAt(on stream, resource schema.GroupResource) {
	m.wrote[on][position(resource)] = m.w.api.version
}

// visible says whether the caches show everything that this process wrote about a resource.
func (m *manager) visible(resource schema.GroupResource) bool {
	for _, on := range ownStreams {
		if m.seen[on] < m.wrote[on][position(resource)] {
			return false
		}
	}
	return true
}

// done ends the work on a resource.
func (m *manager) done(j *job, err error) {
	m.job = nil
	failures := &m.failures[position(j.resource)]
	switch {
	case err != nil:
		m.w.log("%s: %v", j.resource.Resource, err)
		m.enqueueAfter(j.resource, min(minRetry<<*failures, maxRetry))
		*failures = min(*failures+1, 6)
	default:
		*failures = 0
		if !j.again.IsZero() {
			m.enqueueAfter(j.resource, max(j.again.Sub(m.now()), minRetry))
		}
	}
	m.work()
}
