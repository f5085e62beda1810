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
	"errors"
	"testing"
	"time"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// fencedAttempt is what becomes of an object that the fence lets nobody change.
func fencedAttempt() attempt {
	return attempt{outcome: sweep.Denied, failure: Failure{kind: refused, message: "would change", fenced: true}}
}

// TestTheFenceDeniesObjects wants other objects to be rewritten, unless a rule changes all of them.
func TestTheFenceDeniesObjects(t *testing.T) {
	for name, test := range map[string]struct {
		objects int
		fenced  int // the first ones, or if it is negative, those after as many
		ends    bool
		tried   int
	}{
		"one of them":       {20, 1, false, 20},
		"all but the last":  {20, 19, false, 20},
		"a few, all":        {20, 20, true, 20},
		"many, all of them": {300, 300, true, 100},
		"many, in the end":  {400, -200, true, 300},
	} {
		t.Run(name, func(t *testing.T) {
			r := newFakeRun(test.objects, nil)
			tried := 0
			r.answer = func(name string, n int, now time.Time) attempt {
				if tried++; tried <= test.fenced || test.fenced < 0 && tried > -test.fenced {
					return fencedAttempt()
				}
				return fine(name, n, now)
			}
			err := r.play(t, time.Hour)
			if err == nil {
				err = r.changesAll(r.sweep.Progress().Counts)
			}
			var ended *PermanentError
			if errors.As(err, &ended) != test.ends ||
				test.ends && ended.Reason != migrationv1alpha1.MigrationReasonRewritesChangeObjects {
				t.Errorf("it ended with %v", err)
			}
			// Up to a hundred requests are in flight.
			if tried < test.tried || tried > test.tried+100 {
				t.Errorf("%d objects were tried, want about %d", tried, test.tried)
			}
		})
	}
}

// TestFailuresBeforeAnInterruptionDoNotCount interrupts the run for longer than an outage may last.
func TestFailuresBeforeAnInterruptionDoNotCount(t *testing.T) {
	interrupted := noon.Add(10 * time.Second)
	again := interrupted.Add(2 * outageAtMost)
	r := newFakeRun(40, func(name string, n int, now time.Time) attempt {
		if now.Before(again.Add(time.Minute)) {
			return failing(internal)
		}
		return fine(name, n, now)
	})
	if err := r.play(t, interrupted.Sub(noon)); !errors.Is(err, errStopped) {
		t.Fatalf("it ended with %v", err)
	}
	r.fake.SetTime(again)
	if err := r.play(t, again.Sub(noon)+time.Hour); err != nil {
		t.Fatal(err)
	}
	if counts := r.sweep.Progress().Counts; counts[sweep.Denied] > 0 {
		t.Errorf("at the end %+v", counts)
	}
}

// TestSecondSweepInAnOutage lists all objects again. It must not take objects for denied because of an outage.
func TestSecondSweepInAnOutage(t *testing.T) {
	r := newFakeRun(40, func(name string, n int, now time.Time) attempt {
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
