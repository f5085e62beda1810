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
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// world is a server with a few cores, its other clients, and migrations that are paced: all in one goroutine, in virtual time, the
// same every time for the same seed.
type world struct {
	t       *testing.T
	now     time.Time
	events  events
	order   int
	random  *rand.Rand
	control control
	alarm   time.Time

	server server
	lanes  []*migration
	sent   []time.Time // when requests of migrations were sent

	// others is how many requests a second other clients send; otherTook is how long they took since it was last emptied.
	others    float64
	otherWork time.Duration
	otherTook []time.Duration
}

// server works on the requests in the order in which they came, one on each core. Besides the work a request takes some time that no core is busy for.
type server struct {
	cores, busy int
	queue       []*job
	most        int // more than this in the queue are refused; zero for no bound
	retryAfter  time.Duration
	down        bool
	timeout     time.Duration // zero for none
	cold        float64       // how many times as long a request takes after nothing was to be done for a moment; zero for none
	idleSince   time.Time
}

type job struct {
	came time.Time
	work time.Duration
	done func(signal Signal)
}

// migration is a lane whose workers always have something to send.
type migration struct {
	queue queue
	asked []*turn // what waits, in order
	work  time.Duration
	away  time.Duration // that a request takes besides the work
	fails bool          // after that time, with a timeout
	deny  bool          // denied, so that nothing is learned from how long it took
	tried int           // requests that came back
	done  int
	ended bool
}

func newWorld(t *testing.T, options Options, cores int) *world {
	t.Helper()
	const seed = 1
	if options.MaxConcurrent == 0 {
		options.MaxConcurrent = DefaultMaxConcurrent
	}
	random := rand.New(rand.NewPCG(seed, seed))
	w := &world{t: t, now: time.Unix(1e9, 0), random: random, server: server{cores: cores}, otherWork: 2 * time.Millisecond}
	w.control = newControl(options, random.Float64)
	w.after(0, w.other)
	return w
}

// migrate begins a migration with many workers.
func (w *world) migrate(work, away time.Duration) *migration {
	m := &migration{work: work, away: away}
	w.lanes = append(w.lanes, m)
	w.control.queues = append(w.control.queues, &m.queue)
	for range 2 * DefaultMaxConcurrent {
		w.want(m)
	}
	w.dispatch()
	return m
}

// want lets one worker ask for a place.
func (w *world) want(m *migration) {
	t := &turn{queue: &m.queue, given: make(chan struct{})}
	m.asked = append(m.asked, t)
	w.control.enqueue(t)
}

func (w *world) dispatch() {
	next := w.control.dispatch(w.now)
	for _, m := range w.lanes {
		for len(m.asked) > 0 && m.asked[0].number != 0 {
			t := m.asked[0]
			m.asked = m.asked[1:]
			w.send(m, t)
		}
	}
	if !next.IsZero() && !next.Equal(w.alarm) {
		w.alarm = next
		w.after(next.Sub(w.now), func() {
			if w.alarm.Equal(next) { // and not set to another time since
				w.alarm = time.Time{}
				w.dispatch()
			}
		})
	}
	w.check()
}

// check is what holds at any moment.
func (w *world) check() {
	total, counted := 0, 0
	for _, m := range w.lanes {
		total += m.queue.inFlight
		if !m.queue.aside {
			counted += m.queue.inFlight
		}
	}
	if counted != w.control.counted {
		w.t.Fatalf("%d places are out in lanes that are not set aside, the control counts %d", counted, w.control.counted)
	}
	if total != w.control.inFlight {
		w.t.Fatalf("%d places are out, the control counts %d", total, w.control.inFlight)
	}
	if most := int(w.control.limiter.max); total > most {
		w.t.Fatalf("%d places are out, %d is the bound", total, most)
	}
	if limit := w.control.limiter.limit; limit < floorLimit || limit > w.control.limiter.max || math.IsNaN(limit) {
		w.t.Fatalf("the limit is %v", limit)
	}
}

func (w *world) send(m *migration, t *turn) {
	w.sent = append(w.sent, w.now)
	began := w.now
	w.serve(w.vary(m.work), func(signal Signal) {
		away := time.Duration(0)
		if signal == OK {
			away = w.vary(m.away)
		}
		w.after(away, func() {
			result := Result{Signal: signal, Latency: w.now.Sub(began)}
			switch {
			case signal == OK && m.fails:
				signal, result = Overloaded, Result{Signal: Overloaded}
			case signal == OK && m.deny:
				result.Latency = 0
			case signal == Overloaded:
				result.RetryAfter = w.server.retryAfter
			}
			m.tried++
			if signal == OK {
				m.done++
			}
			w.control.release(t, result, w.now)
			if !m.ended {
				w.want(m)
			}
			w.dispatch()
		})
	})
}

// other sends a request of other clients, and sees to the next.
func (w *world) other() {
	if w.others <= 0 {
		w.after(10*time.Millisecond, w.other)
		return
	}
	began := w.now
	w.serve(w.vary(w.otherWork), func(Signal) { w.otherTook = append(w.otherTook, w.now.Sub(began)) })
	w.after(time.Duration(w.random.ExpFloat64()/w.others*float64(time.Second)), w.other)
}

func (w *world) serve(work time.Duration, done func(Signal)) {
	s := &w.server
	if s.down {
		w.after(time.Millisecond, func() { done(Unreachable) })
		return
	}
	if s.most > 0 && len(s.queue) >= s.most {
		w.after(time.Millisecond, func() { done(Overloaded) })
		return
	}
	s.queue = append(s.queue, &job{came: w.now, work: work, done: done})
	w.work()
}

func (w *world) work() {
	s := &w.server
	for s.busy < s.cores && len(s.queue) > 0 {
		j := s.queue[0]
		s.queue = s.queue[1:]
		if s.busy == 0 && s.cold > 0 && w.now.Sub(s.idleSince) > 5*time.Millisecond {
			j.work = time.Duration(float64(j.work) * s.cold)
		}
		s.busy++
		w.after(j.work, func() {
			s.busy--
			s.idleSince = w.now
			signal := OK
			if s.timeout > 0 && w.now.Sub(j.came) > s.timeout {
				signal = Overloaded
			}
			j.done(signal)
			w.work()
		})
	}
}

// vary spreads d by some thirty percent, with a long tail.
func (w *world) vary(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.75 + 0.25*w.random.ExpFloat64()))
}

// run lets time pass.
func (w *world) run(d time.Duration) {
	w.t.Helper()
	end := w.now.Add(d)
	for len(w.events) > 0 && !w.events[0].at.After(end) {
		e := w.events.pop()
		w.now = e.at
		e.do()
	}
	w.now = end
}

// rate lets time pass and says how many objects a second were rewritten.
func (w *world) rate(d time.Duration, m *migration) float64 {
	w.t.Helper()
	before := m.done
	w.run(d)
	return float64(m.done-before) / d.Seconds()
}

// tail lets time pass and returns a high quantile of what others' requests took.
func (w *world) tail(d time.Duration) time.Duration {
	w.t.Helper()
	w.otherTook = nil
	w.run(d)
	if len(w.otherTook) == 0 {
		w.t.Fatal("nobody else sent anything")
	}
	slices.Sort(w.otherTook)
	return w.otherTook[len(w.otherTook)*99/100]
}

func (w *world) after(d time.Duration, do func()) {
	w.order++
	w.events.push(event{at: w.now.Add(d), order: w.order, do: do})
}

type event struct {
	at    time.Time
	order int // of events at the same time
	do    func()
}

func (e event) before(other event) bool {
	if e.at.Equal(other.at) {
		return e.order < other.order
	}
	return e.at.Before(other.at)
}

// events is a heap: that of the standard library makes garbage of each event.
type events []event

func (e *events) push(added event) {
	h := append(*e, added)
	*e = h
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if !added.before(h[parent]) {
			break
		}
		h[i], h[parent] = h[parent], added
		i = parent
	}
}

func (e *events) pop() event {
	h := *e
	first, moved := h[0], h[len(h)-1]
	h[len(h)-1] = event{}
	h = h[:len(h)-1]
	*e = h
	i := 0
	for child := 1; child < len(h); child = 2*i + 1 {
		if child+1 < len(h) && h[child+1].before(h[child]) {
			child++
		}
		if !h[child].before(moved) {
			break
		}
		h[i] = h[child]
		i = child
	}
	if len(h) > 0 {
		h[i] = moved
	}
	return first
}
