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
	"testing"
)

// Test is one of those that run beside each other.
type Test struct {
	Name string
	// Servers is how many API servers it starts.
	Servers int64
	Run     func(t *testing.T)
}

// RunTogether runs each test on a control plane of its own, as many at once as there is room for API servers. A test
// that needs few servers may begin before one that needs many and comes first.
// The tests wait most of the time, but a machine that is too busy would make judges of time unjust.
func RunTogether(t *testing.T, room int64, tests []Test) {
	t.Helper()
	q := queue{room: room, tests: tests}
	for i, test := range tests {
		if test.Servers > room {
			t.Fatalf("%s needs %d servers, but there is room for %d", test.Name, test.Servers, room)
		}
		q.waiting = append(q.waiting, i)
	}
	ended := make(chan int)
	for len(q.waiting)+len(q.running) > 0 {
		for i, ok := q.next(); ok; i, ok = q.next() {
			go func() {
				defer func() { ended <- i }()
				t.Run(tests[i].Name, tests[i].Run)
			}()
		}
		q.ended(<-ended)
	}
}

// queue is about tests by their places in the list.
type queue struct {
	room             int64
	tests            []Test
	waiting, running []int
}

// next starts the first waiting test that fits. Tests that overtake the first one of all leave the room free that it
// needs, so it waits only for those that come before it.
func (q *queue) next() (int, bool) {
	for at, i := range q.waiting {
		first, servers := q.waiting[0], q.tests[i].Servers
		if q.servers(-1)+servers > q.room || i != first && q.servers(first)+servers+q.tests[first].Servers > q.room {
			continue
		}
		q.waiting = slices.Delete(q.waiting, at, at+1)
		q.running = append(q.running, i)
		return i, true
	}
	return 0, false
}

func (q *queue) ended(test int) {
	q.running = slices.DeleteFunc(q.running, func(i int) bool { return i == test })
}

// servers counts those of running tests that come after a place in the list.
func (q *queue) servers(place int) int64 {
	var sum int64
	for _, i := range q.running {
		if i > place {
			sum += q.tests[i].Servers
		}
	}
	return sum
}
