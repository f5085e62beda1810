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

package pacer

import (
	"slices"
	"time"
)

// turn is what the control knows about one place: a wait, then a request, then nothing.
type turn struct {
	queue    *queue
	given    chan struct{} // closed when the wait is over
	refused  bool          // the wait ended because the lane was closed
	began    time.Time
	number   int64 // in the order in which places were given; zero while waiting
	together bool  // others were out when this place was given
	dip      bool  // given in a dip
	over     bool
}

// queue is what the control knows about one lane.
type queue struct {
	waiting  []*turn
	inFlight int
	closed   bool
	// spent is the time that requests took, the currency in which lanes are treated alike.
	spent time.Duration
	best  baseline

	aside    bool          // not counted, see sort
	held     float64       // seconds that a place is held of late, whatever comes of the request
	took     time.Duration // the last one
	heard    time.Time     // when the last one came back, or was given if none was out
	measured time.Time     // when the last one came back that did all the usual work
}

// control is all decisions of a Pacer. It knows no clock, no goroutines and no locks.
type control struct {
	limiter limiter
	gate    gate
	dips    dips
	queues  []*queue

	inFlight   int
	counted    int   // of those, in lanes that are not set aside
	asideLanes int   // how many are
	given      int64 // places given so far
	joined     int64 // number of the last place that was given while others were out
	last       time.Time
	origin     time.Time // of the times at which lanes are looked at
	rate       rate
	next       int // index into queues, where to begin to look
}

func newControl(options Options, random func() float64) control {
	return control{
		limiter: newLimiter(float64(options.MaxConcurrent), options.Unpaced),
		gate:    newGate(options.MaxPerSecond, random),
	}
}

func (c *control) enqueue(t *turn) {
	q := t.queue
	if len(q.waiting) == 0 && q.inFlight == 0 {
		q.spent = max(q.spent, c.leastSpent())
	}
	q.waiting = append(q.waiting, t)
}

// leastSpent is where a lane begins that has nothing to do with what others spent before it came. Those set aside spend less than the others.
func (c *control) leastSpent() time.Duration {
	var least time.Duration
	found := false
	for _, q := range c.queues {
		if busy := len(q.waiting) > 0 || q.inFlight > 0; busy && !q.aside && (!found || q.spent < least) {
			least, found = q.spent, true
		}
	}
	return least
}

// forget removes t if it still waits.
func (c *control) forget(t *turn) bool {
	i := slices.Index(t.queue.waiting, t)
	if i < 0 {
		return t.refused
	}
	t.queue.waiting = slices.Delete(t.queue.waiting, i, i+1)
	return true
}

// dispatch gives places to those who wait. It returns when it is to be called again if nothing happens before; zero if
// only a release can help.
func (c *control) dispatch(now time.Time) time.Time {
	for {
		again := c.sort(now)
		if !slices.ContainsFunc(c.queues, func(q *queue) bool { return len(q.waiting) > 0 }) {
			return time.Time{}
		}
		if idle := c.inFlight == 0 && now.Sub(c.last) > idleAfter; idle && !c.limiter.fixed {
			c.limiter.restart(c.given)
		}
		if until, open := c.gate.admit(now); !open {
			return until
		}
		q, until := c.choose(now)
		if q == nil {
			return earlier(until, again)
		}
		c.give(q, now)
	}
}

// choose picks the lane that gets the next place: one that is set aside if its turn has come, or else one of the others if the limit
// leaves a place. If there is none it says until when.
func (c *control) choose(now time.Time) (*queue, time.Time) {
	var until time.Time
	full := c.inFlight >= int(c.limiter.max)
	if q := c.poorest(now, func(q *queue) bool {
		if !q.aside || full {
			return false
		}
		from, open := c.admitAside(q, now)
		if !open {
			until = earlier(until, from)
		}
		return open
	}); q != nil {
		return q, time.Time{}
	}
	if q := c.poorest(now, func(q *queue) bool { return !q.aside }); q != nil {
		from, open := c.limiter.admit(c.limit(), c.counted, now)
		if open && !full {
			return q, time.Time{}
		}
		until = earlier(until, from)
	}
	return nil, until
}

// poorest is the lane that spent least, of those that wait and may have a place.
func (c *control) poorest(now time.Time, may func(*queue) bool) *queue {
	var chosen *queue
	var least time.Duration
	for i := range c.queues {
		q := c.queues[(c.next+i)%len(c.queues)]
		if len(q.waiting) == 0 || !may(q) {
			continue
		}
		if cost := q.spent + time.Duration(q.inFlight)*q.takes(now); chosen == nil || cost < least {
			chosen, least = q, cost
		}
	}
	return chosen
}

func (c *control) give(q *queue, now time.Time) {
	t := q.waiting[0]
	q.waiting[0] = nil
	q.waiting = q.waiting[1:]
	c.next = (slices.Index(c.queues, q) + 1) % len(c.queues)
	c.given++
	t.began, t.number, t.together, t.dip = now, c.given, c.counted > 0, c.dips.on
	if q.inFlight == 0 {
		q.heard = now
	}
	q.inFlight++
	c.inFlight++
	c.gate.taken(t.number)
	if q.aside {
		t.together = true
		q.spent = max(q.spent, c.leastSpent()) // nor has it anything to make up for when it is taken back
	} else {
		if t.together {
			c.joined = t.number // nor is any of the others alone
		}
		c.counted++
		c.limiter.taken(c.limit(), c.counted, now)
	}
	close(t.given)
}

// limit is how many requests there may be now.
func (c *control) limit() float64 {
	if c.dips.on {
		return min(c.limiter.limit, 1)
	}
	return c.limiter.limit
}

func (c *control) release(t *turn, result Result, now time.Time) {
	if t.over || t.number == 0 {
		return
	}
	t.over = true
	q, took := t.queue, max(now.Sub(t.began), 0)
	if !q.aside {
		c.limiter.vacated(c.limit(), c.counted, now)
		c.counted--
	}
	q.inFlight--
	q.spent += took
	q.heard, q.took = now, took
	c.inFlight--
	c.last = now
	if result.Signal == OK || result.Signal == Overloaded {
		q.held = lately(q.held, took)
	}
	switch result.Signal {
	case OK:
		c.gate.answered()
		if result.Latency > 0 {
			c.learn(t, result.Latency, now)
		}
	case Overloaded:
		c.gate.answered()
		if q.aside && took > asideAfter && result.RetryAfter == 0 {
			break // a timeout, where requests of others do not hang
		}
		c.gate.refused(result.RetryAfter, now)
		c.limiter.refused(t.number, c.given)
	case Unreachable:
		c.gate.lost(t.number, now)
		c.limiter.restart(c.given)
	case Abandoned:
		c.gate.abandoned(t.number)
		return
	}
	c.rate.count(now)
	c.dip(now)
}

// learn takes the latency as that of a request alone, or as one of many.
func (c *control) learn(t *turn, latency time.Duration, now time.Time) {
	best := &t.queue.best
	best.recent, t.queue.measured = lately(best.recent, latency), now
	if c.limiter.fixed {
		c.limiter.observe(1, t.number, c.given, now)
		return
	}
	if t.queue.aside {
		return // it says nothing about what the server has to do for others
	}
	if alone := !t.together && c.joined < t.number; alone {
		best.learn(latency, now)
		c.dips.alone++
	}
	if !best.known() {
		return
	}
	if !c.dips.on && !t.dip {
		c.limiter.observe(best.ratio(latency), t.number, c.given, now)
	}
}

// dip begins and ends dips. At a limit of one or less every request is alone, and none is needed.
func (c *control) dip(now time.Time) {
	if c.limiter.fixed {
		return
	}
	c.dips.learning = slices.ContainsFunc(c.queues, func(q *queue) bool { return !q.aside && !q.best.known() && q.best.recent > 0 })
	if c.dips.end(now) {
		c.limiter.discard(c.given)
	} else if c.limiter.limit > 1 {
		c.dips.begin(now)
	}
}
