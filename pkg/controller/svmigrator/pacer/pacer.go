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
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// DefaultMaxConcurrent is the default of Options.MaxConcurrent.
const DefaultMaxConcurrent = 64

// Options are the bounds of a Pacer.
type Options struct {
	// MaxConcurrent is how many requests are out at most at a time. Zero means DefaultMaxConcurrent.
	MaxConcurrent int
	// MaxPerSecond is how many requests begin at most in a second. Zero means without a bound.
	MaxPerSecond float64
	// Unpaced keeps MaxConcurrent requests out whatever their latency. Refusals, Retry-After and outages still slow down
	// the requests.
	Unpaced bool
	// Clock is the clock that the Pacer uses. Nil means the real clock.
	Clock clock.Clock
}

// Signal is what the end of a request says about the server.
type Signal int

const (
	// OK is any answer of a working server, also a denial or a conflict.
	OK Signal = iota
	// Overloaded is a failure for lack of capacity: 429, 503, a timeout on either side.
	Overloaded
	// Unreachable means that no server answered: the connection was refused, reset or never made.
	Unreachable
	// Abandoned says nothing about the server: the request was not sent, or its sender cancelled it.
	Abandoned
)

// Result is what the pacer needs to know about a request that has ended.
type Result struct {
	Signal Signal
	// Latency is how long the request took. It is zero if the API server did not accept it.
	Latency time.Duration
	// Revision is the revision of etcd at which the object was written. It is zero if nothing was written, or if the
	// revision is not known.
	Revision int64
	// RetryAfter is how long the server asked to wait. It is zero if it did not ask. It counts only if the signal is
	// Overloaded.
	RetryAfter time.Duration
}

// Pacer hands out permits for requests. All methods may be called from any goroutine.
type Pacer struct {
	clock clock.Clock

	mu        sync.Mutex
	changed   chan struct{} // closed when those who wait must look again
	scheduler scheduler
}

// Permit is the right to send one request.
type Permit struct {
	lane  *Lane
	began time.Time
}

// New returns a Pacer. It does not have to be stopped.
func New(options Options) *Pacer {
	if options.MaxConcurrent <= 0 {
		options.MaxConcurrent = DefaultMaxConcurrent
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Pacer{clock: options.Clock, changed: make(chan struct{}), scheduler: newScheduler(options)}
}

// Lane makes a lane for one migration. The caller must close it.
func (p *Pacer) Lane() *Lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := &Lane{pacer: p}
	p.scheduler.lanes = append(p.scheduler.lanes, l)
	return l
}

// Acquire waits for a permit. It fails when ctx ends.
func (l *Lane) Acquire(ctx context.Context) (*Permit, error) {
	p := l.pacer
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scheduler.enter(l)
	defer func() {
		l.waiting--
		p.wake() // another lane may be the next one now
	}()
	for {
		now := p.clock.Now()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		permit, until := p.scheduler.tryAcquire(l, now)
		if permit != nil {
			return permit, nil
		}
		p.wait(ctx, until, now)
	}
}

// wait releases the lock, and waits until something has changed, until the given time if that is in the future, or
// until ctx ends.
func (p *Pacer) wait(ctx context.Context, until, now time.Time) {
	changed := p.changed
	p.mu.Unlock()
	defer p.mu.Lock()
	var due <-chan time.Time
	if until.After(now) {
		timer := p.clock.NewTimer(until.Sub(now))
		defer timer.Stop()
		due = timer.C()
	}
	select {
	case <-changed:
	case <-due:
	case <-ctx.Done():
	}
}

// wake makes all callers that wait look again. Usually there is one for each lane.
func (p *Pacer) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// Release gives the permit back with the result of the request. Only the first Release of a permit counts.
func (p *Permit) Release(result Result) {
	pacer := p.lane.pacer
	pacer.mu.Lock()
	defer pacer.mu.Unlock()
	pacer.scheduler.release(p, result, pacer.clock.Now())
	pacer.wake()
}

// Close ends the lane. Nobody may use it any more.
func (l *Lane) Close() {
	p := l.pacer
	p.mu.Lock()
	defer p.mu.Unlock()
	p.scheduler.lanes = slices.DeleteFunc(p.scheduler.lanes, func(other *Lane) bool { return other == l })
	p.wake()
}

// Snapshot is a Pacer at one moment, for metrics.
type Snapshot struct {
	// Limit is how many requests may be out at a time. Below one there is one at a time, with pauses.
	Limit    float64
	InFlight int
	// OthersWrite is how many objects others write in a second to the etcd of a lane, of late.
	OthersWrite float64
}

// Snapshot returns what the Pacer does now.
func (p *Pacer) Snapshot() Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Snapshot{Limit: p.scheduler.limiter.limit, InFlight: p.scheduler.inFlight}
	for _, l := range p.scheduler.lanes {
		s.OthersWrite = max(s.OthersWrite, l.pattern.writers.perSecond)
	}
	return s
}
