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
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// DefaultMaxConcurrent is how many requests at a time there are at most if Options do not say.
const DefaultMaxConcurrent = 64

// ErrClosed is why nobody gets a place in a lane that was closed.
var ErrClosed = errors.New("the lane is closed")

// Options are the bounds of a Pacer.
type Options struct {
	// MaxConcurrent is how many requests there are at most at a time; DefaultMaxConcurrent if zero.
	MaxConcurrent int
	// MaxPerSecond is how many requests are begun at most in a second; no limit if zero.
	MaxPerSecond float64
	// Unpaced sends MaxConcurrent at a time however long they take. Refusals, Retry-After and outages slow it down
	// nevertheless.
	Unpaced bool
	// Clock is the real one if nil.
	Clock clock.WithDelayedExecution
}

// Signal is what the end of a request says about the server.
type Signal int

const (
	// OK is any answer that shows a server at work, denials and conflicts among them.
	OK Signal = iota
	// Overloaded is a refusal or a failure for lack of capacity: 429, 503, a timeout on either side.
	Overloaded
	// Unreachable is that there was no server: connections that were refused, reset or never made.
	Unreachable
	// Abandoned says nothing: the request was not sent, or given up by its sender.
	Abandoned
)

// Result says how a request went.
type Result struct {
	Signal Signal
	// Latency is how long the request took. Zero if that says nothing about the next one, for example because the request was
	// denied and did none of the usual work.
	Latency time.Duration
	// RetryAfter is what the server asked for, zero if it did not.
	RetryAfter time.Duration
}

// Pacer hands out places for requests. Its methods, and those of its lanes and places, may be called from any goroutine.
type Pacer struct {
	clock clock.WithDelayedExecution

	mu       sync.Mutex
	control  control
	alarm    clock.Timer
	alarmSet time.Time // zero if no alarm is set
}

// Lane is one migration's share of a Pacer.
type Lane struct {
	pacer *Pacer
	queue queue // guarded by pacer.mu
}

// Place is the right to send one request.
type Place struct {
	lane *Lane
	turn turn // guarded by lane.pacer.mu
}

// New makes a Pacer. It needs no end.
func New(options Options) *Pacer {
	if options.MaxConcurrent <= 0 {
		options.MaxConcurrent = DefaultMaxConcurrent
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Pacer{clock: options.Clock, control: newControl(options, rand.Float64)}
}

// Lane makes a lane for one migration. It is to be closed.
func (p *Pacer) Lane() *Lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &Lane{pacer: p}
	p.control.queues = append(p.control.queues, &l.queue)
	return l
}

// Acquire waits for a place. It fails when ctx ends or the lane is closed.
func (l *Lane) Acquire(ctx context.Context) (*Place, error) {
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	place, err := l.enter()
	if err != nil {
		return nil, err
	}
	select {
	case <-place.turn.given:
	case <-ctx.Done():
		place.leave()
		return nil, context.Cause(ctx)
	}
	if place.turn.refused {
		return nil, ErrClosed
	}
	return place, nil
}

func (l *Lane) enter() (*Place, error) {
	p := l.pacer
	p.mu.Lock()
	defer p.mu.Unlock()
	if l.queue.closed {
		return nil, ErrClosed
	}
	place := &Place{lane: l, turn: turn{queue: &l.queue, given: make(chan struct{})}}
	p.control.enqueue(&place.turn)
	p.dispatch()
	return place, nil
}

// leave gives up a wait, or the place that was given at the same moment.
func (p *Place) leave() {
	pacer := p.lane.pacer
	pacer.mu.Lock()
	defer pacer.mu.Unlock()
	if !pacer.control.forget(&p.turn) {
		pacer.control.release(&p.turn, Result{Signal: Abandoned}, pacer.clock.Now())
	}
	pacer.dispatch()
}

// Release gives the place back and says how the request went. Only the first Release of a place counts.
func (p *Place) Release(result Result) {
	pacer := p.lane.pacer
	pacer.mu.Lock()
	defer pacer.mu.Unlock()
	pacer.control.release(&p.turn, result, pacer.clock.Now())
	pacer.dispatch()
}

// Close ends the lane: those who wait in it fail with ErrClosed. Places that are out are released as usual.
func (l *Lane) Close() {
	p := l.pacer
	p.mu.Lock()
	defer p.mu.Unlock()
	l.queue.closed = true
	for _, t := range l.queue.waiting {
		t.refused = true
		close(t.given)
	}
	l.queue.waiting = nil
	p.control.queues = slices.DeleteFunc(p.control.queues, func(q *queue) bool { return q == &l.queue })
	p.dispatch()
}

// dispatch gives away what can be given away, and sees to it that it is called again when more can.
func (p *Pacer) dispatch() {
	now := p.clock.Now()
	next := p.control.dispatch(now)
	if next.Equal(p.alarmSet) {
		return
	}
	if p.alarm != nil {
		p.alarm.Stop()
		p.alarm = nil
	}
	p.alarmSet = next
	if !next.IsZero() {
		// A fake clock holds its lock while it calls, and could not be asked for the time.
		p.alarm = p.clock.AfterFunc(next.Sub(now), func() { go p.ring(next) })
	}
}

func (p *Pacer) ring(set time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.alarmSet.Equal(set) {
		p.alarm, p.alarmSet = nil, time.Time{}
	}
	p.dispatch()
}
