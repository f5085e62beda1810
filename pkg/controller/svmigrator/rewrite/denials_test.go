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
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// fencedTry is what becomes of an object that the fence lets nobody change.
func fencedTry() tryResult {
	failure := Failure{kind: refused, message: "would change", deniedForChange: true}
	return tryResult{outcome: sweep.Denied, failure: failure}
}

// TestTheFenceDeniesObjects wants other objects to be rewritten, unless a rule changes all of them.
func TestTheFenceDeniesObjects(t *testing.T) {
	for name, test := range map[string]struct {
		objects  int
		of       int // how many objects each namespace has
		from, to int // the objects that the fence denies
		only     bool
		ends     bool
		tried    int
	}{
		"one of them":                  {objects: 20, of: 20, to: 1, tried: 20},
		"all but the last":             {objects: 20, of: 20, to: 19, tried: 20},
		"a few, all of them":           {objects: 20, of: 20, to: 20, ends: true, tried: 20},
		"a few, denied before":         {objects: 20, of: 20, to: 20, only: true, tried: 20},
		"many, all of one namespace":   {objects: 300, of: 300, to: 300, ends: true, tried: 300},
		"the first namespace":          {objects: 400, of: 200, from: 0, to: 200, tried: 400},
		"one namespace":                {objects: 400, of: 200, from: 200, to: 400, tried: 400},
		"many, of several namespaces":  {objects: 3000, of: 50, to: 3000, ends: true, tried: 460},
		"the first nine namespaces":    {objects: 500, of: 50, to: 450, tried: 500},
		"all since a rule was made":    {objects: 2000, of: 50, from: 200, to: 2000, tried: 2000},
		"a namespace, and then others": {objects: 400, of: 200, from: 50, to: 200, tried: 400},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newFakeRun(0, nil)
			r.list = func(context.Context, string) (sweep.Chunk, error) {
				chunk := sweep.Chunk{ResourceVersion: "1"}
				for i := range test.objects {
					chunk.Objects = append(chunk.Objects, &sweep.Object{
						Namespace: fmt.Sprintf("namespace-%03d", i/test.of), Name: fmt.Sprintf("object-%03d", i),
					})
				}
				return chunk, nil
			}
			if test.only {
				r.task.Only = []migrationv1alpha1.DeniedObject{{}}
			}
			tried := 0
			r.answer = func(name string, n int, now time.Time) tryResult {
				tried++
				if i, _ := strconv.Atoi(strings.TrimPrefix(name, "object-")); i >= test.from && i < test.to {
					return fencedTry()
				}
				return fine(name, n, now)
			}
			err := r.play(t, time.Hour)
			if err == nil {
				err = r.checkAllDenied()
			}
			var ended *PermanentError
			if errors.As(err, &ended) != test.ends ||
				test.ends && ended.Reason != migrationv1alpha1.MigrationReasonRewritesChangeObjects {
				t.Errorf("it ended with %v", err)
			}
			// Up to a hundred requests are in flight, and the runner may be behind with their results.
			if tried < test.tried || tried > test.tried+1000 {
				t.Errorf("%d objects were tried, want about %d", tried, test.tried)
			}
		})
	}
}

// TestPermissionThatIsMissing wants the migration to say so, also if it has fewer objects than end a run.
func TestPermissionThatIsMissing(t *testing.T) {
	for name, test := range map[string]struct {
		verb    string
		allowed string
		only    bool
		ends    bool
	}{
		"all objects":                 {verb: "patch", ends: true},
		"reading all objects":         {verb: "get", ends: true},
		"all but one":                 {verb: "patch", allowed: "object-03"},
		"all that were denied before": {verb: "patch", only: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newFakeRun(5, func(name string, n int, now time.Time) tryResult {
				if name == test.allowed {
					return fine(name, n, now)
				}
				return tryResult{outcome: sweep.Denied, failure: Failure{kind: refused, reason: metav1.StatusReasonForbidden,
					message: `user "manager" cannot ` + test.verb + ` resource "widgets"`}}
			})
			if test.only {
				r.task.Only = []migrationv1alpha1.DeniedObject{{}}
			}
			if err := r.play(t, time.Hour); err != nil {
				t.Fatal(err)
			}
			later := &sweepRunner{sweepState: r.task.first, task: r.task} // The run was interrupted, and goes on.
			err := later.checkAllDenied()
			if ended := (*PermanentError)(nil); errors.As(err, &ended) != test.ends ||
				test.ends && (ended.Reason != migrationv1alpha1.MigrationReasonRewritesRefused ||
					!strings.Contains(ended.Message, "kubectl svm rbac")) {
				t.Errorf("it ended with %v", err)
			}
		})
	}
}

// TestDenialWhileARunEnds stops a run while one object has no answer. All objects are denied for one reason in the end,
// so the migration has to say so.
func TestDenialWhileARunEnds(t *testing.T) {
	t.Parallel()
	r := newFakeRun(5, func(string, int, time.Time) tryResult { return fencedTry() })
	for stopped := false; !stopped; { // The run may handle the answer before it notices that it is to end.
		r = newFakeRun(5, r.answer)
		answer := r.rewrite
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancelCause(t.Context())
			r.rewrite = func(requestCtx context.Context, object *sweep.Object) tryResult {
				if object.Name == "object-03" {
					stop(errStopped)
					<-ctx.Done()
				}
				return answer(requestCtx, object)
			}
			stopped = errors.Is(r.playIn(ctx, time.Hour), errStopped)
		})
	}
	if err := r.play(t, time.Hour); err != nil {
		t.Fatal(err)
	}
	if ended := (*PermanentError)(nil); !errors.As(r.checkAllDenied(), &ended) {
		t.Errorf("%d of 5 denials count for the reason", r.deniedForChange.objects)
	}
}

// TestOneObjectThatFailsIsGivenUpOnAlthoughOthersWait has runs that end early, again and again.
func TestOneObjectThatFailsIsGivenUpOnAlthoughOthersWait(t *testing.T) {
	t.Parallel()
	r := newFakeRun(20, func(name string, n int, now time.Time) tryResult {
		if name == "object-07" {
			return failing(internal)
		}
		return fine(name, n, now)
	})
	r.crowded = true
	for runs := 1; ; runs++ {
		err := r.play(t, 2*time.Hour)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrStuck) || runs > 5 {
			t.Fatalf("run %d ended with %v", runs, err)
		}
	}
	if counts := r.sweep.Progress().Counts; counts[sweep.Denied] != 1 {
		t.Errorf("at the end %+v", counts)
	}
}

// TestFailuresBeforeAnInterruptionDoNotCount interrupts the run for longer than an outage may last.
func TestFailuresBeforeAnInterruptionDoNotCount(t *testing.T) {
	t.Parallel()
	interrupted := noon.Add(10 * time.Second)
	again := interrupted.Add(2 * outageAtMost)
	r := newFakeRun(40, func(name string, n int, now time.Time) tryResult {
		if now.Before(again.Add(time.Minute)) {
			return failing(internal)
		}
		return fine(name, n, now)
	})
	if err := r.play(t, interrupted.Sub(noon)); !errors.Is(err, errStopped) {
		t.Fatalf("it ended with %v", err)
	}
	r.fake.SetTime(again)
	r.reports = nil
	if err := r.play(t, again.Sub(noon)+time.Hour); err != nil {
		t.Fatal(err)
	}
	for _, report := range r.reports {
		if since := report.Retry.Since; !since.IsZero() && since.Before(again.Add(-15*time.Second)) {
			t.Errorf("it reported %s", report.Retry)
		}
	}
	if counts := r.sweep.Progress().Counts; counts[sweep.Denied] > 0 {
		t.Errorf("at the end %+v", counts)
	}
}

// TestSecondSweepInAnOutage lists all objects again. It must not take objects for denied because of an outage.
func TestSecondSweepInAnOutage(t *testing.T) {
	t.Parallel()
	r := newFakeRun(40, func(name string, n int, now time.Time) tryResult {
		if now.Before(noon.Add(10 * time.Minute)) {
			return failing(internal)
		}
		return fine(name, n, now)
	})
	r.normal = RetryingDenied
	if err := r.play(t, time.Hour); err != nil {
		t.Fatal(err)
	}
	if counts := r.sweep.Progress().Counts; counts[sweep.Denied] > 0 {
		t.Errorf("at the end %+v", counts)
	}
}

// TestPermissionsAfterAnOutage has an API server be away, or fail because of a webhook, and then refuse everything
// once. Objects that were tried before must not be denied.
func TestPermissionsAfterAnOutage(t *testing.T) {
	const tries = 6 // They take longer than such refusals may last.
	for _, outage := range []failureKind{unreachable, internal} {
		r := newFakeRun(20, func(name string, n int, now time.Time) tryResult {
			switch {
			case n < tries:
				return failing(outage)
			case n == tries:
				return tryResult{outcome: sweep.Denied, failure: Failure{kind: refused, reason: metav1.StatusReasonForbidden,
					message: `widgets "a" is forbidden: User "svm" cannot patch resource "widgets"`}}
			default:
				return fine(name, n, now)
			}
		})
		if err := r.play(t, time.Hour); err != nil || r.sweep.Progress().Counts[sweep.Rewritten] != 20 {
			t.Errorf("%s: it ended with %v and %v", outage.name, err, r.sweep.Progress().Counts)
		}
	}
}

// TestPermissionsThatAreNotKnownYet has an API server that refuses everything until it has read its roles.
func TestPermissionsThatAreNotKnownYet(t *testing.T) {
	const objects = 200
	forbidden := tryResult{outcome: sweep.Denied, failure: Failure{kind: refused, reason: metav1.StatusReasonForbidden,
		message: `widgets "a" is forbidden: User "svm" cannot patch resource "widgets"`}}
	for name, test := range map[string]struct {
		lasts                  time.Duration
		only                   string
		denied, most, requests int64
	}{
		"a moment":            {3 * time.Second, "", 0, 0, objects + 50},
		"for good":            {time.Hour, "", commonDenialsAtLeast, 2 * commonDenialsAtLeast, 5 * objects},
		"one object for good": {time.Hour, "object-07", 1, 1, objects + 10},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFakeRun(objects, func(name string, n int, now time.Time) tryResult {
				if now.Before(noon.Add(test.lasts)) && (test.only == "" || test.only == name) {
					return forbidden
				}
				return fine(name, n, now)
			})
			// So many may be in flight when the first one is refused.
			r.atOnce = 20
			err := r.play(t, time.Minute)
			if refuses := test.denied > 1; refuses != (err != nil) || errors.Is(err, errStopped) {
				t.Errorf("it ended with %v", err)
			}
			if n := r.sweep.Progress().Counts[sweep.Denied]; n < test.denied || n > test.most {
				t.Errorf("%d objects are denied, want %d to %d", n, test.denied, test.most)
			}
			requests := int64(0)
			for _, tries := range r.tries {
				requests += int64(tries)
			}
			if requests > test.requests {
				t.Errorf("%d requests, want at most %d", requests, test.requests)
			}
		})
	}
}

// TestServerThatStaysUnready has an admission plugin that never becomes ready. Only the first object waits for it.
func TestServerThatStaysUnready(t *testing.T) {
	const objects = 200
	unready := tryResult{outcome: sweep.Denied, failure: Failure{kind: refused, reason: metav1.StatusReasonForbidden,
		message: `widgets "a" is forbidden: not yet ready to handle request`}}
	for _, phase := range []Phase{Rewriting, RetryingDenied} {
		r := newFakeRun(objects, func(string, int, time.Time) tryResult { return unready })
		r.normal = phase
		if err := r.play(t, 2*time.Minute); err != nil || r.sweep.Progress().Counts[sweep.Denied] != objects {
			t.Errorf("%s: it ended with %v and %v", phase, err, r.sweep.Progress().Counts)
		}
	}
}
