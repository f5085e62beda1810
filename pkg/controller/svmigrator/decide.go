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
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// Input is everything that a decision about one migration depends on.
type Input struct {
	Migration *migrationv1alpha1.StorageVersionMigration
	// Observation is what the servers write.
	Observation storageversion.Observation
	// State is the StorageState of the resource, or nil if there is none.
	State *migrationv1alpha1.StorageState
	// HasTrigger means that this manager runs the trigger too. Then there will be a StorageState.
	HasTrigger bool
	// Settle is how long all servers must have written one encoding before they count as agreed.
	Settle time.Duration
	Now    time.Time
}

// Verdict is what to do with a migration now.
type Verdict string

const (
	// Wait: nothing may be written now.
	Wait Verdict = "Wait"
	// Go: the servers agree on the target, and have done so since the migration started.
	Go Verdict = "Go"
	// Fail: this migration cannot succeed any more.
	Fail Verdict = "Fail"
)

// Decision is a verdict with its reason.
type Decision struct {
	Verdict Verdict
	// Reason and Message are for a condition. They are empty if the verdict is Go.
	Reason, Message string
	// Target is the encoding to store every object in. Evidence shows that the servers agree on it. Both are set if the
	// verdict is Go.
	Target   *migrationv1alpha1.MigrationTarget
	Evidence *migrationv1alpha1.StorageEvidence
	// DecideAt is when to decide again if no event comes before. Zero means that only an event can change the decision.
	DecideAt time.Time
}

// until returns the decision with the time when to decide again if no event comes before.
func (d Decision) until(at time.Time) Decision {
	d.DecideAt = at
	return d
}

// untilAtMost is until, unless the decision already has an earlier time.
func (d Decision) untilAtMost(at time.Time) Decision {
	if d.DecideAt.IsZero() || at.Before(d.DecideAt) {
		d.DecideAt = at
	}
	return d
}

// restarts says what people can do after a migration that failed because the servers changed.
const restarts = "The trigger replaces a migration that it created. If you created this one, create it again"

// Decide says whether a migration that has not ended may write now. It is pure. The controller calls it before a run,
// whenever something changes, and at the end of a run: a migration succeeds only if the verdict is Go when all its
// objects are done.
func Decide(in Input) Decision {
	m := in.Migration
	resource := m.GroupResource()
	deleted := in.Observation.Presence == storageversion.Deleted
	waitsUntil := m.CreationTimestamp.Add(servedPatience)
	switch {
	case resource.Resource == "":
		return failDecision(migrationv1alpha1.MigrationReasonInvalidResource,
			"spec.resource.resource is empty. Create another migration, for example of deployments of the group apps")
	case strings.Contains(resource.Resource, "/"):
		return failDecision(migrationv1alpha1.MigrationReasonInvalidResource,
			"%q is a subresource, and is stored with its resource. Create a migration of the resource", resource.Resource)
	case deleted && !in.Now.Before(waitsUntil):
		return failDecision(migrationv1alpha1.MigrationReasonResourceNotServed,
			"the CustomResourceDefinition of %s was deleted, and its objects with it", resource)
	}
	var d Decision
	switch target := m.EpochTarget(); {
	case deleted: // Somebody may have created it again, together with the migration.
		d = waitDecision(migrationv1alpha1.MigrationReasonResourceNotServed,
			"the CustomResourceDefinition of %s was deleted", resource).until(waitsUntil)
	case target != nil:
		d = in.decideBound(target)
	default:
		d = in.decideUnbound()
	}
	// If a migration of the trigger failed while it is suspended, the trigger would create another one that is not
	// suspended.
	if m.Spec.Suspend && (d.Verdict != Fail || m.HasEpoch()) {
		return waitDecision(migrationv1alpha1.MigrationReasonSuspended,
			"the migration is suspended. Set spec.suspend to false to continue")
	}
	return d
}

// decideBound decides about a migration for one epoch of one StorageState. A new epoch begins whenever a server may
// have written another encoding. So if the epoch is the same, the servers have agreed all the time.
func (in *Input) decideBound(target *migrationv1alpha1.MigrationTarget) Decision {
	state := in.State
	switch {
	case state == nil || state.UID != target.StorageStateUID:
		return in.epochOver(migrationv1alpha1.MigrationReasonTargetChanged,
			"the StorageState that the migration was made for is gone, and its epochs with it")
	case state.Status.Epoch > *target.Epoch:
		return in.epochOver(migrationv1alpha1.MigrationReasonAgreementLost,
			"a server wrote another encoding than %s, or may have done so. So epoch %d of the StorageState, to which the "+
				"migration belongs, is over, and epoch %d has begun",
			versionOfTarget(target), *target.Epoch, state.Status.Epoch)
	case state.Status.Epoch < *target.Epoch:
		// The cache is late.
		return notAgreed("the migrator has not seen epoch %d of the StorageState yet", *target.Epoch)
	case state.Status.CurrentStorageVersionHash != target.StorageVersionHash:
		return failDecision(migrationv1alpha1.MigrationReasonTargetChanged,
			"the servers write %s now, not %s. "+restarts, state.Status.CurrentEncodingVersion, versionOfTarget(target))
	}
	if message, agreed := agreedBy(state); !agreed {
		return notAgreed("%s", message)
	}
	if doubt := reasonToWait(&in.Observation, target.StorageVersionHash); doubt != nil {
		return *doubt
	}
	if in.stateCoversObservation(state, target.StorageVersionHash) {
		// Whoever created the migration may have named any version. The StorageState knows which one has the hash.
		known := *target
		known.EncodingVersion = state.Status.CurrentEncodingVersion
		return in.goDecision(&known)
	}
	d := notAgreed("the servers changed after the StorageState was written. The migration waits until the trigger " +
		"updates it")
	if in.HasTrigger {
		return d
	}
	last, _ := in.Observation.Last() // reasonToWait has checked that there is one.
	if d.DecideAt = last.Since.Add(stateUpdatedWithin); !in.Now.Before(d.DecideAt) {
		return failDecision(migrationv1alpha1.MigrationReasonAgreementLost,
			"no trigger updates the StorageState, so it does not show whether the servers agreed on %s all the time. "+
				"Run the trigger, or create a migration without spec.target", versionOfTarget(target))
	}
	return d
}

// epochOver returns the decision about a migration whose epoch is over. The trigger deletes those that it created. If
// the migrator was first and failed them, each rolling upgrade would leave failed migrations behind.
func (in *Input) epochOver(reason, format string, args ...any) Decision {
	if in.HasTrigger && in.Migration.HasEpoch() {
		return notAgreed(format+". The trigger replaces the migration", args...)
	}
	return failDecision(reason, format+". "+restarts, args...)
}

// stateUpdatedWithin is longer than a trigger in another manager needs to update a StorageState.
const stateUpdatedWithin = 15 * time.Minute

// decideUnbound decides about a migration that a person created, or that was started without a StorageState. Without an
// epoch its success proves nothing to the trigger. So it takes the epoch of the StorageState if there is one.
func (in *Input) decideUnbound() Decision {
	if in.Migration.Begun() {
		return in.decideBegunUnbound()
	}
	last := lastWritten(&in.Observation)
	target, wait := in.chooseTarget(last)
	if wait != nil {
		return *wait
	}
	if doubt := reasonToWait(&in.Observation, last); doubt != nil {
		return *doubt
	}
	if asked := in.Migration.Spec.Target; asked != nil && asked.StorageVersionHash != last {
		return failDecision(migrationv1alpha1.MigrationReasonTargetChanged,
			"the servers write %s, not %s. Create a migration without spec.target, which takes what the servers write",
			versionOfTarget(target), versionOfTarget(asked))
	}
	if d := in.lastWritesPending(); d != nil {
		return *d
	}
	agreedFrom := in.Observation.WroteOnlyFrom(last).Add(in.Settle)
	if target.Epoch == nil && in.Now.Before(agreedFrom) {
		return notAgreed("all servers write %s. The migration starts at %s, when writes that began earlier have ended",
			versionOfTarget(target), agreedFrom.UTC().Format(time.RFC3339)).until(agreedFrom)
	}
	return in.goDecision(target)
}

// decideBegunUnbound decides about a migration without an epoch that has begun.
func (in *Input) decideBegunUnbound() Decision {
	started := in.Migration.Status.Target
	// If there is no sighting, nothing shows that the agreement was lost. Then reasonToWait returns a decision to wait.
	if evidence := in.Migration.Status.Evidence; evidence != nil && len(in.Observation.Sightings) > 0 &&
		!in.wroteOnlySinceRecord(*evidence, started.StorageVersionHash, false) {
		return failDecision(migrationv1alpha1.MigrationReasonAgreementLost,
			"since the migration started, not all servers have written %s all the time. "+restarts, versionOfTarget(started))
	}
	if doubt := reasonToWait(&in.Observation, started.StorageVersionHash); doubt != nil {
		return *doubt
	}
	return in.goDecision(started)
}

// chooseTarget returns the target of a migration that has not begun. It has the epoch of the StorageState if that says
// that the servers agree on the hash, and includes everything that was observed. Otherwise it has no epoch, or, if the
// trigger runs here, there is a decision to wait until the trigger has written the StorageState.
func (in *Input) chooseTarget(hash string) (target *migrationv1alpha1.MigrationTarget, wait *Decision) {
	message := fmt.Sprintf("no StorageState of %s shows yet what the servers write. The trigger will write it",
		in.Migration.GroupResource())
	target = &migrationv1alpha1.MigrationTarget{
		StorageVersionHash: hash, EncodingVersion: versionOfHash(&in.Observation, hash),
	}
	if state := in.State; state != nil {
		why, agreed := agreedBy(state)
		if agreed && state.Status.CurrentStorageVersionHash == hash && in.stateCoversObservation(state, hash) {
			target.Epoch, target.StorageStateUID = new(state.Status.Epoch), state.UID
			target.EncodingVersion = state.Status.CurrentEncodingVersion
			return target, nil
		}
		if !agreed {
			message = why
		}
	}
	if in.HasTrigger {
		d := notAgreed("%s", message)
		return nil, &d
	}
	return target, nil
}

// lastWritesPending returns a decision to wait if a migration that a person created must not start yet, else nil. The
// migration may be for a new encryption key, and the encoding does not show which key a server writes with. A server
// that is ending still finishes writes with the old key.
func (in *Input) lastWritesPending() *Decision {
	o := &in.Observation
	start := o.ServersSince.Add(in.Settle)
	if o.Class == storageversion.Aggregated || !in.Now.Before(start) {
		return nil
	}
	d := notAgreed("an API server started or ended at %s, or this manager started then. Writes with an old "+
		"encryption key may still land until %s, so the migration starts then",
		o.ServersSince.UTC().Format(time.RFC3339), start.UTC().Format(time.RFC3339)).until(start)
	return &d
}

// stateCoversObservation reports whether the StorageState includes everything that was observed. It does not if the
// trigger has not recorded the latest sightings yet, or does not run.
func (in *Input) stateCoversObservation(state *migrationv1alpha1.StorageState, hash string) bool {
	sightings := in.Observation.Sightings
	if state.Status.Evidence == nil || len(sightings) == 0 {
		return false
	}
	// Evidence that is not durable counts if the heartbeat of the state is no earlier than when this manager saw it. A
	// heartbeat is rounded down to whole seconds.
	firstSeen := sightings[0].Since.Truncate(time.Second)
	heartbeat := state.Status.LastHeartbeatTime.Time
	// A time in the future comes from another clock, or from this clock before it was set back.
	heartbeatCovers := !heartbeat.Before(firstSeen) && !heartbeat.After(in.Now.Add(controller.ClockTolerance))
	return in.wroteOnlySinceRecord(*state.Status.Evidence, hash, heartbeatCovers)
}

// wroteOnlySinceRecord reports whether the observation shows that the servers have written only this encoding since the
// evidence was recorded. heartbeatCovers means that evidence which is not durable counts as well.
func (in *Input) wroteOnlySinceRecord(
	recorded migrationv1alpha1.StorageEvidence, hash string, heartbeatCovers bool,
) bool {
	sightings := in.Observation.Sightings
	later, known := storageversion.SightingsSince(recorded, sightings)
	if !known || slices.ContainsFunc(later, func(s storageversion.Sighting) bool { return !s.ProvesOnly(hash) }) {
		return false
	}
	// Evidence that another manager recorded can be compared only if it is durable.
	return heartbeatCovers || storageversion.Durable(recorded) ||
		slices.ContainsFunc(sightings, func(s storageversion.Sighting) bool { return s.IsRecordedAs(recorded) })
}

// goDecision returns a decision to let the migration write.
func (in *Input) goDecision(target *migrationv1alpha1.MigrationTarget) Decision {
	last, _ := in.Observation.Last() // reasonToWait has checked that there is one.
	return Decision{Verdict: Go, Target: target, Evidence: last.Evidence.DeepCopy()}
}

// agreedBy reports whether a StorageState says that the servers agree. The string is the message of the StorageState.
func agreedBy(state *migrationv1alpha1.StorageState) (string, bool) {
	if c := meta.FindStatusCondition(state.Status.Conditions, migrationv1alpha1.StorageStateAgreed); c != nil {
		return c.Message, c.Status == metav1.ConditionTrue
	}
	return "the StorageState does not say yet whether the servers agree", false
}

// reasonToWait returns a decision to wait if nothing may be written now, else nil. A migration that runs stops and
// waits too. It is no decision to fail, because the reason may pass: for example, the manager can read definitions
// again. If a server really wrote another encoding, a new epoch begins.
func reasonToWait(o *storageversion.Observation, hash string) *Decision {
	var d Decision
	switch last, seen := o.Last(); {
	case o.Problem != nil:
		d = waitDecision(migrationv1alpha1.MigrationReasonServersUnseen, "%s", o.Problem.Message)
	case !seen:
		d = waitDecision(migrationv1alpha1.MigrationReasonServersUnseen, "the servers were not asked yet what they write")
	case o.Presence == storageversion.NotServed:
		d = waitDecision(migrationv1alpha1.MigrationReasonResourceNotServed, "no server serves %s", o.Resource)
	case len(last.Writing) > 1:
		d = notAgreed("the servers write different encodings. The migration waits until all write the same")
	case len(last.Writing) == 0 || last.Writing[0] == storageversion.Unknown:
		d = notAgreed("it is not known yet in which version the servers write %s", o.Resource)
	case last.Writing[0] != hash:
		d = notAgreed("the servers write another encoding than %s", versionOfHash(o, hash))
	default:
		return nil
	}
	return &d
}

// lastWritten is the hash of the encoding that all servers were last seen to write, or Unknown if they do not agree.
func lastWritten(o *storageversion.Observation) string {
	if last, seen := o.Last(); seen && len(last.Writing) == 1 {
		return last.Writing[0]
	}
	return storageversion.Unknown
}

// versionOfHash is the version that a hash stands for, or the hash if the version is not known.
func versionOfHash(o *storageversion.Observation, hash string) string {
	return cmp.Or(o.Versions[hash], hash)
}

// versionOfTarget is the version of a target, or its hash if the version is not known.
func versionOfTarget(target *migrationv1alpha1.MigrationTarget) string {
	return cmp.Or(target.EncodingVersion, target.StorageVersionHash)
}

// failDecision returns a decision to fail the migration. Its message is one or more sentences.
func failDecision(reason, format string, args ...any) Decision {
	return newDecision(Fail, reason, format, args...)
}

// notAgreed returns a decision to wait until the servers have agreed on the target for long enough.
func notAgreed(format string, args ...any) Decision {
	return waitDecision(migrationv1alpha1.MigrationReasonAwaitingAgreement, format, args...)
}

// waitDecision returns a decision to wait.
func waitDecision(reason, format string, args ...any) Decision {
	return newDecision(Wait, reason, format, args...)
}

func newDecision(verdict Verdict, reason, format string, args ...any) Decision {
	return Decision{Verdict: verdict, Reason: reason, Message: controller.Sentence(fmt.Sprintf(format, args...))}
}
