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

package rewrite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

var errStopped = errors.New("stopped by the test")

// fakeRun is a run whose requests are answered by a script, in a time of its own. It is its own Migration.
type fakeRun struct {
	*sweepRunner
	fake *clocktesting.FakeClock

	mu       sync.Mutex
	tries    map[string]int
	saved    []sweep.Position
	outcomes []sweep.Outcome
	reports  []Report
	// tick is how much time passes whenever the run waits.
	tick time.Duration
	// atOnce is how many requests may be under way.
	atOnce int
	// crowded means that other migrations wait.
	crowded bool
	answer  func(name string, n int, now time.Time) tryResult
}

func (r *fakeRun) SavePosition(_ context.Context, position sweep.Position) error {
	r.saved = append(r.saved, position)
	return nil
}

func (r *fakeRun) ObjectDone(_ *sweep.Object, outcome sweep.Outcome) {
	r.outcomes = append(r.outcomes, outcome)
}

func (r *fakeRun) ReportPhase(_ context.Context, report Report) {
	r.reports = append(r.reports, report)
}

func (r *fakeRun) MustYield() bool { return r.crowded }

// newFakeRun makes a run over objects. answer says what becomes of an object at its nth try.
func newFakeRun(objects int, answer func(name string, n int, now time.Time) tryResult) *fakeRun {
	r := &fakeRun{
		fake: clocktesting.NewFakeClock(noon), tries: map[string]int{}, tick: 250 * time.Millisecond, atOnce: 100,
		answer: answer,
	}
	task := NewTask(storageversion.Custom, sweep.Position{})
	r.sweepRunner = &sweepRunner{
		sweepState: task.first,
		task:       task,
		migration:  r,
		normal:     Rewriting,
		list: func(context.Context, string) (sweep.Chunk, error) {
			chunk := sweep.Chunk{ResourceVersion: "1"}
			for i := range objects {
				chunk.Objects = append(chunk.Objects, &sweep.Object{Name: fmt.Sprintf("object-%02d", i)})
			}
			return chunk, nil
		},
		rewrite: func(_ context.Context, object *sweep.Object) tryResult {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.tries[object.Name]++
			a := r.answer(object.Name, r.tries[object.Name], r.fake.Now())
			a.object = object
			return a
		},
	}
	return r
}

// play runs for as long as the script may take.
func (r *fakeRun) play(t *testing.T, within time.Duration) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { err = r.playIn(t.Context(), within) })
	return err
}

// playIn is called in a synctest bubble: the ticker fires when all goroutines of the run wait.
func (r *fakeRun) playIn(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r.clock = r.fake
	// The timers of this clock belong to the bubble, so nobody may use it afterwards.
	defer func() { r.fake = clocktesting.NewFakeClock(r.fake.Now()) }()
	r.lane = pacer.New(pacer.Options{MaxConcurrent: r.atOnce, Unpaced: true, Clock: r.fake}).Lane()
	r.task.Begin(r.fake.Now()) // as Engine.Run does
	ended := make(chan error, 1)
	go func() { ended <- r.run(ctx) }()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-ticker.C:
			if r.fake.Since(noon) > within {
				cancel(errStopped)
				return <-ended
			}
			r.fake.Step(r.tick)
		}
	}
}

func fine(string, int, time.Time) tryResult { return tryResult{outcome: sweep.Rewritten} }

func failing(kind failureKind) tryResult {
	return tryResult{failure: Failure{kind: kind, reason: metav1.StatusReasonInternalError, message: "no"}}
}

func TestOneObjectThatFailsIsGivenUpOn(t *testing.T) {
	timeout := failing(overloaded)
	timeout.failure.timedOut = true
	for name, answer := range map[string]tryResult{"fails": failing(internal), "times out": timeout} {
		t.Run(name, func(t *testing.T) { testGivenUpOn(t, answer) })
	}
}

func testGivenUpOn(t *testing.T, answer tryResult) {
	t.Parallel()
	r := newFakeRun(20, func(name string, n int, now time.Time) tryResult {
		if name == "object-07" {
			return answer
		}
		return fine(name, n, now)
	})
	if err := r.play(t, time.Hour); err != nil {
		t.Fatal(err)
	}
	last := r.saved[len(r.saved)-1]
	if last.Counts[sweep.Rewritten] != 19 || last.Counts[sweep.Denied] != 1 ||
		last.Denied[0].Name != "object-07" || last.Denied[0].Message != "no" {
		t.Errorf("at the end %+v", last)
	}
	if tries, took := r.tries["object-07"], r.fake.Since(noon); tries < giveUpFailures || took < giveUpTime || tries > 30 {
		t.Errorf("it was given up on after %d tries in %v", tries, took)
	}
}

func TestManyObjectsThatFailAreGivenUpOn(t *testing.T) {
	t.Parallel()
	r := newFakeRun(40, func(name string, n int, now time.Time) tryResult {
		if name >= "object-10" {
			return failing(internal)
		}
		return fine(name, n, now)
	})
	r.tick = 5 * time.Second
	if err := r.play(t, 2*outageAtMost); err != nil {
		t.Fatal(err)
	}
	if last := r.saved[len(r.saved)-1].Counts; last[sweep.Denied] != 30 {
		t.Errorf("at the end %+v", last)
	}
	if took := r.fake.Since(noon); took < outageAtMost {
		t.Errorf("they were taken for more than an outage after %v", took)
	}
}

func TestObjectsThatFailOnceMoreAreDenied(t *testing.T) {
	t.Parallel()
	r := newFakeRun(15, func(string, int, time.Time) tryResult { return failing(internal) })
	r.normal, r.impatient = RetryingDenied, true
	if err := r.play(t, outageAtMost); err != nil {
		t.Fatal(err)
	}
	if last := r.sweep.Progress().Counts; last[sweep.Denied] != 15 {
		t.Errorf("at the end %+v", last)
	}
}

func TestReportsThatItIsStuck(t *testing.T) {
	t.Parallel()
	r := newFakeRun(20, func(name string, n int, now time.Time) tryResult {
		if now.Before(noon.Add(2 * StuckAfter)) {
			return failing(unreachable)
		}
		return fine(name, n, now)
	})
	if err := r.play(t, time.Hour); err != nil {
		t.Fatal(err)
	}
	first := slices.IndexFunc(r.reports, func(report Report) bool { return report.Phase == Stuck })
	if first <= 0 || r.reports[first-1].Phase != RetryingRequests {
		t.Errorf("it reported to be stuck first at time %d of %d", first, len(r.reports))
	}
	if r.task.Stuck {
		t.Error("it is still stuck")
	}
}

func TestListsThatCannotGoOn(t *testing.T) {
	again := apierrors.NewResourceExpired("older still")
	again.ErrStatus.Continue = "token"
	for name, test := range map[string]struct {
		answer error
		reason string
		lists  int // at least
	}{
		"no token is taken": {
			apierrors.NewBadRequest("continue key is not valid"), migrationv1alpha1.MigrationReasonListRefused,
			2 * (maxRestarts + 1),
		},
		"tokens expire at once": {
			apierrors.NewResourceExpired("too old"), migrationv1alpha1.MigrationReasonListRefused, 2 * (maxRestarts + 1),
		},
		"each new token has expired": {
			again, migrationv1alpha1.MigrationReasonListRefused, 3 * (maxRestarts + 1),
		},
		"the permission was taken away": {
			apierrors.NewForbidden(widgets, "", errors.New("no")), migrationv1alpha1.MigrationReasonListRefused, 5,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFakeRun(5, fine)
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
			var ended *PermanentError
			if !errors.As(err, &ended) || ended.Reason != test.reason || !strings.Contains(ended.Message, test.answer.Error()) {
				t.Fatalf("it ended with %v", err)
			}
			if lists < test.lists || lists > 3*(maxRestarts+1) {
				t.Errorf("%d lists, want %d", lists, test.lists)
			}
			for _, report := range r.reports {
				if report.Phase == RetryingRequests && report.Retry.Since.IsZero() {
					t.Errorf("it reported that %s since an unknown time", report.Retry.What)
				}
			}
		})
	}
}

func TestAnOutageIsWaitedFor(t *testing.T) {
	for name, kind := range map[string]failureKind{
		"of a webhook": internal, "of the network": unreachable, "of credentials": unauthenticated, "by overload": overloaded,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			back := noon.Add(3 * giveUpTime)
			r := newFakeRun(20, func(name string, n int, now time.Time) tryResult {
				if now.Before(back) {
					return failing(kind)
				}
				return fine(name, n, now)
			})
			if err := r.play(t, 2*time.Hour); err != nil {
				t.Fatal(err)
			}
			if last := r.saved[len(r.saved)-1]; last.Counts[sweep.Rewritten] != 20 {
				t.Errorf("at the end %+v", last.Counts)
			}
			requests := 0
			for _, n := range r.tries {
				requests += n
			}
			if requests > 20*30 {
				t.Errorf("%d requests for 20 objects in an outage of six minutes", requests)
			}
			first := slices.IndexFunc(r.reports, func(report Report) bool { return report.Phase == RetryingRequests })
			if first < 0 {
				t.Fatal("it reported no failing requests")
			}
			if retry := r.reports[first].Retry; !strings.HasPrefix(retry.What, "Rewriting ") ||
				!strings.HasPrefix(retry.Example, "object-") || retry.Next.IsZero() {
				t.Errorf("it reported %s", retry)
			}
		})
	}
}

func TestFailuresThatEndAMigration(t *testing.T) {
	for name, test := range map[string]struct {
		kind   failureKind
		reason string
		after  time.Duration
	}{
		"it cannot be patched": {unsupported, migrationv1alpha1.MigrationReasonVerbsNotSupported, 0},
		"a server says for long that it is gone": {
			resourceGone, migrationv1alpha1.MigrationReasonResourceNotServed, startPatience,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFakeRun(5, func(string, int, time.Time) tryResult { return failing(test.kind) })
			err := r.play(t, time.Hour)
			var ended *PermanentError
			if !errors.As(err, &ended) || ended.Reason != test.reason {
				t.Fatalf("it ended with %v", err)
			}
			if took := r.fake.Since(noon); took < test.after || took > test.after+maxResend+time.Second {
				t.Errorf("it ended after %v", took)
			}
		})
	}
}

func TestAServerThatHasJustStartedIsForgiven(t *testing.T) {
	r := newFakeRun(5, func(name string, n int, now time.Time) tryResult {
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
	r := newFakeRun(20, func(name string, n int, now time.Time) tryResult {
		if name > "object-09" && now.Before(noon.Add(time.Minute)) {
			return failing(overloaded)
		}
		return fine(name, n, now)
	})
	if err := r.play(t, 30*time.Second); !errors.Is(err, errStopped) {
		t.Fatalf("it ended with %v", err)
	}
	counts := r.sweep.Progress().Counts
	if counts[sweep.Rewritten] != 10 || r.sweep.UnfinishedInChunk() != 10 || len(r.saved) != 0 {
		t.Fatalf("when it stopped %+v, %d unfinished, %d saved", counts, r.sweep.UnfinishedInChunk(), len(r.saved))
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

// TestAChangeThatIsToldTooLate has the answer that shows a change arrive when the run has been stopped.
func TestAChangeThatIsToldTooLate(t *testing.T) {
	r := newFakeRun(1, fine)
	r.rewrite = func(ctx context.Context, object *sweep.Object) tryResult {
		<-ctx.Done()
		return tryResult{object: object, outcome: sweep.Rewritten, failure: Failure{kind: changesObject, message: "labels"}}
	}
	if err := r.play(t, 30*time.Second); !errors.Is(err, errStopped) {
		t.Fatalf("it ended with %v", err)
	}
	var ended *PermanentError
	err := (&Engine{}).Run(t.Context(), r.task, Resource{}, r)
	if !errors.As(err, &ended) || ended.Reason != migrationv1alpha1.MigrationReasonRewritesChangeObjects {
		t.Errorf("the next run ended with %v", err)
	}
}
