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
	"fmt"
	"time"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// Phase is what a run does now. It is a reason of the Running condition.
//
//	Rewriting ──────────> RetryingDenied       all objects have outcomes, and some were denied
//	either of these ────> RetryingRequests     requests have failed for ReportAfter
//	RetryingRequests ───> Stuck                nothing was done for StuckAfter
//	Stuck ──────────────> RetryingRequests     something was done
//	RetryingRequests ───> one of the first     no request fails any more
type Phase string

const (
	// Rewriting: objects are listed and rewritten.
	Rewriting Phase = migrationv1alpha1.MigrationReasonRewriting
	// RetryingDenied: all objects have outcomes, and the second sweep tries those once more that were denied.
	RetryingDenied Phase = migrationv1alpha1.MigrationReasonRetryingDenied
	// RetryingRequests: requests fail and are repeated.
	RetryingRequests Phase = migrationv1alpha1.MigrationReasonRetrying
	// Stuck: requests fail, and the task has made no progress for StuckAfter.
	Stuck Phase = migrationv1alpha1.MigrationReasonNoProgress
)

const (
	// reportPeriod is how often a run reports its phase, and looks whether a request has to be repeated.
	reportPeriod = 250 * time.Millisecond
	// ReportAfter is how long requests must have failed before the phase says so.
	ReportAfter = 5 * time.Second
	// StuckAfter is how long a task must have made no progress to be stuck. It is longer than any single request takes.
	StuckAfter = listTimeout + 5*time.Second
)

// Report is a phase and what people need to know about it.
type Report struct {
	Phase Phase
	Retry FailingRequests
}

// FailingRequests describes requests that fail and are repeated. It is empty unless the phase is RetryingRequests or
// Stuck.
type FailingRequests struct {
	// What says what fails, for example "Listing the next objects has failed".
	What string
	// Example is an object that has the failure. It is empty for a list.
	Example string
	Failure Failure
	Since   time.Time
	Next    time.Time
}

// String returns the message of a condition.
func (f FailingRequests) String() string {
	answer := f.Failure.String() + f.Failure.keyRemedy()
	if f.Example != "" {
		answer = f.Example + ": " + answer
	}
	return fmt.Sprintf("%s since %s, the next try is at %s: %s",
		f.What, f.Since.UTC().Format(time.RFC3339), f.Next.UTC().Format(time.RFC3339), answer)
}

// report returns the phase of the run. It returns false while the phase is not clear yet.
func (r *sweepRunner) report(now time.Time) (Report, bool) {
	var failing FailingRequests
	objects, since, next := r.sweep.Waiting()
	lasted, after := r.runTime(now).Sub(since), ReportAfter
	if r.task.Idle(now) >= StuckAfter {
		after = 0 // The run may end now, and people must see why.
	}
	switch {
	case objects > 0 && r.objectsFailing.Failure.kind.name != "" && lasted > after:
		failing = r.objectsFailing
		failing.What, failing.Since, failing.Next = "Rewriting an object has failed", now.Add(-lasted), next
		if objects > 1 {
			failing.What = fmt.Sprintf("Rewriting %d objects has failed", objects)
		}
	case !r.listFailing.Since.IsZero() && now.Sub(r.listFailing.Since) > after:
		failing = r.listFailing
		failing.What = "Listing the next objects has failed"
	case r.sweep.Failing() == 0 && !r.task.Stuck:
		return Report{Phase: r.normal}, true
	default:
		return Report{}, false
	}
	return Report{Phase: r.task.FailingPhase(now), Retry: failing}, true
}
