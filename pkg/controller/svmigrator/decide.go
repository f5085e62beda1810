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
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// Input is everything that a decision about one migration depends on.
type Input struct {
	Migration *migrationv1alpha1.StorageVersionMigration
	// Observation is what the servers write.
	Observation storageversion.Observation
	// State is the StorageState of the resource, nil if there is none.
	State *migrationv1alpha1.StorageState
	// Triggered says that StorageStates are kept by this process too, so that there will be one.
	Triggered bool
	// Settle is how long evidence must stand before it counts as agreement.
	Settle time.Duration
	Now    time.Time
}

// Verdict is what is to be done with a migration at this time.
type Verdict string

const (
	// Ignore: it has ended.
	Ignore Verdict = "Ignore"
	// Wait: nothing may be written now.
	Wait Verdict = "Wait"
	// Go: the servers agree on the target, and nothing has shaken that since the migration started.
	Go Verdict = "Go"
	// Fail: whatever happens, this migration cannot succeed any more.
	Fail Verdict = "Fail"
)

// Decision is a verdict and why it is that.
type Decision struct {
	Verdict Verdict
	// Reason and Message are those of a condition. They are empty where the verdict is Go.
	Reason, Message string
	// Target is what every object is to be stored in, and Evidence what shows that the servers agree on it, where the verdict
	// is Go.
	Target   *migrationv1alpha1.MigrationTarget
	Evidence *migrationv1alpha1.StorageEvidence
	// LookAgain is when to decide again if nothing else happens. Zero if only events matter.
	LookAgain time.Time
}

// Decide says whether a migration may write at this time. It is pure, and asked before the start, whenever something
// changes, and at the end: a migration succeeds only if the answer is Go when all its objects are done.
func Decide(in Input) Decision {
	m := in.Migration
	switch {
	case finished(m):
		return Decision{Verdict: Ignore}
	case m.Spec.Resource.Resource == "":
		return fails(migrationv1alpha1.MigrationReasonInvalidResource, "spec.resource.resource names no resource: create another migration that does, for example deployments of the group apps.")
	case isSubresource(m):
		return fails(migrationv1alpha1.MigrationReasonInvalidResource,
			"%q is a subresource, which is stored with its resource: create a migration of the resource alone.", m.Spec.Resource.Resource)
	case in.Observation.Expires:
		return fails(migrationv1alpha1.MigrationReasonInvalidResource, "%s expire by themselves, and a rewrite would prolong their life: wait until the API servers' --event-ttl has passed.", resourceOf(m))
	case in.Observation.Presence == storageversion.Deleted:
		return fails(migrationv1alpha1.MigrationReasonResourceNotServed, "the CustomResourceDefinition of %s was deleted, and its objects with it.", resourceOf(m))
	}
	if target := wanted(m); target != nil && target.Epoch != nil {
		return decideBound(in, target)
	}
	return decideUnbound(in)
}

// wanted is the target that a migration is bound to, nil if that is yet to be chosen.
func wanted(m *migrationv1alpha1.StorageVersionMigration) *migrationv1alpha1.MigrationTarget {
	if m.Status.Target != nil {
		return m.Status.Target
	}
	return m.Spec.Target
}

// decideBound is about a migration that was made for one epoch of one StorageState. A new epoch begins whenever something may
// have been written in another encoding, so that the agreement held for as long as the epoch is the same.
func decideBound(in Input, target *migrationv1alpha1.MigrationTarget) Decision {
	state := in.State
	switch {
	case state == nil || state.UID != target.StorageStateUID:
		return fails(migrationv1alpha1.MigrationReasonTargetChanged, "the StorageState that the migration was made for is gone: its epochs count for nothing any more.")
	case state.Status.Epoch > *target.Epoch:
		return fails(migrationv1alpha1.MigrationReasonAgreementLost, "the servers did not agree on %s all the time: the StorageState is in epoch %d, and the migration was made for epoch %d.",
			words(target), state.Status.Epoch, *target.Epoch)
	case state.Status.Epoch < *target.Epoch:
		// Read from a cache that is behind.
		return waits("the StorageState of epoch %d was not seen yet.", *target.Epoch)
	case state.Status.CurrentStorageVersionHash != target.StorageVersionHash:
		return fails(migrationv1alpha1.MigrationReasonTargetChanged, "objects are written in %s by now, and not in %s.", state.Status.CurrentEncodingVersion, words(target))
	}
	if message, ok := agreedBy(state); !ok {
		return waits("%s", message)
	}
	if doubt := doubtful(in, target.StorageVersionHash); doubt != nil {
		return *doubt
	}
	if in.vouched(state, target.StorageVersionHash) {
		return in.goes(target)
	}
	d := waits("the StorageState does not tell yet of what the servers were seen to write since it was written. The trigger keeps it.")
	if in.Triggered {
		return d
	}
	last, _ := in.Observation.Last() // there is one, or it would be doubtful
	if d.LookAgain = last.Evidence.FirstObservedTime.Add(keptWithin); !in.Now.Before(d.LookAgain) {
		return fails(migrationv1alpha1.MigrationReasonAgreementLost, "nobody keeps the StorageState, which does not tell whether the servers agreed on %s all the time.", words(target))
	}
	return d
}

// keptWithin is more than a trigger takes to tell of something, wherever it runs.
const keptWithin = 15 * time.Minute

// decideUnbound is about a migration that people made, or that was started on the observation alone. Without an epoch its
// success proves nothing to the trigger; so it takes one where there is a StorageState.
func decideUnbound(in Input) Decision {
	m, last := in.Migration, lastWriting(in.Observation)
	if started := m.Status.Target; started != nil {
		if shaken(in, started.StorageVersionHash) {
			return fails(migrationv1alpha1.MigrationReasonAgreementLost, "the servers did not agree on %s all the time since the migration started.", words(started))
		}
		if doubt := doubtful(in, started.StorageVersionHash); doubt != nil {
			return *doubt
		}
		return in.goes(started)
	}
	target := targetOf(in, last)
	if state := in.State; state != nil {
		message, agreed := agreedBy(state)
		if agreed && state.Status.CurrentStorageVersionHash == last && in.vouched(state, last) {
			epoch := state.Status.Epoch
			target.Epoch, target.StorageStateUID = &epoch, state.UID
			target.EncodingVersion = state.Status.CurrentEncodingVersion
		} else if in.Triggered && !agreed {
			return waits("%s", message)
		}
	}
	if in.Triggered && target.Epoch == nil {
		return waits("there is no StorageState of %s yet that tells of what is written now.", resourceOf(m))
	}
	if doubt := doubtful(in, last); doubt != nil {
		return *doubt
	}
	if asked := m.Spec.Target; asked != nil && asked.StorageVersionHash != last {
		return fails(migrationv1alpha1.MigrationReasonTargetChanged, "objects are written in %s, and not in %s: leave spec.target out to have what is written taken.", words(target), words(asked))
	}
	if settled := agreedSince(in.Observation, last).Add(in.Settle); target.Epoch == nil && in.Now.Before(settled) {
		d := waits("all servers write %s. That counts from %s on, when writes that began before have landed.", words(target), settled.UTC().Format(time.RFC3339))
		d.LookAgain = settled
		return d
	}
	return in.goes(target)
}

// vouched says that a StorageState is in keeping with all that was seen since it was written. An epoch that has not risen yet speaks for nothing
// that it does not know of, and a state that nobody keeps any more for nothing at all.
func (in *Input) vouched(state *migrationv1alpha1.StorageState, hash string) bool {
	recorded, run := state.Status.Evidence, in.Observation.Run
	if recorded == nil || len(run) == 0 {
		return false
	}
	news, known := storageversion.SightingsSince(*recorded, run)
	if !storageversion.Durable(*recorded) && !met(*recorded, run) {
		// The trigger has decided on a look that is not older than the first of this process. States tell whole seconds.
		known = known && !state.Status.LastHeartbeatTime.Time.Before(run[0].Evidence.FirstObservedTime.Truncate(time.Second))
	}
	return known && !slices.ContainsFunc(news, func(s storageversion.Sighting) bool { return !onlyWrites(s, hash) })
}

// met says that a run has the very sighting that was recorded. Only evidence that is durable can be compared with that of another process.
func met(recorded migrationv1alpha1.StorageEvidence, run []storageversion.Sighting) bool {
	return slices.ContainsFunc(run, func(s storageversion.Sighting) bool {
		return storageversion.SameEvidence(recorded, s.Evidence) && recorded.FirstObservedTime.Equal(s.Evidence.FirstObservedTime)
	})
}

func (in *Input) goes(target *migrationv1alpha1.MigrationTarget) Decision {
	d := Decision{Verdict: Go, Target: target}
	if last, ok := in.Observation.Last(); ok {
		d.Evidence = last.Evidence.DeepCopy()
	}
	return d
}

// agreedBy says whether a StorageState finds that the servers agree, and what it says if not.
func agreedBy(state *migrationv1alpha1.StorageState) (string, bool) {
	for _, condition := range state.Status.Conditions {
		if condition.Type == migrationv1alpha1.StorageStateAgreed {
			return condition.Message, condition.Status == metav1.ConditionTrue
		}
	}
	return "it is not known yet whether the servers agree.", false
}

// doubtful is what speaks against writing now, nil if nothing does. It may pass, so that nothing is ended because of it:
// where servers truly wrote something else, the epoch tells.
func doubtful(in Input, hash string) *Decision {
	o := &in.Observation
	var d Decision
	switch last, seen := o.Last(); {
	case o.Problem != nil:
		d = waits("%s.", o.Problem.Message)
	case !seen:
		d = waits("the servers were not asked yet.")
	case o.Presence == storageversion.NotServed:
		d = waits("no server serves %s.", o.Resource)
	case len(last.Writing) > 1:
		d = waits("the servers write different encodings.")
	case len(last.Writing) == 0 || last.Writing[0] == storageversion.Unknown:
		d = waits("no server was seen to write %s yet.", o.Resource)
	case last.Writing[0] != hash:
		d = waits("the servers were seen to write another encoding than %s.", wordsOf(o, hash))
	default:
		return nil
	}
	return &d
}

// shaken says that what was seen since the start does not show that only the target was written. It is about migrations
// that no epoch speaks for.
func shaken(in Input, hash string) bool {
	evidence, run := in.Migration.Status.Evidence, in.Observation.Run
	if evidence == nil || len(run) == 0 {
		return false // nothing was seen yet, which is for doubtful
	}
	news, known := storageversion.SightingsSince(*evidence, run)
	known = known && (storageversion.Durable(*evidence) || met(*evidence, run))
	return !known || slices.ContainsFunc(news, func(s storageversion.Sighting) bool { return !onlyWrites(s, hash) })
}

func onlyWrites(s storageversion.Sighting, hash string) bool {
	return len(s.Unseen) == 0 && slices.Equal(s.Writing, []string{hash})
}

// lastWriting is the hash of the encoding that all servers were last seen to write, Unknown if they do not agree.
func lastWriting(o storageversion.Observation) string {
	if last, seen := o.Last(); seen && len(last.Writing) == 1 {
		return last.Writing[0]
	}
	return storageversion.Unknown
}

// agreedSince is when the servers were first seen to write what they write now, and nothing else since.
func agreedSince(o storageversion.Observation, hash string) time.Time {
	since := o.Time
	for _, sighting := range slices.Backward(o.Run) {
		if !onlyWrites(sighting, hash) {
			break
		}
		since = sighting.Evidence.FirstObservedTime.Time
	}
	return since
}

func targetOf(in Input, hash string) *migrationv1alpha1.MigrationTarget {
	return &migrationv1alpha1.MigrationTarget{StorageVersionHash: hash, EncodingVersion: wordsOf(&in.Observation, hash)}
}

func wordsOf(o *storageversion.Observation, hash string) string {
	if version, ok := o.Versions[hash]; ok {
		return version
	}
	return hash
}

func words(target *migrationv1alpha1.MigrationTarget) string {
	if target.EncodingVersion != "" {
		return target.EncodingVersion
	}
	return target.StorageVersionHash
}

func resourceOf(m *migrationv1alpha1.StorageVersionMigration) schema.GroupResource {
	return schema.GroupResource{Group: m.Spec.Resource.Group, Resource: m.Spec.Resource.Resource}
}

func finished(m *migrationv1alpha1.StorageVersionMigration) bool {
	return hasCondition(m, migrationv1alpha1.MigrationSucceeded) || hasCondition(m, migrationv1alpha1.MigrationFailed)
}

func hasCondition(m *migrationv1alpha1.StorageVersionMigration, conditionType migrationv1alpha1.MigrationConditionType) bool {
	return slices.ContainsFunc(m.Status.Conditions, func(c migrationv1alpha1.MigrationCondition) bool {
		return c.Type == conditionType && c.Status == corev1.ConditionTrue
	})
}

func isSubresource(m *migrationv1alpha1.StorageVersionMigration) bool {
	return strings.Contains(m.Spec.Resource.Resource, "/")
}

func fails(reason, format string, args ...any) Decision {
	return Decision{Verdict: Fail, Reason: reason, Message: sentence(fmt.Sprintf(format, args...))}
}

func waits(format string, args ...any) Decision {
	return Decision{Verdict: Wait, Reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, Message: sentence(fmt.Sprintf(format, args...))}
}

func sentence(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
