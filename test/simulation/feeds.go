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
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// stream is something that the manager watches.
type stream int

const (
	streamLeases stream = iota
	streamAddresses
	streamDefinitions
	streamStorageVersions
	streamStates
	streamMigrations
	streams
)

const (
	// watchDelay is how late an event may arrive, listDelay how long a list may take.
	watchDelay = time.Second
	listDelay  = 500 * time.Millisecond
)

// told is an event on its way.
type told func(m *manager)

// feeds bring what happens in the cluster to the manager that runs.
type feeds struct {
	w   *world
	all [streams]feed
	// awakeSince is since when a manager runs of which no watch is broken and no write fails. Zero while there is none.
	awakeSince time.Time
}

type feed struct {
	// last is when the last event arrives. No other overtakes it.
	last   time.Time
	broken bool
	// underWay are events that the watch has sent. If it breaks, they have not arrived.
	underWay []told
	// kept are events that arrive when the watch goes on where it was cut off.
	kept []told
}

func newFeeds(w *world) *feeds { return &feeds{w: w} }

// publish tells the manager something, after a delay.
func (f *feeds) publish(on stream, what told) {
	m := f.w.manager
	if m == nil || !m.observer.listed {
		return
	}
	one := &f.all[on]
	if one.broken {
		one.kept = append(one.kept, what)
		return
	}
	at := f.w.now.Add(f.w.dice.upTo(watchDelay))
	if at.Before(one.last) {
		at = one.last
	}
	one.last = at
	one.underWay = append(one.underWay, what)
	f.w.plan.plan(at, func() {
		if f.w.manager == m && len(one.underWay) > 0 {
			first := one.underWay[0]
			one.underWay = one.underWay[1:]
			first(m)
		}
	})
}

// cut breaks a watch. After a while it goes on where it was cut off, or all is listed anew.
func (f *feeds) cut(on stream, d time.Duration, relist bool) {
	m := f.w.manager
	one := &f.all[on]
	if m == nil || !m.observer.listed || one.broken {
		return
	}
	f.w.log("watch %d breaks", on)
	one.broken, one.kept, one.underWay = true, one.underWay, nil
	if on == streamLeases {
		m.observer.noteHeld()
	}
	f.reckon()
	f.w.afterWhenServed(d, func() {
		if f.w.manager != m {
			return
		}
		f.w.log("watch %d goes on, relist %v", on, relist)
		kept := one.kept
		one.broken, one.kept = false, nil
		if relist {
			m.relist(on)
		} else {
			for _, what := range kept {
				what(m)
			}
		}
		if on == streamLeases {
			f.w.cluster.noteWatched()
		}
		f.reckon()
	})
}

// cutAll breaks all watches, for the same time.
func (f *feeds) cutAll(d time.Duration, relist bool) {
	for on := range streams {
		f.cut(on, d, relist)
	}
}

// reset begins anew for another manager.
func (f *feeds) reset() {
	f.all = [streams]feed{}
	f.reckon()
}

// reckon finds out whether anybody is awake.
func (f *feeds) reckon() {
	awake := f.w.manager != nil && f.w.manager.leads && !f.w.api.failing()
	for i := range f.all {
		awake = awake && !f.all[i].broken
	}
	switch {
	case !awake:
		f.awakeSince = time.Time{}
	case f.awakeSince.IsZero():
		f.awakeSince = f.w.now
	}
}

// watched says whether changes reach a manager.
func (f *feeds) watched(on stream) bool {
	return f.w.manager != nil && f.w.manager.observer.listed && !f.all[on].broken
}

func livingTold(living []storageversion.Process) told {
	return func(m *manager) { m.observer.setLiving(living, true) }
}

func addressesTold(addresses []string) told {
	return func(m *manager) { m.observer.setAddresses(addresses) }
}

func definitionTold(definition *storageversion.Definition) told {
	return func(m *manager) { m.observer.setDefinition(definition) }
}

func storageVersionTold(resource schema.GroupResource, object *storageversion.StorageVersion) told {
	return func(m *manager) { m.observer.setStorageVersion(resource, object, true) }
}
