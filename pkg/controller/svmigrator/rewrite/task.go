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
	"time"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// Task is what an engine knows about one migration: what was done, and whether it is stuck. All runs of the migration
// in one process use the same task.
type Task struct {
	// first is the sweep over all objects, or over Only. second tries those once more that the first one denied. It is nil
	// before it begins.
	first, second *sweepState
	// Only has the objects to rewrite, or is nil to rewrite all objects. If it is set, all other objects, and those that
	// were written after the baseline, must be stored in the target encoding.
	Only []migrationv1alpha1.DeniedObject
	// secondSaved means that the position after the second sweep is saved.
	secondSaved bool

	// changed is the failure of a rewrite that has changed more than the encoding. The task keeps it, because the answer
	// may come when the run is already ending.
	changed Failure

	// Stuck means that requests fail, and that there was no progress for StuckAfter. It stays set until there is progress,
	// also in the next runs.
	Stuck bool
	// began is when the last run began. Its second sweep belongs to the same turn.
	began time.Time
	// lastProgress is when an object got its outcome or a list its answer, or when the last run began.
	lastProgress time.Time
	// advanced means that the last run has made progress.
	advanced bool
}

// NewTask returns a task that resumes from a position. The zero Position is the beginning.
func NewTask(class storageversion.Class, from sweep.Position) *Task {
	return &Task{first: newSweepState(class, from)}
}

// ForgetListed has the next run list the objects of the unfinished chunks again, because what was found out about them
// when they were listed may be wrong now.
func (t *Task) ForgetListed() {
	t.first.forgetListed()
	if t.second != nil {
		t.second.forgetListed()
	}
}

// Begin records that a run begins.
func (t *Task) Begin(now time.Time) { t.began, t.lastProgress, t.advanced = now, now, false }

// Idle is the time since the last progress, or since the last run began.
func (t *Task) Idle(now time.Time) time.Duration { return now.Sub(t.lastProgress) }

func (t *Task) progressed(now time.Time) { t.lastProgress, t.advanced, t.Stuck = now, true, false }

// FailingPhase returns the phase of a run whose requests fail.
func (t *Task) FailingPhase(now time.Time) Phase {
	if t.Stuck || t.Idle(now) >= StuckAfter {
		return Stuck
	}
	return RetryingRequests
}

// sweepState is a sweep with what its runs have learned. A run continues with what earlier runs knew.
type sweepState struct {
	sweep *sweep.Sweep

	// listLimit is how many objects the next list asks for. Zero means as many as a chunk has.
	listLimit int64
	// listTries is how often the list failed in a row.
	listTries int
	// newToken means that the token of the last list had expired and that its answer had the token of the next one. If
	// that expires at once as well, the server does not continue its lists.
	newToken bool
	// restart means that the list starts from the beginning as soon as the current chunk is done.
	restart  bool
	restarts int

	// No list is sent before listNotBefore, because the last one failed.
	listNotBefore time.Time
	// No object is sent before heldUntil: the aggregated server behind the API server has asked for that, or the API
	// server has refused all objects so far, and may have just started.
	heldUntil time.Time
	// lastEnd is when the last run ended.
	lastEnd sweep.RunTime
	// deniedForPermission are those that were denied because this program lacks a permission. deniedForChange are those
	// that a rewrite would change.
	deniedForPermission, deniedForChange commonDenials
}

func newSweepState(class storageversion.Class, from sweep.Position) *sweepState {
	return &sweepState{sweep: sweep.New(from, newer(class))}
}

// forgetListed has the objects of the unfinished chunks listed again. The token that the next list continues with is
// the one of the position, which may have expired again.
func (s *sweepState) forgetListed() {
	s.sweep.ForgetListed()
	s.newToken = false
	s.forgetDenials()
}

// forgetDenials forgets why objects were denied. They are listed and tried again, and would count twice.
func (s *sweepState) forgetDenials() {
	s.deniedForPermission, s.deniedForChange = commonDenials{}, commonDenials{}
}
