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

// oneAtATime is what one rewrite after the other does on a server that nobody else uses.
var oneAtATime = 1 / (work + away).Seconds()

func TestAQuietServerIsUsed(t *testing.T) {
	for cores, atLeast := range map[int]float64{1: 0.9, 2: 1.4, 4: 2.5, 16: 5} {
		t.Run(fmt.Sprintf("%d cores", cores), func(t *testing.T) {
			w := newWorld(t, Options{}, cores)
			m := w.migrate(work, away)
			w.run(30 * time.Second)
			if got := w.rate(30*time.Second, m); got < atLeast*oneAtATime {
				t.Errorf("%.0f objects/s, less than %.0f", got, atLeast*oneAtATime)
			}
		})
	}
}

// TestOthersComeFirstForAnHour has others who only read. It hardly matters whether they are noticed, because sprints
// that are too fast do not go on either.
func TestOthersComeFirstForAnHour(t *testing.T) {
	for _, cores := range []int{1, 2, 4} {
		for name, alone := range map[string]time.Duration{"there from the start": 0, "come later": time.Minute} {
			t.Run(fmt.Sprintf("%d cores, others %s", cores, name), func(t *testing.T) {
				w := newWorld(t, Options{}, cores)
				m := w.migrate(work, away)
				w.run(alone)
				w.others = 0.6 * float64(cores) / otherWork.Seconds()
				w.run(30 * time.Second)
				first := w.rate(time.Minute, m)
				if first < 0.2*oneAtATime || first > 2*oneAtATime {
					t.Errorf("%.0f objects/s beside others", first)
				}
				w.run(longTime)
				if last := w.rate(time.Minute, m); last > 1.2*first {
					t.Errorf("%.0f objects/s at first, %.0f after %v", first, last, longTime)
				}
			})
		}
	}
}

// TestOthersWhoWriteComeFirst wants pauses where requests queue. Otherwise the migration is as fast as without them.
func TestOthersWhoWriteComeFirst(t *testing.T) {
	for _, cores := range []int{1, 2} {
		rate := func(options Options) float64 {
			w := newWorld(t, options, cores)
			m := w.migrate(work, away)
			w.others, w.writers = 0.6*float64(cores)/otherWork.Seconds(), true
			w.run(30 * time.Second)
			return w.rate(time.Minute, m)
		}
		polite, without := rate(Options{}), rate(Options{MaxConcurrent: 1, Unpaced: true})
		if polite > 0.88*without {
			t.Errorf("%d cores: %.0f objects/s beside others who write, %.0f without pauses", cores, polite, without)
		}
	}
}

func TestOthersHardlyFeelIt(t *testing.T) {
	felt := func(migrates bool, options Options) time.Duration {
		w := newWorld(t, options, 4)
		if migrates {
			w.migrate(work, away)
		}
		w.others = 240
		w.run(30 * time.Second)
		return w.tail(time.Minute)
	}
	quiet, paced, unpaced := felt(false, Options{}), felt(true, Options{}), felt(true, Options{Unpaced: true})
	if paced > 3*quiet || unpaced < 10*quiet {
		t.Errorf("the 99th percentile of others is %v, %v with a migration, %v with an unpaced one", quiet, paced, unpaced)
	}
}

func TestClimbsAgainWhenOthersLeave(t *testing.T) {
	w := newWorld(t, Options{}, 4)
	m := w.migrate(work, away)
	w.run(30 * time.Second)
	before := w.rate(30*time.Second, m)
	w.others = 320
	w.run(10 * time.Minute)
	w.others = 0
	w.run(30 * time.Second)
	if after := w.rate(30*time.Second, m); after < 0.8*before {
		t.Errorf("%.0f objects/s before others came, %.0f after they left", before, after)
	}
}

func TestTheLimitStaysWithinItsBounds(t *testing.T) {
	w := newWorld(t, Options{MaxConcurrent: 3}, 64) // dispatch checks that no more than three are out
	w.migrate(work, away)
	w.run(30 * time.Second)
	if got := w.scheduler.limiter.speed; got != 3 {
		t.Errorf("the limit of sprints is %v on a server that nobody else uses", got)
	}
	w.overloaded = true
	w.run(time.Minute)
	if got := w.scheduler.limiter.limit; got != lowestLimit {
		t.Errorf("the limit is %v after a minute of overload", got)
	}
	w.overloaded = false
	w.run(time.Minute)
	if got := w.scheduler.limiter.speed; got != 3 {
		t.Errorf("the limit of sprints is %v a minute after the last overload", got)
	}
}

// TestWritersEndSprints lets others come to a server that has room for them, when sprints have just begun.
func TestWritersEndSprints(t *testing.T) {
	for _, writers := range []bool{false, true} {
		w := newWorld(t, Options{}, 16)
		m := w.migrate(work, away)
		w.run(time.Minute)
		alone := w.rate(time.Minute, m)
		l, left := &w.scheduler.limiter, 0
		for l.sprints < sprintsAfter[2] {
			w.run(time.Millisecond)
		}
		w.others, w.writers = 5*fewWrites, writers
		for end := w.now.Add(3 * time.Second); w.now.Before(end) && !m.lane.pattern.writers.noticed(); {
			left = l.sprints
			w.run(time.Millisecond)
		}
		noticed := m.lane.pattern.writers.noticed()
		if noticed != writers {
			t.Errorf("others who come are noticed by their writes: %t; they write: %t", noticed, writers)
		}
		if noticed && (left == 0 || l.sprints > 0 || l.limit != politeLimit) {
			t.Errorf("others begin to write: %d sprints were left, then %d, and the limit is %v", left, l.sprints, l.limit)
		}
		w.run(time.Minute)
		if beside := w.rate(time.Minute, m); beside < 0.8*alone {
			t.Errorf("%.0f objects/s beside others who need little, who write: %t; %.0f alone", beside, writers, alone)
		}
	}
}

func TestWhatFollowsAPoliteWindow(t *testing.T) {
	for _, tt := range []struct {
		spread  float64
		writers bool
		unknown bool
		sprints int
		faster  bool // than one request at a time, if they are as quick as polite ones
	}{
		{spread: 1.1, sprints: sprintsAfter[1], faster: true},
		{spread: 1.1, writers: true, sprints: sprintsAfter[0], faster: true},
		{spread: 1.3, sprints: sprintsAfter[1], faster: true},
		{spread: 1.3, writers: true},
		{spread: 1.3, unknown: true, sprints: sprintsAfter[0], faster: true},
		{spread: 1.5, sprints: sprintsInDoubt},
		{spread: 1.5, writers: true},
		{spread: 1.5, unknown: true},
	} {
		l := newLimiter(8, false)
		if l.judgePoliteWindow(tt.spread, tt.writers, !tt.writers && !tt.unknown); l.sprints != tt.sprints {
			t.Errorf("%d sprints follow %+v", l.sprints, tt)
		}
		if l.judgeSprint(1); (l.speed > 1) != tt.faster && tt.sprints > 0 {
			t.Errorf("the limit of sprints is %v after one that was as quick as %+v", l.speed, tt)
		}
	}
}

const calm, busy = time.Millisecond, 2 * time.Millisecond

// windows returns a function that lets requests of a lane fill a window. Every second one takes as long as slow, the
// others a millisecond. It returns the limit after that.
func windows(l *limiter) func(p *pattern, slow time.Duration) float64 {
	now := time.Unix(1e9, 0)
	return func(p *pattern, slow time.Duration) float64 {
		for i := range l.judged() {
			latency := time.Millisecond
			if i%2 == 0 {
				latency = slow
			}
			now = now.Add(latency)
			l.observe(p, latency, now, now)
		}
		return l.limit
	}
}

// TestLaneThatBeginsInASprint wants the other lanes to keep their speed.
func TestLaneThatBeginsInASprint(t *testing.T) {
	l := newLimiter(8, false)
	fill, first := windows(&l), &pattern{}
	for fill(first, calm) < 8 {
	}
	if got := fill(&pattern{}, calm); got != 8 {
		t.Errorf("the limit is %v after the first window of another lane", got)
	}
	if got := fill(first, calm); got != 8 {
		t.Errorf("the limit is %v after the next window of the first lane", got)
	}
}

// TestWindowThatIsCalmByChance wants that one calm window beside others who write brings one sprint of one request at a
// time.
func TestWindowThatIsCalmByChance(t *testing.T) {
	l, p := newLimiter(8, false), &pattern{writers: writers{perSecond: 2 * fewWrites}}
	fill := windows(&l)
	judge := func(slow time.Duration) float64 { return fill(p, slow) }
	for range 3 {
		if got := judge(calm); got != 1 {
			t.Fatalf("the limit is %v after a calm window", got)
		}
		if got := judge(calm); got != politeLimit {
			t.Fatalf("the limit is %v after one sprint", got)
		}
		if got := judge(busy); got != politeLimit {
			t.Fatalf("the limit is %v after a window that was not calm", got)
		}
	}
	for _, want := range []float64{1, politeLimit, 2, 3, 5, 8} {
		if got := judge(calm); got != want {
			t.Fatalf("the limit is %v and not %v while nobody else is there", got, want)
		}
	}
}

func TestUnpaced(t *testing.T) {
	w := newWorld(t, Options{MaxConcurrent: 32, Unpaced: true}, 2)
	w.migrate(work, away)
	w.others = 120
	w.run(30 * time.Second)
	if w.scheduler.inFlight != 32 {
		t.Errorf("%d requests are out beside others", w.scheduler.inFlight)
	}
	w.overloaded = true
	w.run(100 * time.Millisecond)
	if got := w.scheduler.limiter.limit; got != 16 {
		t.Errorf("the limit is %v at the beginning of an overload", got)
	}
	w.overloaded = false
	w.run(time.Minute)
	if w.scheduler.inFlight != 32 {
		t.Errorf("%d requests are out a minute after the overload", w.scheduler.inFlight)
	}
}
