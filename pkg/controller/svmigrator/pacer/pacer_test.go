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
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func acquire(t *testing.T, l *Lane) *Permit {
	t.Helper()
	permit, err := l.Acquire(t.Context())
	if err != nil {
		t.Fatalf("acquiring a permit: %v", err)
	}
	return permit
}

func TestAcquireWaitsForTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{})
		l := p.Lane()
		asked := time.Now()
		acquire(t, l).Release(Result{Signal: Overloaded, RetryAfter: 3 * time.Second})
		acquire(t, l).Release(Result{})
		if got := time.Since(asked); got != 3*time.Second {
			t.Errorf("a permit after %v", got)
		}
		if s := p.Snapshot(); s.InFlight != 0 {
			t.Errorf("%+v", s)
		}
	})
}

func TestAProbeThatIsAbandonedIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{})
		l := p.Lane()
		for _, signal := range []Signal{Unreachable, Abandoned, OK} {
			acquire(t, l).Release(Result{Signal: signal})
			if away := !p.scheduler.gate.nextProbe.IsZero(); away != (signal != OK) {
				t.Errorf("after signal %d no server can be reached: %t", signal, away)
			}
		}
	})
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("the migration was deleted")
		p := New(Options{})
		l, other := p.Lane(), p.Lane()
		permit := acquire(t, l)
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		for range 2 { // the second Acquire comes after the end
			if got, err := l.Acquire(ctx); !errors.Is(err, cause) || got != nil {
				t.Errorf("got %v, %v", got, err)
			}
		}
		permit.Release(Result{})
		permit.Release(Result{Signal: Unreachable}) // only the first counts
		acquire(t, other).Release(Result{})
		if s := p.Snapshot(); s.InFlight != 0 || !p.scheduler.gate.nextProbe.IsZero() {
			t.Errorf("%+v, and the next probe is at %v", s, p.scheduler.gate.nextProbe)
		}
	})
}

// TestNoPermitIsLost lets many workers come, go, give up and fail at once on the real clock.
func TestNoPermitIsLost(t *testing.T) {
	const workers, rounds, most = 48, 200, 5
	p := New(Options{MaxConcurrent: most, Unpaced: true})
	lanes := []*Lane{p.Lane(), p.Lane(), p.Lane()}
	var out, failed atomic.Int64
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			for round := range rounds {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(round%7+1)*100*time.Microsecond)
				if permit, err := lanes[worker%len(lanes)].Acquire(ctx); err == nil {
					if out.Add(1) > most {
						failed.Add(1)
					}
					out.Add(-1)
					permit.Release(Result{Signal: []Signal{OK, OK, Abandoned}[(round+worker)%3], Latency: time.Millisecond})
				}
				cancel()
			}
		})
	}
	all.Wait()
	if failed.Load() > 0 {
		t.Errorf("more than %d permits were out", most)
	}
	if s := p.Snapshot(); s.InFlight != 0 {
		t.Errorf("%+v", s)
	}
	acquire(t, p.Lane()).Release(Result{})
}
