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

const (
	// A lane is throttled while its requests take longer than slowAfter and slowTimes as long as those of another lane.
	slowAfter = 250 * time.Millisecond
	slowTimes = 10
	// recheckEvery is how often the scheduler looks for lanes whose requests hang while others wait.
	recheckEvery = 100 * time.Millisecond
	// recentWeight is the weight of the latest request in what a lane's requests take.
	recentWeight = 0.2
)

// Lane is one migration's share of a Pacer.
type Lane struct {
	pacer *Pacer
	// All else is guarded by pacer.mu.
	waiting int
	out     []*Permit // the oldest first
	// spent is the time that requests of the lane took. Lanes that wait get equal shares of it.
	spent time.Duration
	// typical is how long a request takes of late.
	typical time.Duration
	pattern pattern
}

func (l *Lane) busy() bool { return l.waiting > 0 || len(l.out) > 0 }

// takes is how long a request of the lane takes. A request that hangs counts before it ends.
func (l *Lane) takes(now time.Time) time.Duration {
	if len(l.out) == 0 {
		return l.typical
	}
	return max(l.typical, now.Sub(l.out[0].began))
}

// cost is what the lane will have spent when its requests have ended.
func (l *Lane) cost(now time.Time) time.Duration {
	return l.spent + time.Duration(len(l.out))*l.takes(now)
}

// scheduler makes all decisions of a Pacer. It knows no clock, no goroutines and no locks.
type scheduler struct {
	limiter  limiter
	gate     gate
	lanes    []*Lane
	inFlight int
	written  int64 // how many objects were written
}

func newScheduler(options Options) scheduler {
	return scheduler{limiter: newLimiter(options.MaxConcurrent, options.Unpaced), gate: newGate(options.MaxPerSecond)}
}

// enter counts one more caller that waits. A lane does not get a larger share because it was idle.
func (s *scheduler) enter(l *Lane) {
	if !l.busy() {
		s.catchUp(l)
	}
	l.waiting++
}

// catchUp makes the share of a lane as large as that of the others.
func (s *scheduler) catchUp(l *Lane) {
	for _, other := range s.lanes {
		if other.busy() {
			l.spent = max(l.spent, other.spent)
		}
	}
}

// throttled reports whether requests of a lane take much longer than those of another lane. Then the server is not what
// is slow. The requests of a throttled lane do not count against the limit, because they would hold up the other lanes.
func (s *scheduler) throttled(l *Lane, now time.Time) bool {
	takes := l.takes(now)
	return !s.limiter.unpaced && takes > slowAfter && slices.ContainsFunc(s.lanes, func(other *Lane) bool {
		return other.busy() && other.typical > 0 && other.takes(now)*slowTimes < takes
	})
}

// tryAcquire gives a permit to a caller that waits in the lane. If it gives none, until is when to try again if nothing
// changes before. It is zero if only a change can help.
func (s *scheduler) tryAcquire(l *Lane, now time.Time) (permit *Permit, until time.Time) {
	if until, open := s.gate.opensAt(now); !open {
		return nil, until
	}
	if s.inFlight >= int(s.limiter.most) {
		return nil, time.Time{}
	}
	next, until := s.next(now)
	if next != l {
		return nil, until
	}
	permit = &Permit{lane: l, began: now}
	l.out = append(l.out, permit)
	s.inFlight++
	s.gate.sent(permit, now)
	return permit, time.Time{}
}

// next returns the lane that gets the next permit: of the lanes that may have one, that is the lane that has spent
// least. If no lane may have one, until is when to try again.
func (s *scheduler) next(now time.Time) (next *Lane, until time.Time) {
	counted := 0
	for _, l := range s.lanes {
		if !s.throttled(l, now) {
			counted += len(l.out)
		}
	}
	until, open := s.limiter.opensAt(counted, now)
	for _, l := range s.lanes {
		may := open
		if s.throttled(l, now) {
			may = len(l.out) == 0
		}
		if may && l.waiting > 0 && (next == nil || l.cost(now) < next.cost(now)) {
			next = l
		}
	}
	if !until.After(now) && len(s.lanes) > 1 {
		until = now.Add(recheckEvery)
	}
	return next, until
}

// release takes a permit back, and learns from the result.
func (s *scheduler) release(p *Permit, result Result, now time.Time) {
	l := p.lane
	i := slices.Index(l.out, p)
	if i < 0 {
		return // released before
	}
	throttled, took := s.throttled(l, now), max(now.Sub(p.began), 0)
	l.out = slices.Delete(l.out, i, i+1)
	s.inFlight--
	if throttled {
		s.catchUp(l) // its time does not count, because it took nothing from the others
	} else {
		l.spent += took
	}
	if result.Signal == Abandoned {
		s.gate.abandoned(p)
		return
	}
	if result.Signal == Unreachable {
		s.gate.lost(p, now)
		s.limiter.restart(s.limiter.limit, now)
		return
	}
	s.gate.answered()
	if result.Revision > 0 {
		s.written++
	}
	l.typical += time.Duration(recentWeight * float64(took-l.typical))
	if result.Signal == Overloaded && (!throttled || result.RetryAfter > 0) {
		s.gate.overloaded(result.RetryAfter, now)
		s.limiter.overloaded(p.began, now)
	}
	if throttled {
		return
	}
	if result.Revision > 0 && l.pattern.writers.count(result.Revision, s.written, s.inFlight, now) {
		s.limiter.endSprints(now)
	}
	s.limiter.rest(took, now)
	if result.Signal == OK && result.Latency > 0 {
		s.limiter.observe(&l.pattern, result.Latency, p.began, now)
	}
}
