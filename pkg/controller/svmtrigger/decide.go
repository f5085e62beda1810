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

package svmtrigger

import (
	"reflect"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// Decide returns what to do about one resource. It is pure: the same input gives the same decision, and the input is
// not changed.
func Decide(in Input) Decision {
	switch {
	case definitionDeleted(in):
		return decideWithoutDefinition(in)
	case in.State == nil:
		return decideWithoutState(in)
	}
	e := newEvaluation(in)
	if e.old.Epoch == 0 && e.problemMayPass() {
		// The observation is complete within seconds.
		return Decision{Reason: reasonNothingKnown, DecideAt: in.Observation.Problem.Since.Add(in.Periods.Patience)}
	}
	// Each step reads what those before it found.
	e.recordSightings()
	e.beginEpoch()
	e.recordCurrentSince()
	e.findAgreement()
	e.acceptProof()
	e.recordServedVersions()
	e.planDeletions()
	e.findMigrations()
	e.countFailure()
	e.answerRetry()
	e.nameVersions()
	e.decideNextStep()
	e.setConditions()
	e.planWrite()
	return e.decision
}

// evaluation is the way from an input to a decision about a state that exists.
type evaluation struct {
	in  Input
	old *migrationv1alpha1.StorageStateStatus
	// next is the status as it should be. It shares memory with old: steps replace its lists and pointers, and change
	// nothing behind them.
	next migrationv1alpha1.StorageStateStatus
	// last is the latest sighting, zero if there was none.
	last storageversion.Sighting

	// recordSightings finds out:

	// newEpoch is true if nothing that was proven before counts any more.
	newEpoch bool
	// unreadLiving is true if servers live that neither the observer nor the writer of the state has read.
	unreadLiving bool

	// findAgreement finds out:

	// agreed is true if all servers have written the current encoding for the settle period. If this manager has to wait
	// for that, the period ends at agreedFrom.
	agreed     bool
	agreedFrom time.Time

	// proof is a migration after which only the current encoding is stored. It counts when the servers are known to
	// still agree.
	proof *migrationv1alpha1.StorageVersionMigration

	// findMigrations finds the present attempt of the trigger, nil if it was not created yet, and a migration that has not
	// ended, whoever created it. A suspended one may be of an earlier epoch.
	present, underWay *migrationv1alpha1.StorageVersionMigration

	// step is what decideNextStep says about objects that must be rewritten.
	step metav1.Condition

	decision Decision
}

func newEvaluation(in Input) *evaluation {
	e := &evaluation{in: in, old: &in.State.Status, next: in.State.Status}
	e.last, _ = in.Observation.Last()
	if readAt := &e.in.Observation.ReadAt; !readAt.IsZero() {
		// ReadAt is recorded in the state, and compared with times there. The clock of this host may have been set since. By
		// the clock as it is now, ReadAt is Now less the time that has passed in between.
		*readAt = in.Now.Add(readAt.Sub(in.Now))
	}
	return e
}

func definitionDeleted(in Input) bool {
	var earlier *migrationv1alpha1.StorageEvidence
	if in.State != nil {
		earlier = in.State.Status.Evidence
	}
	return in.Observation.DefinitionDeleted(earlier)
}

func decideWithoutDefinition(in Input) Decision {
	d := Decision{Reason: reasonDefinitionDeleted, Delete: madeForEpoch(in), DeleteReason: reasonDefinitionDeleted}
	if in.State != nil && in.State.DeletionTimestamp == nil {
		d.StateAction = DeleteState
	}
	return d
}

// madeForEpoch returns the migrations of the resource that have not ended and are for an epoch of a state.
func madeForEpoch(in Input) (made []*migrationv1alpha1.StorageVersionMigration) {
	for _, m := range in.Migrations {
		if m.Active() && m.HasEpoch() {
			made = append(made, m)
		}
	}
	return made
}

// decideWithoutState creates a state without a status, which means that objects may be stored in any encoding. What
// people asked for in a state that was deleted, such as a pause, still counts. A definition that serves no version may
// have objects, so it gets a state too. Migrations for an epoch belong to a state before it. The decision that writes
// the first status deletes them. If no server serves the resource, there is no such decision, and they would wait for
// ever. So they are deleted now, but for suspended ones, which keep another migration from starting later.
func decideWithoutState(in Input) Decision {
	o := &in.Observation
	hidden := o.Class == storageversion.Custom && o.Presence == storageversion.NotServed && len(o.ServedVersions) == 0
	switch {
	case o.Presence == storageversion.Served, hidden:
		return Decision{StateAction: CreateState, Reason: reasonNewResource}
	case o.Presence != storageversion.NotServed:
		d := Decision{Reason: reasonNothingKnown}
		if len(madeForEpoch(in)) > 0 { // The observer reports no changes of a resource that it has never heard of.
			d.DecideAt = in.Now.Add(in.Periods.Patience)
		}
		return d
	}
	suspended := func(m *migrationv1alpha1.StorageVersionMigration) bool { return m.Spec.Suspend }
	return Decision{
		Reason: reasonNothingKnown, Delete: slices.DeleteFunc(madeForEpoch(in), suspended), DeleteReason: reasonOutdated,
	}
}

// planWrite decides whether to write the state now.
func (e *evaluation) planWrite() {
	// The first comparison is quick, because the steps share what they do not change.
	differs := !reflect.DeepEqual(e.old, &e.next) && !equality.Semantic.DeepEqual(e.old, &e.next)
	heartbeat, due := e.heartbeat()
	if e.decision.Create != nil && !due && (!differs || e.createsFirst()) {
		return // The next decision records the migration.
	}
	e.decision.Create = nil
	if !differs && !due {
		return
	}
	if !heartbeat.IsZero() {
		e.next.LastHeartbeatTime = metav1.NewTime(heartbeat.Truncate(time.Second))
	}
	e.decision.StateAction = UpdateState
	e.decision.Status = e.next
	e.decision.Events = e.events()
	switch {
	case e.newEpoch:
		e.decision.Reason = reasonNewEpoch
	case e.next.Migrated() && !e.old.Migrated():
		e.decision.Reason = reasonMigrated
	case !differs:
		e.decision.Reason = reasonHeartbeat
	default:
		e.decision.Reason = reasonStateChanged
	}
}

// createsFirst reports whether to create the migration before the state is written, so that one write records both the
// agreement and the migration. That is possible if the stored state already has everything that the migration rests
// on: there is no new epoch, because the servers agree. The name of a migration that cleans managedFields rests on what
// the state says about these. If the migration has been due for Periods.Patience and is still not created, the state is
// written first, so that people see why.
func (e *evaluation) createsFirst() bool {
	waitsFor := []time.Time{e.agreedFrom, e.soakedFrom()}
	if backoff := e.next.Backoff; backoff != nil && backoff.NextAttemptTime != nil {
		waitsFor = append(waitsFor, backoff.NextAttemptTime.Time)
	}
	due := slices.MaxFunc(waitsFor, time.Time.Compare)
	// The steps replace pointers, and change nothing behind them. So equal pointers mean that nothing changed.
	return e.in.Now.Before(due.Add(e.in.Periods.Patience)) && !e.next.Migrated() &&
		slices.Equal(e.next.PersistedStorageVersionHashes, e.old.PersistedStorageVersionHashes) &&
		e.next.Backoff == e.old.Backoff && e.next.LastHandledRetry == e.old.LastHandledRetry
}

// heartbeat returns the time to record as that of the latest observation, and whether it has to be recorded now
// although nothing changed. Without a complete observation there is none, and the time is zero.
func (e *evaluation) heartbeat() (observed time.Time, due bool) {
	if e.in.Observation.Problem != nil {
		return time.Time{}, false
	}
	if !e.evidenceComparable() {
		// A poll is the event that calls for the next decision. While nothing has been read there is no time.
		observed = e.in.Observation.ReadAt
		return observed, !observed.Before(e.old.LastHeartbeatTime.Add(e.in.Periods.Poll / 2))
	}
	// Each resource has an interval of its own, shorter by up to a fifth, so that writes spread out.
	interval := e.in.Periods.Heartbeat
	interval -= interval / 5000 * time.Duration(hashString(e.in.State.Name)%1000)
	at := e.old.LastHeartbeatTime.Add(interval)
	if e.inFuture(e.old.LastHeartbeatTime.Time) {
		at = e.in.Now
	}
	e.decideAt(at)
	return e.in.Now, !e.in.Now.Before(at)
}

// inFuture reports whether a recorded time was written by a clock that was ahead of the one of this host.
func (e *evaluation) inFuture(at time.Time) bool {
	return at.After(e.in.Now.Add(controller.ClockTolerance))
}

// evidenceComparable reports whether later evidence can show that nothing happened in between. Other evidence proves
// nothing but the moment at which it was seen. Before the first sighting the recorded evidence counts.
func (e *evaluation) evidenceComparable() bool {
	evidence := e.last.Evidence
	if recorded := e.old.Evidence; evidence.Source == "" && recorded != nil {
		evidence = *recorded
	}
	return evidence.Source == "" || storageversion.Durable(evidence)
}

// decideAt has the resource decided on again at a time that is still to come.
func (e *evaluation) decideAt(at time.Time) {
	if !at.After(e.in.Now) {
		return
	}
	if e.decision.DecideAt.IsZero() || at.Before(e.decision.DecideAt) {
		e.decision.DecideAt = at
	}
}

// problemMayPass reports whether the observation has been incomplete for so short a time that it may become complete by
// itself. The decision reports, creates and concludes nothing meanwhile.
func (e *evaluation) problemMayPass() bool { return e.problemWithin(e.in.Periods.Patience) }

// problemWithin reports whether the observation is incomplete, and has been for a shorter time.
func (e *evaluation) problemWithin(patience time.Duration) bool {
	problem := e.in.Observation.Problem
	return problem != nil && e.in.Now.Before(problem.Since.Add(patience))
}
