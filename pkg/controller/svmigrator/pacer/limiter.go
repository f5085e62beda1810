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
	"math"
	"slices"
	"time"
)

const (
	startLimit = 1.0
	// floorLimit keeps a migration going on a server that is slow for good, and lets it find out soon that it is slow no longer: a fifth of
	// the time.
	floorLimit = 0.2
	// ownSlowdown is how many times as long as alone requests may take for each other's sake, and othersSlowdown for the sake of others. The
	// first bounds how many there are at a time; by the second, even one at a time is too much.
	ownSlowdown    = 1.1
	othersSlowdown = 1.5
	// After so many requests in a row that took so many times as long as alone, nothing more is waited for.
	panicSlowdown = 3
	panicRequests = 8
	// The limit changes once in a window of so many requests and so much time, and at most by these factors. The time is longer than a server takes to
	// collect its garbage, when everything takes twice as long and pauses help nobody.
	windowRequests = 16
	windowTime     = 500 * time.Millisecond
	climbFactor    = 2
	fallFactor     = 0.5
	// refusedFactor is the fall after a refusal.
	refusedFactor = 0.5
	// burst is how many requests are sent before a rest that is owed is taken. After a rest everything is cold, and a request takes half
	// as long again on a server that has nothing else to do: who rests after each takes that for others' load, and rests more.
	burst = windowRequests
	// maxRest bounds the pause between requests: a request that timed out would make it minutes.
	maxRest = 2 * time.Second
	// idleAfter is when what was learned about the limit is not true anymore.
	idleAfter = 30 * time.Second
)

// limiter is how many requests there may be at a time: a real number, of which the fraction says for which share of the time there
// may be one more.
type limiter struct {
	limit, max float64
	fixed      bool
	starting   bool // the limit was never too high yet: it is doubled

	changed int64 // number of the last place given before the limit changed: what was sent then says nothing about the new one
	window  []float64
	opened  time.Time
	slow    int  // requests in a row
	scarce  bool // somebody had to wait because of the limit since the last change

	topTaken  time.Time     // since when there are as many requests as there may be
	restUntil time.Time     // until when there must be one less
	owed      time.Duration // rest that is not taken yet
	sent      int           // since the last rest
}

func newLimiter(most float64, fixed bool) limiter {
	l := limiter{limit: startLimit, max: most, fixed: fixed, starting: true}
	if fixed {
		l.limit = most
	}
	return l
}

// slots splits a limit into how many requests there may be at a time, and the share of the time for the last of them.
func slots(limit float64) (n int, share float64) {
	n = max(int(math.Ceil(limit)), 1)
	return n, limit - float64(n-1)
}

func (l *limiter) admit(limit float64, inFlight int, now time.Time) (until time.Time, open bool) {
	n, _ := slots(limit)
	if inFlight < n-1 {
		return time.Time{}, true
	}
	if inFlight >= n {
		l.scarce = true
		return time.Time{}, false
	}
	if now.Before(l.restUntil) {
		l.scarce = true
		return l.restUntil, false
	}
	return time.Time{}, true
}

// taken and vacated are told before how many requests there are changes, or after, so that both name the larger number.
func (l *limiter) taken(limit float64, inFlight int, now time.Time) {
	if n, _ := slots(limit); inFlight == n {
		l.topTaken = now
	}
	l.sent++
}

func (l *limiter) vacated(limit float64, inFlight int, now time.Time) {
	n, share := slots(limit)
	if inFlight != n {
		return
	}
	rest := float64(now.Sub(l.topTaken)) * (1/share - 1)
	l.owed += time.Duration(min(rest, float64(maxRest)))
	if n > 1 || l.sent >= burst || l.owed >= maxRest {
		l.restUntil = now.Add(min(l.owed, maxRest))
		l.owed, l.sent = 0, 0
	}
}

// observe learns from one request that took slowdown times as long as one alone. given is the number of the last place that was given.
func (l *limiter) observe(slowdown float64, number, given int64, now time.Time) {
	if number <= l.changed {
		return
	}
	if len(l.window) == 0 {
		l.opened = now
	}
	l.window = append(l.window, slowdown)
	if slowdown < panicSlowdown {
		l.slow = 0
	} else if l.slow++; l.slow >= panicRequests && !l.fixed {
		l.starting = false
		l.set(l.limit*fallFactor, given)
		return
	}
	if n, _ := slots(l.limit); len(l.window) >= max(windowRequests, n) && now.Sub(l.opened) >= windowTime {
		l.set(l.next(median(l.window)), given)
	}
}

// next is the limit that follows from a slowdown.
func (l *limiter) next(slowdown float64) float64 {
	if l.fixed {
		return l.limit * climbFactor // back to where it was before a refusal
	}
	own, others := ownSlowdown/slowdown, othersSlowdown/slowdown
	if l.starting = l.starting && own >= 1; l.starting {
		own = climbFactor
	}
	// Below one at a time it is not our own requests that slow each other down, and nothing is gained by fewer.
	next := max(l.limit*own, min(l.limit*others, 1))
	next = min(max(next, l.limit*fallFactor), l.limit*climbFactor)
	if !l.scarce {
		next = min(next, l.limit)
	}
	return next
}

// refused makes the limit fall once for all requests that were sent before it fell.
func (l *limiter) refused(number, given int64) {
	if number > l.changed {
		l.starting = false
		l.set(l.limit*refusedFactor, given)
	}
}

// restart begins slowly again.
func (l *limiter) restart(given int64) {
	l.starting = true
	l.set(min(l.limit, startLimit), given)
}

func (l *limiter) set(limit float64, given int64) {
	l.limit = min(max(limit, floorLimit), l.max)
	l.discard(given)
}

// discard forgets what was observed about the present limit.
func (l *limiter) discard(given int64) {
	l.changed = given
	l.window, l.slow = l.window[:0], 0
	l.scarce = false
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}
