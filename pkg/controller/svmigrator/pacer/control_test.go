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
	"fmt"
	"math"
	"testing"
	"time"
)

const (
	// A rewrite of the model keeps a core busy for work, and takes away more besides.
	work = 3 * time.Millisecond
	away = time.Millisecond
)

func TestSettlesNearTheKnee(t *testing.T) {
	for _, cores := range []int{1, 2, 4, 16} {
		t.Run(fmt.Sprintf("%d cores", cores), func(t *testing.T) {
			w := newWorld(t, Options{}, cores)
			m := w.migrate(work, away)
			w.run(8 * time.Second)
			got := w.rate(8*time.Second, m)
			most := float64(cores) / work.Seconds()
			if got < 0.7*most {
				t.Errorf("%.0f objects/s, less than seven tenths of the %.0f that the server can do", got, most)
			}
			if alone := 1 / (work + away).Seconds(); got < alone {
				t.Errorf("%.0f objects/s, less than the %.0f of one at a time", got, alone)
			}
			if limit := w.control.limiter.limit; limit > 2*float64(cores)+1 {
				t.Errorf("the limit is %.1f with %d cores", limit, cores)
			}
		})
	}
}

func TestStartsQuickly(t *testing.T) {
	w := newWorld(t, Options{}, 16)
	w.migrate(work, away)
	w.run(5 * time.Second)
	if limit := w.control.limiter.limit; limit < 12 {
		t.Errorf("the limit is %.1f after five seconds with 16 cores", limit)
	}
}

func TestOthersComeFirst(t *testing.T) {
	const cores, others = 4, 1200 // six tenths of the server
	quiet := newWorld(t, Options{}, cores)
	quiet.others = others
	undisturbed := quiet.tail(10 * time.Second)

	w := newWorld(t, Options{}, cores)
	m := w.migrate(work, away)
	w.run(10 * time.Second)
	free := w.rate(10*time.Second, m)

	w.others = others
	w.run(3 * time.Second)
	if busy := w.rate(10*time.Second, m); busy <= 0 || busy > free/2 {
		t.Errorf("%.0f objects/s beside others, %.0f without", busy, free)
	}
	if felt := w.tail(10 * time.Second); felt > undisturbed*3/2 {
		t.Errorf("others' 99th percentile is %v, and %v without a migration", felt, undisturbed)
	}

	w.others = 0
	w.run(15 * time.Second)
	if again := w.rate(10*time.Second, m); again < 0.8*free {
		t.Errorf("%.0f objects/s after the others left, %.0f before they came", again, free)
	}
}

func TestUnpacedIsFelt(t *testing.T) {
	// What the test above asserts is due to the pacer, not to the model.
	w := newWorld(t, Options{Unpaced: true}, 4)
	w.migrate(work, away)
	w.others = 1200
	w.run(3 * time.Second)
	if felt := w.tail(10 * time.Second); felt < 50*time.Millisecond {
		t.Errorf("others' 99th percentile is only %v", felt)
	}
}

func TestFallsAtOnce(t *testing.T) {
	w := newWorld(t, Options{}, 4)
	w.migrate(work, away)
	w.run(15 * time.Second)
	before := w.control.limiter.limit
	w.server.cores = 1 // somebody else uses the rest
	w.run(windowTime / 2)
	if got := w.control.limiter.limit; got > before*fallFactor {
		t.Errorf("the limit was %.2f, and is %.2f after %v", before, got, windowTime/2)
	}
}

func TestLessThanOneAtATime(t *testing.T) {
	w := newWorld(t, Options{}, 1)
	m := w.migrate(work, away)
	w.run(15 * time.Second)
	w.others = 350 // seven tenths of the server
	w.run(2 * time.Second)
	w.rate(10*time.Second, m)
	if limit := w.control.limiter.limit; limit > 0.5 {
		t.Errorf("the limit is %.2f", limit)
	}
}

func TestGoesOnWhereOthersLeaveNothing(t *testing.T) {
	w := newWorld(t, Options{}, 1)
	m := w.migrate(work, away)
	w.run(10 * time.Second)
	w.others = 490 // almost all that the server can do
	w.run(10 * time.Second)
	if got := w.rate(time.Minute, m); got < 0.5 || got > 60 {
		t.Errorf("%.1f objects/s", got)
	}
}

func TestColdAfterRestIsNotLoad(t *testing.T) {
	w := newWorld(t, Options{}, 2)
	w.server.cold = 2
	m := w.migrate(work, away)
	w.run(10 * time.Second)
	before := w.rate(5*time.Second, m)
	w.others = 900
	w.run(5 * time.Second) // and not for so long that requests are believed to have become dearer
	if limit := w.control.limiter.limit; limit >= 1 {
		t.Fatalf("the limit is %.2f beside others", limit)
	}
	w.others = 0
	w.run(3 * time.Second)
	if after := w.rate(5*time.Second, m); after < 0.8*before {
		t.Errorf("%.0f objects/s after the others left, %.0f before they came", after, before)
	}
}

func TestLearnsThatRequestsBecameDearer(t *testing.T) {
	w := newWorld(t, Options{}, 2)
	m := w.migrate(work, away)
	w.run(10 * time.Second)
	m.work = 3 * work // a webhook was added
	w.run(3 * time.Minute)
	if got, most := w.rate(20*time.Second, m), 2/(3*work).Seconds(); got < most/2 {
		t.Errorf("%.0f objects/s of %.0f that are possible", got, most)
	}
}

func TestLearnsThatRequestsBecameCheaper(t *testing.T) {
	w := newWorld(t, Options{}, 2)
	m := w.migrate(3*work, away)
	w.run(30 * time.Second)
	m.work = work
	w.run(time.Minute)
	if limit := w.control.limiter.limit; limit > 5 {
		t.Errorf("the limit is %.1f: what requests took among each other is taken for the server's best", limit)
	}
}

func TestFewRefusals(t *testing.T) {
	w := newWorld(t, Options{}, 16)
	w.server.most = 2
	m := w.migrate(work, away)
	w.run(20 * time.Second)
	if refused := len(w.sent) - m.done; refused > len(w.sent)/20 {
		t.Errorf("%d of %d requests were refused", refused, len(w.sent))
	}
	if m.done == 0 {
		t.Error("nothing was done")
	}
}

func TestRetryAfterIsHonouredByAll(t *testing.T) {
	w := newWorld(t, Options{}, 4)
	a, b := w.migrate(work, away), w.migrate(2*work, away)
	w.run(10 * time.Second)
	w.server.most, w.server.retryAfter = 1, 7*time.Second
	for first := len(w.sent); w.control.gate.askedUntil.Before(w.now); {
		w.run(time.Millisecond)
		if len(w.sent) > first+10000 {
			t.Fatal("nothing was refused")
		}
	}
	w.server.most = 0
	asked, sent := w.control.gate.askedUntil, len(w.sent)
	if wait := asked.Sub(w.now); wait < 6*time.Second {
		t.Fatalf("everybody waits for %v only", wait)
	}
	w.run(20 * time.Second)
	for _, at := range w.sent[sent:] {
		if at.Before(asked) {
			t.Fatalf("something was sent %v before the server asked for it", asked.Sub(at))
		}
	}
	if len(w.sent) == sent || a.done == 0 || b.done == 0 {
		t.Error("nothing was sent afterwards")
	}
}

func TestOneFallForOneRefusal(t *testing.T) {
	w := newWorld(t, Options{}, 16)
	w.migrate(work, away)
	w.run(5 * time.Second)
	before := w.control.limiter.limit
	if before < 8 {
		t.Fatalf("the limit is %.1f", before)
	}
	w.server.timeout = time.Nanosecond // whatever comes back now was sent at the same limit
	w.run(20 * time.Millisecond)
	if got, want := w.control.limiter.limit, before*refusedFactor; math.Abs(got-want) > 1e-9 {
		t.Errorf("the limit fell from %.2f to %.2f, not to %.2f", before, got, want)
	}
}

func TestOutage(t *testing.T) {
	w := newWorld(t, Options{}, 4)
	m := w.migrate(work, away)
	w.migrate(2*work, away)
	w.run(10 * time.Second)
	before := w.rate(5*time.Second, m)

	w.server.down = true
	sent, most := len(w.sent), int(before/100)+10 // what is sent before the first comes back, and the probes
	w.run(time.Minute)
	if got := len(w.sent) - sent; got < 6 || got > most {
		t.Errorf("%d requests in a minute without a server, %d at most are due", got, most)
	}
	if limit := w.control.limiter.limit; limit > startLimit {
		t.Errorf("it is to begin with %.1f at a time", limit)
	}

	w.server.down = false
	w.run(lastProbeAfter + 10*time.Second)
	if after := w.rate(5*time.Second, m); after < 0.8*before {
		t.Errorf("%.0f objects/s after the outage, %.0f before", after, before)
	}
}

func TestProbesOneAtATime(t *testing.T) {
	w := newWorld(t, Options{}, 4)
	w.migrate(work, away)
	w.run(5 * time.Second)
	w.server.down = true
	w.run(time.Second)
	for range 300 {
		w.run(100 * time.Millisecond)
		if w.control.inFlight > 1 {
			t.Fatalf("%d requests are out", w.control.inFlight)
		}
	}
}

func TestLanesShareTheTime(t *testing.T) {
	tests := map[string]struct {
		first, second, firstAway, secondAway time.Duration
		ratio                                float64 // of what the first does to what the second does
	}{
		"the same cost":         {first: work, second: work, firstAway: away, secondAway: away, ratio: 1},
		"five times the cost":   {first: work, second: 5 * work, firstAway: away, secondAway: 5 * away, ratio: 5},
		"one waits for webhook": {first: work, second: work, firstAway: away, secondAway: 77 * away, ratio: 20},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{}, 2)
			a, b := w.migrate(test.first, test.firstAway), w.migrate(test.second, test.secondAway)
			w.run(20 * time.Second)
			if b.done == 0 {
				t.Fatal("the second lane starves")
			}
			if got := float64(a.done) / float64(b.done); got < test.ratio/1.5 || got > test.ratio*1.5 {
				t.Errorf("the first lane rewrote %d objects and the second %d, that is %.1f times, not %.1f", a.done, b.done, got, test.ratio)
			}
		})
	}
}

func TestALaneThatComesLateDoesNotMakeUpForIt(t *testing.T) {
	w := newWorld(t, Options{}, 2)
	a := w.migrate(work, away)
	w.run(20 * time.Second)
	b := w.migrate(work, away)
	before := a.done
	w.run(10 * time.Second)
	if got := a.done - before; got < b.done/2 {
		t.Errorf("the first lane rewrote %d objects since the second came, which rewrote %d", got, b.done)
	}
}

func TestBounds(t *testing.T) {
	t.Run("at a time", func(t *testing.T) {
		// That it is never exceeded is asserted at every step of every world.
		w := newWorld(t, Options{MaxConcurrent: 3}, 64)
		w.migrate(work, away)
		w.run(20 * time.Second)
		if limit := w.control.limiter.limit; limit != 3 {
			t.Errorf("the limit is %.1f, although the server could do more", limit)
		}
	})
	for _, perSecond := range []float64{0.5, 10, 200, 1000} {
		t.Run(fmt.Sprintf("%g a second", perSecond), func(t *testing.T) {
			w := newWorld(t, Options{MaxPerSecond: perSecond}, 64)
			w.migrate(work, away)
			const seconds = 20
			w.run(seconds * time.Second)
			if most := seconds*perSecond + math.Max(1, perSecond*burstSeconds); float64(len(w.sent)) > most || float64(len(w.sent)) < 0.8*most-1 {
				t.Errorf("%d requests in %d s", len(w.sent), seconds)
			}
			for i, first := 0, 0; i < len(w.sent); i++ {
				for w.sent[i].Sub(w.sent[first]) >= time.Second {
					first++
				}
				if got := float64(i - first + 1); got > perSecond+math.Max(1, perSecond*burstSeconds)+1 {
					t.Fatalf("%.0f requests in a second", got)
				}
			}
		})
	}
}

func TestUnpacedFallsAndComesBack(t *testing.T) {
	w := newWorld(t, Options{MaxConcurrent: 32, Unpaced: true}, 2)
	w.migrate(work, away)
	w.run(time.Second)
	if w.control.inFlight != 32 {
		t.Fatalf("%d requests are out", w.control.inFlight)
	}
	w.server.most = 8
	w.run(2 * time.Second)
	if w.control.limiter.limit >= 32 {
		t.Fatal("refusals change nothing")
	}
	w.server.most = 0
	w.run(30 * time.Second)
	if w.control.inFlight != 32 {
		t.Errorf("%d requests are out", w.control.inFlight)
	}
}

func TestDoesNotClimbUnused(t *testing.T) {
	w := newWorld(t, Options{}, 64)
	m := &migration{work: work, away: away}
	w.lanes = append(w.lanes, m)
	w.control.queues = append(w.control.queues, &m.queue)
	for range 4 { // workers
		w.want(m)
	}
	w.dispatch()
	w.run(20 * time.Second)
	if limit := w.control.limiter.limit; limit > 10 {
		t.Errorf("the limit is %.1f with four workers", limit)
	}
}

func TestBeginsSlowlyAfterIdleTime(t *testing.T) {
	w := newWorld(t, Options{}, 16)
	m := w.migrate(work, away)
	w.run(5 * time.Second)
	if w.control.limiter.limit <= startLimit {
		t.Fatalf("the limit is %.1f", w.control.limiter.limit)
	}
	m.ended = true
	m.queue.waiting, m.asked = nil, nil
	w.run(2 * idleAfter)
	w.migrate(work, away)
	if limit := w.control.limiter.limit; limit != startLimit {
		t.Errorf("the limit is %.1f", limit)
	}
}
