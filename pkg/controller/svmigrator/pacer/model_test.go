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
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

const (
	// A rewrite keeps a core of the model's server busy for work. It takes away more besides.
	work = 15 * time.Millisecond
	away = 5 * time.Millisecond
	// A request of the other clients keeps a core busy for otherWork.
	otherWork = 10 * time.Millisecond
)

// world is a server, its other clients and migrations, in one goroutine and in virtual time. It is the same every time.
type world struct {
	t         *testing.T
	now       time.Time
	events    []event // the next one first
	random    *rand.Rand
	scheduler scheduler
	alarm     time.Time
	lanes     []*migration
	sent      []time.Time // when rewrites were sent

	cores      []time.Time // when each core of the server has done what it has to do
	down       bool
	overloaded bool // rewrites
	retryAfter time.Duration

	others   float64         // requests a second of the other clients
	writers  bool            // these requests write
	felt     []time.Duration // how long they took
	revision int64           // of etcd
}

type event struct {
	at time.Time
	do func()
}

// migration is a lane in which somebody always waits.
type migration struct {
	lane       Lane
	work, away time.Duration
	timesOut   bool
	done       int
}

func newWorld(t *testing.T, options Options, cores int) *world {
	options.MaxConcurrent = cmp.Or(options.MaxConcurrent, DefaultMaxConcurrent)
	w := &world{t: t, now: time.Unix(1e9, 0), random: rand.New(rand.NewPCG(1, 1)), cores: make([]time.Time, cores)}
	w.scheduler = newScheduler(options)
	w.after(0, w.sendOther)
	return w
}

func (w *world) migrate(work, away time.Duration) *migration {
	m := &migration{work: work, away: away}
	w.lanes = append(w.lanes, m)
	w.scheduler.lanes = append(w.scheduler.lanes, &m.lane)
	w.scheduler.enter(&m.lane)
	w.dispatch()
	return m
}

// dispatch sends what gets a permit, and checks that no more is out than may be.
func (w *world) dispatch() {
	var next time.Time
	for i := 0; i < len(w.lanes); i++ {
		permit, until := w.scheduler.tryAcquire(&w.lanes[i].lane, w.now)
		if permit != nil {
			w.send(w.lanes[i], permit)
			i, next = -1, time.Time{} // all are asked again
		} else if until.After(w.now) && (next.IsZero() || until.Before(next)) {
			next = until
		}
	}
	if w.scheduler.inFlight > int(w.scheduler.limiter.most) {
		w.t.Fatalf("%d requests are out, %v are allowed", w.scheduler.inFlight, w.scheduler.limiter.most)
	}
	if !next.IsZero() && !next.Equal(w.alarm) {
		w.alarm = next
		w.after(next.Sub(w.now), func() {
			if w.alarm.Equal(next) { // and no other was set since
				w.dispatch()
			}
		})
	}
}

func (w *world) send(m *migration, p *Permit) {
	w.sent = append(w.sent, w.now)
	var result Result
	took := time.Millisecond
	switch {
	case w.down:
		result.Signal = Unreachable
	case w.overloaded:
		result.Signal, result.RetryAfter = Overloaded, w.retryAfter
	default:
		took = w.serve(m.work) + w.vary(m.away)
		if m.timesOut {
			result.Signal = Overloaded
		}
	}
	w.after(took, func() {
		if result.Signal == OK {
			m.done++
			w.revision++
			result.Revision = w.revision
		}
		result.Latency = took
		w.scheduler.release(p, result, w.now)
		w.dispatch()
	})
}

// serve gives a request to the core that is free first, and returns how long it takes.
func (w *world) serve(work time.Duration) time.Duration {
	core := &w.cores[0]
	for i := range w.cores {
		if w.cores[i].Before(*core) {
			core = &w.cores[i]
		}
	}
	*core = latest(*core, w.now).Add(w.vary(work))
	return core.Sub(w.now)
}

func (w *world) sendOther() {
	if w.others == 0 {
		w.after(10*time.Millisecond, w.sendOther)
		return
	}
	w.felt = append(w.felt, w.serve(otherWork))
	if w.writers {
		w.revision++
	}
	w.after(time.Duration(w.random.ExpFloat64()/w.others*float64(time.Second)), w.sendOther)
}

// vary spreads d a little.
func (w *world) vary(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*w.random.Float64()))
}

func (w *world) after(d time.Duration, do func()) {
	at := w.now.Add(d)
	i := len(w.events)
	for i > 0 && w.events[i-1].at.After(at) {
		i--
	}
	w.events = slices.Insert(w.events, i, event{at, do})
}

// run lets time pass.
func (w *world) run(d time.Duration) {
	end := w.now.Add(d)
	for len(w.events) > 0 && !w.events[0].at.After(end) {
		next := w.events[0]
		w.events = slices.Delete(w.events, 0, 1)
		w.now = next.at
		next.do()
	}
	w.now = end
}

// rate lets time pass and returns how many objects of m were rewritten in a second.
func (w *world) rate(d time.Duration, m *migration) float64 {
	before := m.done
	w.run(d)
	return float64(m.done-before) / d.Seconds()
}

// tail lets time pass and returns the 99th percentile of what the other clients' requests took.
func (w *world) tail(d time.Duration) time.Duration {
	w.felt = nil
	w.run(d)
	slices.Sort(w.felt)
	return w.felt[len(w.felt)*99/100]
}
