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

import "time"

// event is something that happens at a moment. Those of the same moment happen in the order in which they were planned.
type event struct {
	at    time.Time
	order int
	do    func()
}

// calendar is a heap of events.
type calendar struct {
	events  []event
	planned int
}

func (c *calendar) plan(at time.Time, do func()) {
	c.planned++
	c.events = append(c.events, event{at: at, order: c.planned, do: do})
	for i := len(c.events) - 1; i > 0; {
		parent := (i - 1) / 2
		if !c.before(i, parent) {
			break
		}
		c.swap(i, parent)
		i = parent
	}
}

// next takes the earliest event out, if it is not later than limit.
func (c *calendar) next(limit time.Time) (event, bool) {
	if len(c.events) == 0 || c.events[0].at.After(limit) {
		return event{}, false
	}
	first, last := c.events[0], len(c.events)-1
	c.swap(0, last)
	c.events[last] = event{}
	c.events = c.events[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			break
		}
		if child+1 < last && c.before(child+1, child) {
			child++
		}
		if !c.before(child, i) {
			break
		}
		c.swap(i, child)
		i = child
	}
	return first, true
}

func (c *calendar) before(i, j int) bool {
	a, b := &c.events[i], &c.events[j]
	if a.at.Equal(b.at) {
		return a.order < b.order
	}
	return a.at.Before(b.at)
}

func (c *calendar) swap(i, j int) { c.events[i], c.events[j] = c.events[j], c.events[i] }

// dice decide what a step leaves open: delays, and who does something. They are thrown anew in every step. Without a
// seed they always show zero, so that a history that was shrunk has no chance left in it where none is needed.
type dice struct {
	state  uint64
	thrown bool
}

func newDice(seed uint64) dice { return dice{state: seed, thrown: seed != 0} }

// below returns a number from 0 to n-1.
func (d *dice) below(n int) int {
	if !d.thrown || n <= 1 {
		return 0
	}
	d.state += 0x9e3779b97f4a7c15
	z := d.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	z ^= z >> 31
	return int(z % uint64(n))
}

// upTo returns a duration from 0 to the longest. It is 0 without a seed.
func (d *dice) upTo(longest time.Duration) time.Duration {
	return longest * time.Duration(d.below(11)) / 10
}

// rather returns a duration from 0 to the longest. It is the longest without a seed.
func (d *dice) rather(longest time.Duration) time.Duration {
	return longest - d.upTo(longest)
}

// oneIn is true once in n times, and never without a seed.
func (d *dice) oneIn(n int) bool { return d.thrown && d.below(n) == 0 }
