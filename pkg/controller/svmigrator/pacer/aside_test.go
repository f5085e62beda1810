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
	"testing"
	"time"
)

// dear is more work than in other tests, so that there are fewer requests.
const dear = 4 * work

func TestASlowLaneHoldsNobodyUp(t *testing.T) {
	const slow, stuck, settle, long = 2 * time.Second, 10 * time.Second, 8 * time.Second, 18 * time.Second
	tests := map[string]struct {
		cores, most, lanes int
		away               time.Duration // what requests of the slow lanes take
		before             time.Duration // for how long they are as quick as the others
		fails              bool
	}{
		"from the start on one core": {cores: 1, lanes: 1, away: slow},
		"from the start on four":     {cores: 4, lanes: 1, away: slow},
		"in the middle on one core":  {cores: 1, lanes: 1, away: slow, before: settle},
		"in the middle on four":      {cores: 4, lanes: 1, away: slow, before: settle},
		"in the middle on eight":     {cores: 8, lanes: 1, away: slow, before: settle},
		"several from the start":     {cores: 4, lanes: 3, away: slow},
		"several in the middle":      {cores: 4, lanes: 3, away: slow, before: settle},
		// What is out when a lane becomes slow has places that others lack until it is back.
		"few places in all":      {cores: 16, most: 8, lanes: 1, away: slow, before: settle - 2*slow},
		"timeouts in the middle": {cores: 4, lanes: 1, away: stuck, before: settle, fails: true},
		"several with timeouts":  {cores: 4, lanes: 3, away: stuck, before: settle, fails: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			alone := newWorld(t, Options{MaxConcurrent: test.most}, test.cores)
			m := alone.migrate(dear, away)
			alone.run(settle)
			free := alone.rate(long, m)

			w := newWorld(t, Options{MaxConcurrent: test.most}, test.cores)
			var slow []*migration
			for range test.lanes {
				slow = append(slow, w.migrate(dear, away))
			}
			m = w.migrate(dear, away)
			w.run(test.before)
			for _, s := range slow {
				s.away, s.fails = test.away, test.fails
			}
			w.run(settle - test.before)
			for _, s := range slow {
				s.tried = 0
			}
			got := w.rate(long, m)
			t.Logf("%.0f objects/s beside slow lanes, %.0f alone, the limit is %.1f", got, free, w.control.limiter.limit)
			if got < 0.8*free {
				t.Errorf("%.0f objects/s beside slow lanes, %.0f alone", got, free)
			}
			for _, s := range slow {
				if s.tried == 0 {
					t.Error("a slow lane does not go on")
				}
			}
		})
	}
}

func TestTimeoutsOfASlowLanePauseNobody(t *testing.T) {
	w, _, slow := besideSlow(t, Options{})
	slow.fails, slow.tried = true, 0
	w.run(10 * time.Second)
	if slow.tried == 0 || !w.control.gate.askedUntil.IsZero() {
		t.Errorf("%d timeouts, and a pause until %v", slow.tried, w.control.gate.askedUntil)
	}
}

// besideSlow is a world with a normal lane and one that is set aside.
func besideSlow(t *testing.T, options Options) (w *world, normal, slow *migration) {
	t.Helper()
	w = newWorld(t, options, 4)
	normal, slow = w.migrate(dear, away), w.migrate(dear, away)
	w.run(5 * time.Second)
	slow.away = 2 * time.Second
	w.run(10 * time.Second)
	if !slow.queue.aside || normal.queue.aside {
		t.Fatal("it is not the slow lane that is set aside")
	}
	return w, normal, slow
}

func TestASlowLaneHasOnePlace(t *testing.T) {
	w, _, slow := besideSlow(t, Options{})
	for range 200 {
		w.run(100 * time.Millisecond)
		if slow.queue.inFlight > 1 {
			t.Fatalf("%d requests of the slow lane are out", slow.queue.inFlight)
		}
	}
}

func TestASlowLaneLeavesTheOthersTheirTime(t *testing.T) {
	w, _, slow := besideSlow(t, Options{MaxConcurrent: 1})
	slow.tried = 0
	w.run(4 * time.Minute)
	// A request takes two seconds, and a pause of nine times that follows.
	if got := slow.tried; got < 9 || got > 15 {
		t.Errorf("%d requests of the slow lane in 240 s, twelve are its share", got)
	}
}

func TestASlowLaneIsTakenBack(t *testing.T) {
	t.Run("when it is as quick as others", func(t *testing.T) {
		w, normal, slow := besideSlow(t, Options{})
		slow.away = away
		for end := w.now.Add(20 * time.Second); slow.queue.aside && w.now.Before(end); {
			w.run(100 * time.Millisecond)
		}
		normal.done, slow.done = 0, 0
		w.run(5 * time.Second) // it does not make up for the time that it was aside
		if got := float64(slow.done) / float64(normal.done); got < 0.67 || got > 1.5 {
			t.Errorf("it does %.2f times as much as the other", got)
		}
	})
	t.Run("when it is the only one", func(t *testing.T) {
		w, normal, slow := besideSlow(t, Options{})
		normal.ended = true
		normal.queue.waiting, normal.asked = nil, nil
		w.control.queues = slices.DeleteFunc(w.control.queues, func(q *queue) bool { return q == &normal.queue })
		w.run(time.Second)
		if slow.queue.inFlight < 2 {
			t.Errorf("%d requests are out", slow.queue.inFlight)
		}
	})
	t.Run("when nothing is heard of the others", func(t *testing.T) {
		w, normal, slow := besideSlow(t, Options{})
		normal.ended = true
		normal.queue.waiting, normal.asked = nil, nil
		w.run(idleAfter / 2)
		if !slow.queue.aside {
			t.Error("it is taken back while the other may only be listing")
		}
		w.run(idleAfter)
		if slow.queue.aside {
			t.Error("a lane that does nothing any more keeps it aside")
		}
	})
}

func TestASlowServerIsNotASlowLane(t *testing.T) {
	t.Run("slow for all at once", func(t *testing.T) {
		w := newWorld(t, Options{}, 4)
		a, b := w.migrate(dear, away), w.migrate(2*dear, away)
		w.run(10 * time.Second)
		before := w.control.limiter.limit
		a.away, b.away = time.Second, time.Second
		w.run(30 * time.Second)
		if limit := w.control.limiter.limit; before < 3 || limit > 1 {
			t.Errorf("the limit was %.2f, and is %.2f", before, limit)
		}
		if a.queue.aside || b.queue.aside {
			t.Error("a lane is set aside, although both take the same")
		}
	})
	t.Run("others come where a lane is set aside", func(t *testing.T) {
		w, _, slow := besideSlow(t, Options{})
		before := w.control.limiter.limit
		w.others = 1600
		w.run(5 * time.Second)
		slow.tried = 0
		w.run(20 * time.Second)
		if slow.tried > 6 {
			t.Errorf("%d requests of the slow lane in 20 s at a limit of %.2f", slow.tried, w.control.limiter.limit)
		}
		if limit := w.control.limiter.limit; limit > before/2 {
			t.Errorf("the limit was %.2f, and is %.2f", before, limit)
		}
	})
}

func TestADenialIsNoMeasure(t *testing.T) {
	w := newWorld(t, Options{}, 4)
	denied, other := w.migrate(work/3, 0), w.migrate(work, 300*time.Millisecond)
	denied.deny = true
	w.run(10 * time.Second)
	if denied.queue.aside || other.queue.aside {
		t.Error("a lane is set aside because another's objects are denied quickly")
	}
}

func TestUnpacedSetsNobodyAside(t *testing.T) {
	w := newWorld(t, Options{MaxConcurrent: 8, Unpaced: true}, 4)
	slow := w.migrate(work, 2*time.Second)
	w.migrate(dear, away)
	w.run(10 * time.Second)
	if w.control.inFlight != 8 || slow.queue.inFlight < 2 {
		t.Errorf("%d requests are out, %d of the slow lane", w.control.inFlight, slow.queue.inFlight)
	}
}
