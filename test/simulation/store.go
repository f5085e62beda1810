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
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// object is something stored.
type object struct {
	encoding string
	source   *source
	// covered are, by position of the resource, the states that told of the encoding since the object was written.
	covered [resources]types.UID
}

// store is what no program can look into, except for the judge.
type store struct {
	w *world
	// objects are by position of the resource.
	objects [resources][]*object
	// changed says that the judge has to look again.
	changed bool
	// flying are writes that have begun and not landed.
	flying []*flight
}

// flight is a write on its way.
type flight struct {
	resource schema.GroupResource
	encoding string
	source   *source
	// mayLand says whether it still may.
	mayLand func() bool
}

func newStore(w *world) *store {
	return &store{w: w}
}

func (s *store) add(resource schema.GroupResource, from *source, encodings ...string) {
	for _, encoding := range encodings {
		if encoding != "" {
			storage := position(storageOf(resource))
			s.objects[storage] = append(s.objects[storage], &object{encoding: encoding, source: from})
		}
	}
}

// of returns the objects of a resource.
func (s *store) of(resource schema.GroupResource) []*object {
	return s.objects[position(storageOf(resource))]
}

func (s *store) clear(resource schema.GroupResource) { s.objects[position(resource)] = nil }

// write stores an object, a new one if there is none at that position.
func (s *store) write(resource schema.GroupResource, position int, encoding string, from *source) {
	if encoding == "" || from.silent {
		return
	}
	s.changed = true
	objects := s.of(resource)
	if len(objects) < 3 {
		s.add(resource, from, encoding)
		return
	}
	one := objects[position%len(objects)]
	if one.encoding != encoding || one.source != from {
		*one = object{encoding: encoding, source: from}
	}
}

// fly begins a write that lands later.
func (s *store) fly(resource schema.GroupResource, position int, encoding string, from *source,
	duration time.Duration, mayLand func() bool) {
	if encoding == "" || from.silent {
		return
	}
	one := &flight{resource: resource, encoding: encoding, source: from, mayLand: mayLand}
	s.flying = append(s.flying, one)
	s.w.after(duration, func() {
		flies := slices.Contains(s.flying, one) // else etcd was away, and it failed
		s.flying = slices.DeleteFunc(s.flying, func(other *flight) bool { return other == one })
		if flies && mayLand() {
			s.w.log("a slow write of %s lands in %s", resource.Resource, words(encoding))
			s.write(resource, position, encoding, from)
		}
	})
}

// encoding is what a server writes a resource in, and what brought that about. Empty if it does not write it.
func (w *world) encoding(s *server, resource schema.GroupResource) (string, *source) {
	if b := builtInAt[position(resource)]; b != nil {
		return b.encoding(s.release), s.source
	}
	if resource == flunders {
		by := w.cluster.aggregated.answering()
		return by.encoding(), by.source
	}
	if d := w.cluster.definition; d != nil && s.returned {
		return d.encoding(s.follows), s.source
	} else if d != nil {
		return d.encoding(s.follows), d.sources[s.follows]
	}
	return "", nil
}

// writeSlowly begins a write of every built-in resource, which lands when the server ends.
func (s *store) writeSlowly(by *server, duration time.Duration) {
	for i, b := range builtIns {
		s.fly(b.resource, i, b.encoding(by.release), by.source, duration, func() bool { return by.lives })
	}
}

// writeCustomSlowly begins a write in the encoding that a server knows of, which lands as late as possible. The server
// goes on to write another object.
func (s *store) writeCustomSlowly(by *server) {
	d := s.w.cluster.definition
	encoding, from := s.w.encoding(by, crontabs)
	s.fly(crontabs, by.number+1, encoding, from, requestTimeout, func() bool {
		now := s.w.cluster.definition
		return by.lives && now != nil && now.uid == d.uid
	})
}

func (s *store) writeAggregatedSlowly() {
	a := s.w.cluster.aggregated.revision
	s.fly(flunders, 0, a.encoding(), a.source, requestTimeout, func() bool { return true })
}

// forgive makes objects of some sources as if they had never been written.
func (s *store) forgive(whose func(*source) bool) {
	for _, resource := range everything {
		forgiven := func(one *object) bool {
			return !one.source.due && whose(one.source) && !s.rewrite(one, resource, whose)
		}
		storage := position(storageOf(resource))
		s.objects[storage] = slices.DeleteFunc(s.objects[storage], forgiven)
	}
}

// silence has a source write no more, not even what is on its way.
func (s *store) silence(from *source) {
	from.silent = true
	s.flying = slices.DeleteFunc(s.flying, func(one *flight) bool { return one.source == from })
}

// rewrite makes an object that of another source, if there is one.
func (s *store) rewrite(one *object, resource schema.GroupResource, but func(*source) bool) bool {
	for _, by := range s.w.cluster.accepting() {
		if encoding, from := s.w.encoding(by, resource); encoding != "" && !but(from) {
			one.encoding, one.source = encoding, from
			return true
		}
	}
	return false
}

// keepWriting lets every server write one object of every resource, again and again. A process writes another object
// than the one before it, so what that wrote stays.
func (w *world) keepWriting() {
	for _, s := range w.cluster.accepting() {
		for _, resource := range everything {
			if encoding, from := w.encoding(s, resource); encoding != "" {
				w.store.write(resource, s.number, encoding, from)
			}
		}
	}
	w.after(w.pulse(), w.keepWriting)
}

// pulse is the time from one write of a server to the next.
func (w *world) pulse() time.Duration {
	if w.quiet {
		return time.Minute
	}
	return 2 * time.Second
}
