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
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// Decide returns what is to be done about one resource. It is pure: the same input gives the same decision, and the
// input is not changed.
func Decide(in Input) Decision {
	switch {
	case in.State != nil && in.State.DeletionTimestamp != nil:
		return Decision{Reason: reasonStateGoes}
	case definitionGone(in):
		return decideWithoutDefinition(in)
	case in.State == nil:
		return decideWithoutState(in)
	case ofStranger(in.State):
		return Decision{State: RecreateState, Reason: reasonStranger}
	}
	d := newDeciding(in)
	if d.old.Epoch == 0 && d.held() {
		// The first evidence is a matter of seconds.
		return Decision{Reason: reasonNothingKnown, LookAgain: in.Observation.Problem.Since.Add(in.Periods.Hold)}
	}
	d.record()
	d.shrink()
	d.supersede()
	d.migrate()
	d.conclude()
	return d.decision
}

// deciding is the way from an input to a decision about a state that exists.
type deciding struct {
	in    Input
	state *migrationv1alpha1.StorageState
	old   migrationv1alpha1.StorageStateStatus
	next  migrationv1alpha1.StorageStateStatus

	// last is the latest sighting, zero if there was none.
	last storageversion.Sighting
	// newEpoch says that nothing that was proven before counts any more.
	newEpoch bool
	// agreed says that all servers were seen to write the current encoding, for the settle period.
	agreed bool
	// proof is a migration that shows that only the current encoding is stored, as soon as the servers are known to agree still.
	proof *migrationv1alpha1.StorageVersionMigration
	// unseenNews says that servers live which were asked neither by us nor by whoever wrote the state.
	unseenNews bool
	// standing is what is done about the objects in old encodings, or why nothing is.
	standing standing

	decision Decision
}

func newDeciding(in Input) *deciding {
	d := &deciding{in: in, state: in.State, old: in.State.Status, next: *in.State.Status.DeepCopy()}
	d.last, _ = in.Observation.Last()
	return d
}

// definitionGone says that the resource was custom and its definition was deleted, which deleted its objects before.
func definitionGone(in Input) bool {
	o := in.Observation
	if o.Presence == storageversion.Deleted {
		return true
	}
	// Deleted while nobody watched.
	return o.Class == "" && o.Presence == storageversion.NotServed && in.State != nil && in.State.Status.Evidence != nil &&
		in.State.Status.Evidence.Source == migrationv1alpha1.EvidenceFromCustomResourceDefinition
}

func decideWithoutDefinition(in Input) Decision {
	d := Decision{Reason: reasonDefinitionGone}
	if in.State != nil {
		d.State = DeleteState
	}
	for _, m := range in.Migrations {
		if ofResource(m, in.Observation.Resource) && !finished(m) && boundTo(m) != nil {
			d.Delete = append(d.Delete, m)
		}
	}
	return d
}

// decideWithoutState creates a state without a status, which means that anything may be stored. Migrations that run are
// those of a state before it: they are deleted when the new one has its first status.
func decideWithoutState(in Input) Decision {
	if in.Observation.Presence != storageversion.Served {
		return Decision{Reason: reasonNothingKnown}
	}
	return Decision{State: CreateState, Reason: reasonNewResource}
}

// ofStranger says that the epochs of a state cannot be trusted: it was written by another controller, or while the
// definition of StorageStates did not know epochs and dropped them.
func ofStranger(state *migrationv1alpha1.StorageState) bool {
	return state.Status.Epoch == 0 && state.Status.CurrentStorageVersionHash != ""
}

// supersede deletes unfinished migrations that were made for an earlier epoch, or for a state before this one. Those made
// by hand that have not begun are bound to nothing and take the current target when they begin.
func (d *deciding) supersede() {
	for _, m := range d.in.Migrations {
		bound := boundTo(m)
		if !ofResource(m, d.in.Observation.Resource) || finished(m) || bound == nil {
			continue
		}
		if bound.StorageStateUID != d.state.UID || *bound.Epoch != d.next.Epoch {
			d.decision.Delete = append(d.decision.Delete, m)
		}
	}
}

// conclude says whether the state is to be written, and keeps back what a write has to come before.
func (d *deciding) conclude() {
	o := &d.in.Observation
	d.describe()
	differs, pressing := d.compare()
	if differs && !pressing {
		d.lookAgain(d.last.Evidence.FirstObservedTime.Add(d.in.Periods.Hold))
		d.next, differs = d.old, false
	}
	write := differs
	if o.Problem == nil {
		heartbeat := d.in.Now
		if d.perishable() {
			heartbeat = o.Looked
		}
		due := d.old.LastHeartbeatTime.Add(d.heartbeatInterval())
		if !heartbeat.Before(due) {
			write = true
		} else if !d.perishable() {
			d.lookAgain(due)
		}
		if write {
			d.next.LastHeartbeatTime = metav1.NewTime(heartbeat.Truncate(time.Second))
		}
	}
	if !write {
		d.decision.ConfirmGone = ""
		return
	}
	if d.decision.Reason == "" {
		d.decision.Reason = d.reason(differs)
	}
	d.decision.State = UpdateState
	d.decision.Status = d.next
	d.decision.Events = d.events()
	d.decision.Create = nil
}

// compare says whether the next status differs from the old one, and whether it has to be written now. A server that
// restarts is new evidence for sixty resources, most of which are written as before; these wait for a moment, and those
// that changed do not wait behind them.
func (d *deciding) compare() (differs, pressing bool) {
	switch {
	case !sameFacts(&d.old, &d.next):
		return true, true
	case sameEvidence(d.old.Evidence, d.next.Evidence):
		return false, false
	default:
		return true, !d.in.Now.Before(d.last.Evidence.FirstObservedTime.Add(d.in.Periods.Hold))
	}
}

// reason is why a state is written that starts nothing.
func (d *deciding) reason(differs bool) Reason {
	switch {
	case d.newEpoch:
		return reasonNewEpoch
	case isMigrated(&d.next) && !isMigrated(&d.old):
		return reasonMigrated
	case !differs:
		return reasonHeartbeat
	default:
		return reasonStateChanged
	}
}

// heartbeatInterval is shorter by up to a fifth, differently for each resource, so that writes spread out. Evidence that
// cannot be compared later is only worth the time since it was seen.
func (d *deciding) heartbeatInterval() time.Duration {
	if d.perishable() {
		return d.in.Periods.Poll / 2
	}
	interval := d.in.Periods.Heartbeat
	return interval - time.Duration(uint64(interval/5)/1000*(fingerprint(d.state.Name)%1000))
}

// perishable says that the evidence is only worth the time since it was seen.
func (d *deciding) perishable() bool {
	return d.last.Evidence.Source != "" && !storageversion.Durable(d.last.Evidence)
}

// lookAgain is about times to come: what was due by now was looked at.
func (d *deciding) lookAgain(at time.Time) {
	if !at.After(d.in.Now) {
		return
	}
	if d.decision.LookAgain.IsZero() || at.Before(d.decision.LookAgain) {
		d.decision.LookAgain = at
	}
}

// held says that something is not known for so short a time that it may pass by itself: nothing is told, started or
// concluded meanwhile.
func (d *deciding) held() bool {
	problem := d.in.Observation.Problem
	return problem != nil && d.in.Now.Before(problem.Since.Add(d.in.Periods.Hold))
}

func isMigrated(status *migrationv1alpha1.StorageStateStatus) bool {
	return status.CurrentStorageVersionHash != storageversion.Unknown &&
		slices.Equal(status.PersistedStorageVersionHashes, []string{status.CurrentStorageVersionHash})
}
