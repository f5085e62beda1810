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
	"time"
)

const (
	// A lane is set aside while its requests take so many times as long as those of the quickest lane, and longer than a server
	// that is merely busy takes. It is taken back at half of that.
	asideTimes = 16
	asideAfter = 250 * time.Millisecond
	// Lanes set aside have so many places together for each one of the limit, and for each one of the most there may be. The first keeps
	// them to the server's pace, if it is the server that is slow with them; the second leaves places for the others.
	asideOfLimit = 0.5
	asideOfMost  = 0.1
	// asideRest bounds the pause after a request that hung: it is to be found out that they hang no longer.
	asideRest = time.Minute
	// asideLook is how exactly it is known when a lane is to be set aside. Otherwise there would be a new alarm after each request.
	asideLook = 100 * time.Millisecond
)

// silence is for how long nothing has come back of what is out.
func (q *queue) silence(now time.Time) time.Duration {
	if q.inFlight == 0 {
		return 0
	}
	return now.Sub(q.heard)
}

// takes is how long a place is held, as far as is known. That requests hang is known before they come back.
func (q *queue) takes(now time.Time) time.Duration {
	return max(time.Duration(q.held*float64(time.Second)), q.silence(now))
}

// bound is what takes is compared with.
func (q *queue) bound(quickest time.Duration) time.Duration {
	bound := max(asideTimes*quickest, asideAfter)
	if q.aside {
		bound /= 2
	}
	return bound
}

// sort sets lanes aside and takes them back. It returns when the next one may be due.
func (c *control) sort(now time.Time) (again time.Time) {
	quickest := c.quickest(now)
	c.asideLanes = 0
	for _, q := range c.queues {
		if aside := quickest > 0 && q.takes(now) > q.bound(quickest); aside != q.aside {
			c.move(q, aside, now)
		}
		if q.aside {
			c.asideLanes++
		} else if quickest > 0 && q.inFlight > 0 {
			again = earlier(again, c.rounded(q.heard.Add(q.bound(quickest))))
		}
	}
	return again
}

// rounded is the next time at which it is looked at, by a clock that nobody sets.
func (c *control) rounded(at time.Time) time.Time {
	if c.origin.IsZero() {
		c.origin = at
	}
	return c.origin.Add(at.Sub(c.origin).Truncate(asideLook) + asideLook)
}

// quickest is how long requests take in the lane where they take least; zero if nobody is to be set aside. Only what was
// measured lately counts, and of that only requests that did their work: a denial is quick.
func (c *control) quickest(now time.Time) time.Duration {
	var least time.Duration
	if c.limiter.fixed || len(c.queues) < 2 {
		return 0
	}
	for _, q := range c.queues {
		if q.measured.IsZero() || now.Sub(q.measured) > idleAfter {
			continue
		}
		if takes := max(q.best.typical(), q.silence(now)); least == 0 || takes < least {
			least = takes
		}
	}
	return least
}

// move sets a lane aside or takes it back, with what is out.
func (c *control) move(q *queue, aside bool, now time.Time) {
	q.aside = aside
	for range q.inFlight {
		if aside {
			c.limiter.vacated(c.limit(), c.counted, now)
			c.counted--
		} else {
			c.counted++
			c.limiter.taken(c.limit(), c.counted, now)
		}
	}
	c.joined = c.given // what is out was alone for a part of its time at most
}

// admitAside is to a lane set aside what the limit is to the others: one at a time, and a pause where its share is less than one.
func (c *control) admitAside(q *queue, now time.Time) (until time.Time, open bool) {
	if q.inFlight > 0 {
		return time.Time{}, false
	}
	share := min(c.limiter.limit*asideOfLimit, c.limiter.max*asideOfMost) / float64(c.asideLanes)
	rest := q.took.Seconds() * (1/min(share, 1) - 1)
	until = q.heard.Add(min(time.Duration(rest*float64(time.Second)), asideRest))
	return until, !now.Before(until)
}

// earlier is the earlier time of those that are not zero.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
