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

package svmigrator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// rehearsal is a pass whose requests are answered by a script, in a time of its own.
type rehearsal struct {
	*pass
	clock *clocktesting.FakeClock

	mu    sync.Mutex
	tries map[string]int
	saved []sweep.Position
	told  []*trouble
	// step is how fast time passes.
	step time.Duration
	// crowded says that others wait.
	crowded bool
}

// rehearse makes a pass over objects. answer says what becomes of one at its nth try.
func rehearse(objects int, answer func(name string, n int, now time.Time) attempt) *rehearsal {
	clk := clocktesting.NewFakeClock(noon)
	r := &rehearsal{clock: clk, tries: map[string]int{}, step: 250 * time.Millisecond}
	r.pass = &pass{
		sweep: sweep.New(sweep.Position{}, sweep.Options{MaxDenials: 100}),
		clock: clk,
		lane:  pacer.New(pacer.Options{MaxConcurrent: 100, Unpaced: true, Clock: clk}).Lane(),
		list: func(context.Context, string) (sweep.Chunk, error) {
			chunk := sweep.Chunk{ResourceVersion: "1"}
			for i := range objects {
				chunk.Objects = append(chunk.Objects, &sweep.Object{Name: fmt.Sprintf("object-%02d", i)})
			}
			return chunk, nil
		},
		rewrite: func(_ context.Context, object *sweep.Object) attempt {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.tries[object.Name]++
			a := answer(object.Name, r.tries[object.Name], clk.Now())
			a.object = object
			return a
		},
		save: func(_ context.Context, position sweep.Position) error {
			r.saved = append(r.saved, position)
			return nil
		},
		observed: func(*sweep.Object, attempt) {},
		tell: func(_ context.Context, t *trouble) bool {
			r.told = append(r.told, t)
			return true
		},
		served:     func() bool { return true },
		othersWait: func() bool { return r.crowded },
	}
	return r
}

// play runs the pass, for as long as the script may take.
func (r *rehearsal) play(t *testing.T, within time.Duration) error {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	ended := make(chan error, 1)
	go func() { ended <- r.run(ctx) }()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-ticker.C:
			if r.clock.Since(noon) > within {
				cancel(errStopped)
				return <-ended
			}
			r.clock.Step(r.step)
		}
	}
}

func fine(string, int, time.Time) attempt { return attempt{outcome: sweep.Rewritten} }

func failing(kind failureKind) attempt {
	return attempt{failure: failure{kind: kind, reason: metav1.StatusReasonInternalError, message: "no"}}
}

func TestOneObjectThatFailsIsSetAside(t *testing.T) {
	r := rehearse(20, func(name string, n int, now time.Time) attempt {
		if name == "object-07" {
			return failing(internal)
		}
		return fine(name, n, now)
	})
	if err := r.play(t, time.Hour); err != nil {
		t.Fatal(err)
	}
	last := r.saved[len(r.saved)-1]
	if last.Counts.Rewritten != 19 || last.Counts.Denied != 1 || last.Denied[0].Name != "object-07" || last.Denied[0].Message != "no" {
		t.Errorf("at the end %+v", last)
	}
	if tries, took := r.tries["object-07"], r.clock.Since(noon); tries < failuresToSetAside || took < timeToSetAside || tries > 30 {
		t.Errorf("it was set aside after %d tries in %v", tries, took)
	}
}

func TestManyObjectsThatFailAreSetAside(t *testing.T) {
	r := rehearse(40, func(name string, n int, now time.Time) attempt {
		if name >= "object-10" {
			return failing(internal)
		}
		return fine(name, n, now)
	})
	r.step = 5 * time.Second
	if err := r.play(t, 2*outageAtMost); err != nil {
		t.Fatal(err)
	}
	if last := r.saved[len(r.saved)-1].Counts; last.Denied != 30 {
		t.Errorf("at the end %+v", last)
	}
	if took := r.clock.Since(noon); took < outageAtMost {
		t.Errorf("they were taken for more than an outage after %v", took)
	}
}

func TestObjectsThatFailOnceMoreAreDenied(t *testing.T) {
	r := rehearse(15, func(string, int, time.Time) attempt { return failing(internal) })
	r.last = true
	if err := r.play(t, outageAtMost); err != nil {
		t.Fatal(err)
	}
	if last := r.saved[len(r.saved)-1].Counts; last.Denied != 15 {
		t.Errorf("at the end %+v", last)
	}
}

func TestTellsOfNoProgress(t *testing.T) {
	r := rehearse(20, func(name string, n int, now time.Time) attempt {
		if now.Before(noon.Add(2 * stuckAfter)) {
			return failing(unreachable)
		}
		return fine(name, n, now)
	})
	if err := r.play(t, time.Hour); err != nil {
		t.Fatal(err)
	}
	stuck := slices.IndexFunc(r.told, func(t *trouble) bool { return t != nil && t.stuck })
	if stuck <= 0 || r.told[stuck-1].stuck {
		t.Errorf("it was told to be stuck first at time %d of %d", stuck, len(r.told))
	}
	if r.stuck {
		t.Error("it is still stuck")
	}
}

func TestMakesRoomForOthers(t *testing.T) {
	r := rehearse(20, func(string, int, time.Time) attempt { return failing(unreachable) })
	if err := r.play(t, 2*stuckAfter); !errors.Is(err, errStopped) {
		t.Fatalf("nobody waits, and it ended with %v", err)
	}
	r.crowded = true
	began := r.clock.Now()
	if err := r.play(t, time.Hour); !errors.Is(err, errStuck) {
		t.Fatalf("it ended with %v", err)
	}
	if took := r.clock.Since(began); took < stuckAfter || took > 2*stuckAfter {
		t.Errorf("it made room after %v", took)
	}
}

func TestListsThatCannotGoOn(t *testing.T) {
	for name, test := range map[string]struct {
		answer error
		reason string
		lists  int // at least
	}{
		"no token is taken":             {apierrors.NewBadRequest("continue key is not valid"), migrationv1alpha1.MigrationReasonListRefused, 2 * (maxRestarts + 1)},
		"tokens expire at once":         {apierrors.NewResourceExpired("too old"), migrationv1alpha1.MigrationReasonListRefused, 2 * (maxRestarts + 1)},
		"the permission was taken away": {apierrors.NewForbidden(widgets, "", errors.New("no")), migrationv1alpha1.MigrationReasonListRefused, 5},
	} {
		t.Run(name, func(t *testing.T) {
			r := rehearse(5, fine)
			first, lists := r.list, 0
			r.list = func(ctx context.Context, token string) (sweep.Chunk, error) {
				if lists++; token != "" {
					return sweep.Chunk{}, test.answer
				}
				chunk, err := first(ctx, token)
				chunk.Next = "token"
				return chunk, err
			}
			err := r.play(t, time.Hour)
			var ended *endedError
			if !errors.As(err, &ended) || ended.reason != test.reason || !strings.Contains(ended.message, test.answer.Error()) {
				t.Fatalf("it ended with %v", err)
			}
			if lists < test.lists || lists > 2*(maxRestarts+1) {
				t.Errorf("%d lists, want %d", lists, test.lists)
			}
			for _, told := range r.told {
				if told != nil && told.since.IsZero() {
					t.Errorf("it was told that %s since nobody knows when", told.what)
				}
			}
		})
	}
}

func TestAnOutageIsWaitedFor(t *testing.T) {
	for name, kind := range map[string]failureKind{"of a webhook": internal, "of the network": unreachable, "of credentials": unauthenticated, "by overload": overloaded} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			back := noon.Add(3 * timeToSetAside)
			r := rehearse(20, func(name string, n int, now time.Time) attempt {
				if now.Before(back) {
					return failing(kind)
				}
				return fine(name, n, now)
			})
			if err := r.play(t, 2*time.Hour); err != nil {
				t.Fatal(err)
			}
			if last := r.saved[len(r.saved)-1]; last.Counts.Rewritten != 20 {
				t.Errorf("at the end %+v", last.Counts)
			}
			requests := 0
			for _, n := range r.tries {
				requests += n
			}
			if requests > 20*30 {
				t.Errorf("%d requests for 20 objects in an outage of six minutes", requests)
			}
			if len(r.told) == 0 || r.told[0] == nil || !strings.HasSuffix(r.told[0].what, " objects") || !strings.HasPrefix(r.told[0].example, "object-") || r.told[0].next.IsZero() {
				t.Errorf("nothing of use was told, in %d times", len(r.told))
			}
		})
	}
}

func TestFailuresThatEndAMigration(t *testing.T) {
	for name, test := range map[string]struct {
		kind   failureKind
		served bool
		reason string
		after  time.Duration
	}{
		"it cannot be patched":                   {unsupported, true, migrationv1alpha1.MigrationReasonVerbsNotSupported, 0},
		"it is gone":                             {resourceGone, false, migrationv1alpha1.MigrationReasonResourceNotServed, 0},
		"a server says for long that it is gone": {resourceGone, true, migrationv1alpha1.MigrationReasonResourceNotServed, vanishPatience},
	} {
		t.Run(name, func(t *testing.T) {
			r := rehearse(5, func(string, int, time.Time) attempt { return failing(test.kind) })
			r.served = func() bool { return test.served }
			err := r.play(t, time.Hour)
			var ended *endedError
			if !errors.As(err, &ended) || ended.reason != test.reason {
				t.Fatalf("it ended with %v", err)
			}
			if took := r.clock.Since(noon); took < test.after || took > test.after+maxRetry+time.Second {
				t.Errorf("it ended after %v", took)
			}
		})
	}
}

func TestAServerThatHasJustStartedIsForgiven(t *testing.T) {
	r := rehearse(5, func(name string, n int, now time.Time) attempt {
		if n < 3 {
			return failing(resourceGone)
		}
		return fine(name, n, now)
	})
	if err := r.play(t, time.Hour); err != nil {
		t.Fatal(err)
	}
}

func TestWhatWasDoneWhenItStoppedIsNotDoneAgain(t *testing.T) {
	r := rehearse(20, func(name string, n int, now time.Time) attempt {
		if name > "object-09" && now.Before(noon.Add(time.Minute)) {
			return failing(overloaded)
		}
		return fine(name, n, now)
	})
	if err := r.play(t, 30*time.Second); !errors.Is(err, errStopped) {
		t.Fatalf("it ended with %v", err)
	}
	if counts := r.sweep.Counts(); counts.Rewritten != 10 || r.sweep.Unfinished() != 10 || len(r.saved) != 0 {
		t.Fatalf("when it stopped %+v, %d unfinished, %d saved", counts, r.sweep.Unfinished(), len(r.saved))
	}
	if err := r.play(t, time.Hour); err != nil {
		t.Fatal(err)
	}
	for name, tries := range r.tries {
		if name <= "object-09" && tries != 1 {
			t.Errorf("%s was tried %d times", name, tries)
		}
	}
}
