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

package framework

import (
	"slices"
	"sync"
	"testing"
)

// TestQueue names tests by their places, and what each needs: the queue starts those of an event together.
func TestQueue(t *testing.T) {
	type event struct {
		ends   int // The first event is the beginning, when nothing ends.
		starts []int
	}
	for name, tc := range map[string]struct {
		room    int64
		servers []int64
		events  []event
	}{
		"in order": {room: 2, servers: []int64{1, 1, 1, 1}, events: []event{
			{starts: []int{0, 1}}, {ends: 1, starts: []int{2}}, {ends: 0, starts: []int{3}}, {ends: 3}, {ends: 2},
		}},
		"a small one overtakes": {room: 4, servers: []int64{3, 3, 1, 1}, events: []event{
			{starts: []int{0, 2}}, {ends: 2, starts: []int{3}}, {ends: 0, starts: []int{1}},
		}},
		"small ones do not starve a big one": {room: 4, servers: []int64{1, 1, 1, 3, 1, 1, 1, 1}, events: []event{
			{starts: []int{0, 1, 2, 4}},
			{ends: 0},
			{ends: 4, starts: []int{5}},
			{ends: 1},
			{ends: 2, starts: []int{3}},
			{ends: 5, starts: []int{6}},
			{ends: 3, starts: []int{7}},
		}},
		"one that needs all of the room is not overtaken": {room: 3, servers: []int64{2, 3, 1}, events: []event{
			{starts: []int{0}}, {ends: 0, starts: []int{1}}, {ends: 1, starts: []int{2}},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			q := queue{room: tc.room}
			for i, servers := range tc.servers {
				q.tests = append(q.tests, Test{Servers: servers})
				q.waiting = append(q.waiting, i)
			}
			for at, e := range tc.events {
				if at > 0 {
					q.ended(e.ends)
				}
				var started []int
				for i, ok := q.next(); ok; i, ok = q.next() {
					started = append(started, i)
				}
				if !slices.Equal(started, e.starts) {
					t.Fatalf("event %d: the end of %d starts %v, want %v", at, e.ends, started, e.starts)
				}
			}
		})
	}
}

// TestRunTogether runs each test once, and waits for all.
func TestRunTogether(t *testing.T) {
	var mu sync.Mutex
	var ran []string
	var tests []Test
	names := []string{"a", "b", "c", "d", "e"}
	for i, name := range names {
		tests = append(tests, Test{Name: name, Servers: int64(1 + i%2), Run: func(*testing.T) {
			mu.Lock()
			defer mu.Unlock()
			ran = append(ran, name)
		}})
	}
	RunTogether(t, 3, tests)
	if slices.Sort(ran); !slices.Equal(ran, names) {
		t.Errorf("%v ran, want %v", ran, names)
	}
}
