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
	"testing"
	"time"
)

func TestLanesShareTheTime(t *testing.T) {
	for name, costs := range map[string]float64{"the same cost": 1, "five times the cost": 5, "fifty times the cost": 50} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{}, 2)
			first := w.migrate(work, away)
			second := w.migrate(time.Duration(costs*float64(work)), time.Duration(costs*float64(away)))
			w.run(time.Minute)
			if got := float64(first.done) / float64(second.done); got < costs/1.5 || got > costs*1.5 {
				t.Errorf("the first lane rewrote %d objects, the second %d", first.done, second.done)
			}
		})
	}
}

func TestALateLaneDoesNotMakeUpForIt(t *testing.T) {
	w := newWorld(t, Options{}, 2)
	first := w.migrate(work, away)
	w.run(20 * time.Second)
	before, second := first.done, w.migrate(work, away)
	w.run(30 * time.Second)
	if got := first.done - before; got < second.done/2 {
		t.Errorf("the first lane rewrote %d objects since the second came, which rewrote %d", got, second.done)
	}
}

func TestAThrottledLaneHoldsNobodyUp(t *testing.T) {
	for name, test := range map[string]struct {
		away     time.Duration
		timesOut bool
	}{
		"a slow webhook": {away: 2 * time.Second},
		"timeouts":       {away: 30 * time.Second, timesOut: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{}, 4)
			m := w.migrate(work, away)
			slow := []*migration{w.migrate(work, away), w.migrate(work, away)}
			w.run(30 * time.Second)
			for _, s := range slow {
				s.away, s.timesOut = test.away, test.timesOut
			}
			w.run(time.Minute)
			if got := w.rate(time.Minute, m); got < oneAtATime {
				t.Errorf("%.0f objects/s beside lanes that hang", got)
			}
			if !w.scheduler.gate.askedUntil.IsZero() {
				t.Error("timeouts of lanes that hang pause the other one")
			}
			for _, s := range slow {
				if len(s.lane.out) != 1 {
					t.Errorf("%d requests of a lane that hangs are out", len(s.lane.out))
				}
				s.away, s.timesOut = away, false
			}
			w.run(time.Minute)
			before, beforeSlow := m.done, slow[0].done
			w.run(30 * time.Second)
			if got, gotSlow := m.done-before, slow[0].done-beforeSlow; gotSlow < got/2 || gotSlow > got*2 {
				t.Errorf("a lane that is quick again rewrote %d objects, another one %d", gotSlow, got)
			}
		})
	}
}

func TestASlowServerIsNotASlowLane(t *testing.T) {
	w := newWorld(t, Options{}, 4)
	first, second := w.migrate(work, away), w.migrate(2*work, away)
	w.run(30 * time.Second)
	first.away, second.away = time.Second, time.Second
	for range 600 {
		w.run(time.Second)
		if l := w.scheduler; l.throttled(&first.lane, w.now) || l.throttled(&second.lane, w.now) {
			t.Fatalf("a lane is throttled: %v, %v", first.lane.typical, second.lane.typical)
		}
	}
}
