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
	"time"
)

// rateOver is over which time rates are measured.
const rateOver = 5 * time.Second

// State is a Pacer at one moment, for metrics and messages.
type State struct {
	// Limit is how many requests there may be at a time now, on average.
	Limit             float64
	InFlight, Waiting int
	// PerSecond is how many requests ended in a second, of late.
	PerSecond float64
	// PausedUntil is before when nothing is sent, and PausedFor why; zero if something may be sent. While servers are unreachable it may have passed: a
	// request is then on its way to find out.
	PausedUntil time.Time
	PausedFor   Reason
}

// State tells how it is going.
func (p *Pacer) State() State {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	s := State{Limit: p.control.limiter.limit, InFlight: p.control.inFlight, PerSecond: p.control.rate.at(now)}
	for _, q := range p.control.queues {
		s.Waiting += len(q.waiting)
	}
	s.PausedUntil, s.PausedFor = p.control.gate.paused(now)
	return s
}

// Latency is how long requests of this lane take now, and how long they take when they are alone; zero while that is unknown.
func (l *Lane) Latency() (now, alone time.Duration) {
	l.pacer.mu.Lock()
	defer l.pacer.mu.Unlock()
	return l.queue.best.typical(), time.Duration(l.queue.best.best * float64(time.Second))
}

// rate counts, and forgets at a steady pace.
type rate struct {
	weight float64
	since  time.Time
}

func (r *rate) count(now time.Time) {
	r.weight = r.decayed(now) + 1
	r.since = now
}

func (r *rate) at(now time.Time) float64 { return r.decayed(now) / rateOver.Seconds() }

func (r *rate) decayed(now time.Time) float64 {
	return r.weight * math.Exp(-max(now.Sub(r.since), 0).Seconds()/rateOver.Seconds())
}
