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
	"testing"
	"time"
)

func TestRetryAfterIsObeyedByAllLanes(t *testing.T) {
	w := newWorld(t, Options{}, 4)
	w.migrate(work, away)
	w.migrate(2*work, away)
	w.run(30 * time.Second)
	w.overloaded, w.retryAfter = true, 7*time.Second
	w.run(100 * time.Millisecond)
	w.overloaded = false
	asked, sent := w.scheduler.gate.askedUntil, len(w.sent)
	if wait := asked.Sub(w.now); wait < 6*time.Second {
		t.Fatalf("everybody waits for %v only", wait)
	}
	w.run(30 * time.Second)
	if len(w.sent) == sent {
		t.Fatal("nothing is sent afterwards")
	}
	if first := w.sent[sent]; first.Before(asked) {
		t.Errorf("something was sent %v before the server asked for it", asked.Sub(first))
	}
}

func TestOneProbeAtATimeInAnOutage(t *testing.T) {
	w := newWorld(t, Options{}, 4)
	m := w.migrate(work, away)
	w.migrate(2*work, away)
	w.run(30 * time.Second)
	before := w.rate(30*time.Second, m)
	w.down = true
	w.run(time.Second)
	sent := len(w.sent)
	for range 600 {
		w.run(100 * time.Millisecond)
		if w.scheduler.inFlight > 1 {
			t.Fatalf("%d requests are out", w.scheduler.inFlight)
		}
	}
	if got := len(w.sent) - sent; got < 4 || got > 8 {
		t.Errorf("%d probes in a minute", got)
	}
	w.down = false
	w.run(time.Minute)
	if after := w.rate(30*time.Second, m); after < 0.8*before {
		t.Errorf("%.0f objects/s before the outage, %.0f after it", before, after)
	}
}

func TestMaxPerSecond(t *testing.T) {
	for _, perSecond := range []float64{0.5, 10, 200, 1000} {
		t.Run(fmt.Sprint(perSecond), func(t *testing.T) {
			w := newWorld(t, Options{MaxPerSecond: perSecond, MaxConcurrent: 32, Unpaced: true}, 64)
			w.migrate(work, away)
			w.run(20 * time.Second)
			most := 20*perSecond + perSecond*lateness.Seconds() + 1
			if got := float64(len(w.sent)); got > most || got < 0.95*most-2 {
				t.Errorf("%v requests in 20 s", got)
			}
			for i := range w.sent {
				j := i + int(perSecond*(1+lateness.Seconds())) + 2
				if j < len(w.sent) && w.sent[j].Sub(w.sent[i]) < time.Second {
					t.Fatalf("%d requests within a second", j-i+1)
				}
			}
		})
	}
}

// TestLateTimers has each request sent a little later than it may be. The rate stays, and no pause is made up for.
func TestLateTimers(t *testing.T) {
	g, start := newGate(100), time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
	now := start
	for range 100 {
		g.sent(nil, now)
		now = g.nextAt.Add(5 * time.Millisecond)
	}
	if took := now.Sub(start); took > time.Second+lateness {
		t.Errorf("100 requests at 100 in a second took %v", took)
	}
	now = now.Add(time.Minute)
	g.sent(nil, now)
	if since := now.Sub(g.nextAt); since > lateness {
		t.Errorf("after a pause the next request was due %v ago", since)
	}
}
