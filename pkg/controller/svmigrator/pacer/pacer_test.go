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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	testingclock "k8s.io/utils/clock/testing"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

func newFake(options Options) (*Pacer, *testingclock.FakeClock) {
	fake := testingclock.NewFakeClock(time.Unix(1e9, 0))
	options.Clock = fake
	return New(options), fake
}

func acquire(t *testing.T, l *Lane) *Place {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	place, err := l.Acquire(ctx)
	if err != nil {
		t.Fatalf("acquiring a place: %v", err)
	}
	return place
}

// outcome is the end of an Acquire that had to wait.
type outcome struct {
	place *Place
	err   error
}

// wait begins to acquire a place, and returns when it waits.
func wait(t *testing.T, ctx context.Context, l *Lane) <-chan outcome {
	t.Helper()
	before := l.pacer.State().Waiting
	ended := make(chan outcome, 1)
	go func() {
		place, err := l.Acquire(ctx)
		ended <- outcome{place, err}
	}()
	eventually(t, "somebody waits", func() bool { return l.pacer.State().Waiting > before })
	return ended
}

func receive(t *testing.T, from <-chan outcome) outcome {
	t.Helper()
	select {
	case o := <-from:
		return o
	case <-time.After(patience):
		t.Fatal("nothing happened")
		return outcome{}
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); {
		if time.Now().After(deadline) {
			t.Fatalf("it never came true that %s", what)
		}
		<-time.After(time.Millisecond)
	}
}

func TestARestingPlaceIsGivenToTheNext(t *testing.T) {
	p, _ := newFake(Options{})
	l := p.Lane()
	first := acquire(t, l)
	second := wait(t, t.Context(), l)
	first.Release(Result{})
	if o := receive(t, second); o.err != nil {
		t.Fatal(o.err)
	}
	if s := p.State(); s.InFlight != 1 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
}

func TestWaitsForTheClock(t *testing.T) {
	p, fake := newFake(Options{})
	l := p.Lane()
	acquire(t, l).Release(Result{Signal: Overloaded, RetryAfter: 3 * time.Second})
	if s := p.State(); s.PausedFor != Asked || !s.PausedUntil.Equal(fake.Now().Add(3*time.Second)) {
		t.Errorf("%+v", s)
	}
	next := wait(t, t.Context(), l)
	fake.Step(2 * time.Second)
	if s := p.State(); s.Waiting != 1 {
		t.Errorf("nobody waits after two of three seconds: %+v", s)
	}
	fake.Step(time.Second)
	if o := receive(t, next); o.err != nil {
		t.Fatal(o.err)
	}
	if s := p.State(); s.PausedFor != "" || !s.PausedUntil.IsZero() {
		t.Errorf("%+v", s)
	}
}

func TestProbesAnUnreachableServer(t *testing.T) {
	p, fake := newFake(Options{MaxConcurrent: 8, Unpaced: true})
	l := p.Lane()
	first, second := acquire(t, l), acquire(t, l)
	first.Release(Result{Signal: Unreachable})
	until := p.State().PausedUntil
	if got := until.Sub(fake.Now()); got < firstProbeAfter/2 || got > 2*firstProbeAfter {
		t.Errorf("the first probe is after %v", got)
	}
	second.Release(Result{Signal: Unreachable})
	if s := p.State(); s.PausedFor != Lost || !s.PausedUntil.Equal(until) {
		t.Errorf("a request from before the outage put off the probe: %+v", s)
	}
	probe, other := wait(t, t.Context(), l), wait(t, t.Context(), l)
	fake.Step(until.Sub(fake.Now()))
	eventually(t, "a probe is on its way", func() bool { return p.State().InFlight == 1 })
	fake.Step(time.Hour)
	if s := p.State(); s.InFlight != 1 {
		t.Errorf("there is more than a probe: %+v", s)
	}
	select {
	case o := <-probe:
		o.place.Release(Result{})
		o = receive(t, other)
		o.place.Release(Result{})
	case o := <-other:
		o.place.Release(Result{})
		o = receive(t, probe)
		o.place.Release(Result{})
	}
	if s := p.State(); s.PausedFor != "" || s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	p, _ := newFake(Options{})
	l := p.Lane()
	place := acquire(t, l)
	cause := errors.New("the migration was deleted")
	ctx, cancel := context.WithCancelCause(t.Context())
	waiting := wait(t, ctx, l)
	cancel(cause)
	if o := receive(t, waiting); !errors.Is(o.err, cause) || o.place != nil {
		t.Errorf("got %v, %v", o.place, o.err)
	}
	if _, err := l.Acquire(ctx); !errors.Is(err, cause) {
		t.Errorf("a context that ended gets a place: %v", err)
	}
	place.Release(Result{})
	if s := p.State(); s.InFlight != 0 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
	acquire(t, l).Release(Result{})
}

func TestClose(t *testing.T) {
	p, _ := newFake(Options{})
	l, other := p.Lane(), p.Lane()
	place := acquire(t, l)
	waiting, unaffected := wait(t, t.Context(), l), wait(t, t.Context(), other)
	l.Close()
	if o := receive(t, waiting); !errors.Is(o.err, ErrClosed) {
		t.Errorf("got %v", o.err)
	}
	if _, err := l.Acquire(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	place.Release(Result{})
	if o := receive(t, unaffected); o.err != nil {
		t.Error(o.err)
	}
	l.Close()
}

func TestOnlyTheFirstReleaseCounts(t *testing.T) {
	p, _ := newFake(Options{})
	place := acquire(t, p.Lane())
	place.Release(Result{})
	place.Release(Result{Signal: Unreachable})
	if s := p.State(); s.InFlight != 0 || s.PausedFor != "" {
		t.Errorf("%+v", s)
	}
}

func TestLatencyIsLearned(t *testing.T) {
	p, fake := newFake(Options{})
	l := p.Lane()
	for range 100 {
		place := acquire(t, l)
		fake.Step(20 * time.Millisecond)
		place.Release(Result{Latency: 20 * time.Millisecond})
	}
	if now, alone := l.Latency(); now != 20*time.Millisecond || alone != 20*time.Millisecond {
		t.Errorf("now %v, alone %v", now, alone)
	}
	if s := p.State(); s.PerSecond < 10 || s.PerSecond > 50 {
		t.Errorf("%.1f requests a second, not fifty", s.PerSecond)
	}
}

// TestNoPlaceIsLost lets many workers come, go, give up and fail at once on the real clock.
func TestNoPlaceIsLost(t *testing.T) {
	const lanes, workers, rounds, most = 3, 16, 200, 5
	p := New(Options{MaxConcurrent: most, Unpaced: true})
	var out, peak atomic.Int64
	var all sync.WaitGroup
	for i := range lanes {
		l := p.Lane()
		var group sync.WaitGroup
		for worker := range workers {
			group.Go(func() {
				for round := range rounds {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(round%7+1)*100*time.Microsecond)
					place, err := l.Acquire(ctx)
					if err == nil {
						now := out.Add(1)
						for old := peak.Load(); now > old && !peak.CompareAndSwap(old, now); old = peak.Load() {
						}
						out.Add(-1)
						place.Release(Result{Signal: []Signal{OK, OK, Abandoned}[(round+worker)%3], Latency: time.Millisecond})
					}
					cancel()
				}
			})
		}
		all.Go(func() {
			group.Wait()
			if i == 0 {
				l.Close()
			}
		})
	}
	all.Wait()
	if got := peak.Load(); got > most {
		t.Errorf("%d places were out at a time", got)
	}
	if s := p.State(); s.InFlight != 0 || s.Waiting != 0 {
		t.Errorf("%+v", s)
	}
	acquire(t, p.Lane()).Release(Result{})
}
