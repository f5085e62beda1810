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

package simulation

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmtrigger"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// within is the number of histories within which each mutant must have been found.
const within = 4000

// mutants are mistakes. Where few histories find one, first is a seed shortly before one of those, or history is one.
var mutants = map[string]struct {
	mutant
	first   int
	history string
}{
	"takes the success of an earlier epoch for a proof": {mutant: mutant{input: skipEpochs}},
	"takes any success for a proof":                     {mutant: mutant{input: believeAll}},
	"ignores one server":                                {mutant: mutant{living: withoutOne, look: withoutOneDocument}},
	"takes a shared address for that of one server":     {mutant: mutant{look: shareNothing}},
	"trusts the holder of a Lease":                      {mutant: mutant{look: trustHolders}, first: 680},
	"counts connections and not processes":              {mutant: mutant{name: nameOfConnection}},
	"takes one replica for all of them":                 {mutant: mutant{aggregated: overlookReplicas}},
	"takes an error for absence":                        {mutant: mutant{look: failedAsEmpty}, first: 410},
	"creates migrations before the state is written":    {mutant: mutant{decision: createAtOnce, createsFirst: true}},
	"creates migrations without reading the state":      {mutant: mutant{trustsStates: true}, first: 6430},
	"creates one beside one that the cache lacks":       {mutant: mutant{decision: nameAnew}, first: 650},
	"settles by the clock of another host":              {mutant: mutant{input: believeClocks}, first: 590},
	"settles by a clock that is set":                    {mutant: mutant{input: believeWallClock}, first: 1430},
	"does not settle":                                   {mutant: mutant{input: settleAtOnce}},
	"closes its eyes to gaps":                           {mutant: mutant{input: forgetGaps}},
	"ignores how far the generation is":                 {mutant: mutant{input: forgetGenerations}},
	"believes whoever shortens storedVersions":          {mutant: mutant{decision: subtractStored}},
	"forgets the process that nobody read":              {mutant: mutant{observation: forgetUnread}},
	"forgets who left unread":                           {mutant: mutant{observation: forgetDeparted}, first: 255},
	"forgets what a server that comes back may write":   {mutant: mutant{observation: forgetReturns}, history: comesBack},
	"agrees although servers are unseen":                {mutant: mutant{observation: overlookProblems}},
	"forgets the replicas that nobody read":             {mutant: mutant{observation: forgetReplicas}},
	"does not ask who follows a definition":             {mutant: mutant{forgetsFollowers: true}, first: 240},
	"goes on when etcd was restored":                    {mutant: mutant{survivesRestores: true}},
	"asks who follows only when it starts":              {mutant: mutant{asksFollowersOnce: true}, first: 240},
	"asks only servers that are ready who follows":      {mutant: mutant{forgetsMissing: true}, first: 6480},
	"forgets who answers without a Lease":               {mutant: mutant{forgetsLost: true}, history: answersForAnother},
	"forgets who may have been back":                    {mutant: mutant{forgetsWhoWasBack: true}, history: backInAGap},
	"confirms by a watch that may be late":              {mutant: mutant{trustsWatch: true}, history: diesUnseen},
	"takes what is like a record for what was recorded": {mutant: mutant{input: believeRecords}, history: leftInAStandby},
	"writes on whatever is decided":                     {mutant: mutant{goesOn: true}, first: 50},
	"does not ask etcd who holds the Leases":            {mutant: mutant{trustsLeases: true}, history: comesUnseen},
	"does not read the aggregated server at the end":    {mutant: mutant{trustsPolls: true}, first: 50},
	"succeeds before it is certain who was read":        {mutant: mutant{trustsLooks: true}, history: readInItsPlace},
	"prunes a definition that has changed":              {mutant: mutant{prunesBlindly: true}, history: changesUnseen},
	"takes the success under another state for a proof": {mutant: mutant{input: takeUIDsForTheSame}, first: 475},
}

// TestMutants makes sure that the simulation finds what it is there to find.
func TestMutants(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(mutants)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := mutants[name]
			if m.history != "" {
				s, err := parse(m.history)
				if err != nil || !s.finds(m.mutant) {
					t.Errorf("not found by its history, %v", err)
				}
				return
			}
			for one := max(m.first, 1); one <= m.first+within; one++ {
				if scripts.Example(one).finds(m.mutant) {
					t.Logf("found by history %d", one)
					return
				}
			}
			t.Errorf("not found within %d histories", within)
		})
	}
}

// finds reports whether the mistake makes the history fail, which passes without it.
func (s script) finds(m mutant) bool {
	if _, err := s.play(m, nil); err == nil {
		return false
	}
	_, err := s.play(mutant{}, nil)
	return err == nil
}

// skipEpochs makes every success one of the current epoch. A migration of an earlier one began before it, which gives
// it away as well.
func skipEpochs(w *world, in *svmtrigger.Input) {
	changeMigrations(in, func(m *migrationv1alpha1.StorageVersionMigration) {
		if target := m.Status.Target; target != nil && target.StorageStateUID == in.State.UID && m.Finished() {
			target.Epoch, m.Status.StartTime = &in.State.Status.Epoch, &metav1.Time{Time: w.now}
		}
	})
}

// takeUIDsForTheSame makes every success one under the current state.
func takeUIDsForTheSame(w *world, in *svmtrigger.Input) {
	changeMigrations(in, func(m *migrationv1alpha1.StorageVersionMigration) {
		if target := m.Status.Target; target != nil && m.Finished() {
			target.StorageStateUID, m.Status.StartTime = in.State.UID, &metav1.Time{Time: w.now}
		}
	})
}

// believeAll gives every migration that succeeded what makes a proof.
func believeAll(w *world, in *svmtrigger.Input) {
	changeMigrations(in, func(m *migrationv1alpha1.StorageVersionMigration) {
		if m.IsConditionTrue(migrationv1alpha1.MigrationSucceeded) {
			m.Status.Target = &migrationv1alpha1.MigrationTarget{
				StorageVersionHash: in.State.Status.CurrentStorageVersionHash, Epoch: &in.State.Status.Epoch,
				StorageStateUID: in.State.UID,
			}
			m.Status.StartTime = &metav1.Time{Time: w.now}
		}
	})
}

func changeMigrations(in *svmtrigger.Input, change func(*migrationv1alpha1.StorageVersionMigration)) {
	if in.State == nil {
		return
	}
	for i, m := range in.Migrations {
		in.Migrations[i] = m.DeepCopy()
		change(in.Migrations[i])
	}
}

func withoutOne(living []storageversion.Process, unbroken bool) ([]storageversion.Process, bool) {
	return slices.DeleteFunc(slices.Clone(living),
		func(s storageversion.Process) bool { return s.Identity == identityOf(1) }), unbroken
}

func withoutOneDocument(look storageversion.Look) storageversion.Look {
	look.Documents = maps.Clone(look.Documents)
	maps.DeleteFunc(look.Documents, func(address string, _ storageversion.Document) bool { return address == "10.0.0.b" })
	return look
}

// shareNothing takes what the first process behind a shared address says for what all others say at addresses of their
// own.
func shareNothing(look storageversion.Look) storageversion.Look {
	if !look.Shared {
		return look
	}
	first := look.Documents[slices.Min(slices.Collect(maps.Keys(look.Documents)))]
	look.Shared, look.WhyUnmet = false, ""
	look.Documents, look.Advertised = map[string]storageversion.Document{}, map[string]string{}
	for _, server := range look.Living {
		look.Advertised[server.Identity] = "of " + server.Identity
		look.Documents["of "+server.Identity] = first
	}
	return look
}

// trustHolders takes every server for one whose Lease identifies the process.
func trustHolders(look storageversion.Look) storageversion.Look {
	look.Documents = maps.Clone(look.Documents)
	for name, document := range look.Documents {
		if document.Version != "" {
			document.Version, document.Connected = "v1.37.1", false
			look.Documents[name] = document
		}
	}
	return look
}

// nameOfConnection takes every connection for one to another process.
func nameOfConnection(_ *server, connection int) string {
	return fmt.Sprintf("connection %d", connection)
}

// forgetReplicas waits for the end of a rollout, and does not record that it took place.
func forgetReplicas(o *storageversion.Observation) {
	o.Sightings = slices.DeleteFunc(slices.Clone(o.Sightings),
		func(s storageversion.Sighting) bool {
			return s.Evidence.Source == migrationv1alpha1.EvidenceFromAggregatedDiscovery &&
				slices.Contains(s.Writing, storageversion.Unknown)
		})
}

// overlookReplicas takes what one replica says for what all say.
func overlookReplicas(document *storageversion.AggregatedDocument) *storageversion.AggregatedDocument {
	document.WhyReplicasDiffer = ""
	return document
}

func failedAsEmpty(look storageversion.Look) storageversion.Look {
	look.Documents = maps.Clone(look.Documents)
	for address, document := range look.Documents {
		document.Failure = ""
		look.Documents[address] = document
	}
	return look
}

// createAtOnce creates a migration in the decision that begins its epoch.
func createAtOnce(_ *world, in svmtrigger.Input, d *svmtrigger.Decision) {
	if d.StateAction != svmtrigger.UpdateState || d.Status.Epoch == in.State.Status.Epoch {
		return
	}
	epoch, resource := d.Status.Epoch, in.State.Spec.Resource
	d.Create = &migrationv1alpha1.StorageVersionMigration{
		Spec: migrationv1alpha1.StorageVersionMigrationSpec{
			Resource: migrationv1alpha1.GroupVersionResource{Group: resource.Group, Resource: resource.Resource},
			Target: &migrationv1alpha1.MigrationTarget{
				StorageVersionHash: d.Status.CurrentStorageVersionHash, Epoch: &epoch, StorageStateUID: in.State.UID,
			},
		},
	}
	d.Create.Name = resource.Resource + "-at-once"
}

// nameAnew gives each migration another name, although the attempt is the same.
func nameAnew(w *world, _ svmtrigger.Input, d *svmtrigger.Decision) {
	if d.Create != nil {
		d.Create.Name += "-" + w.api.nextVersion()
	}
}

func settleAtOnce(_ *world, in *svmtrigger.Input) { in.Periods.Settle = 0 }

// believeClocks measures the settle period from when another host says that the epoch began.
func believeClocks(_ *world, in *svmtrigger.Input) {
	if in.State != nil && in.State.Status.EpochStartTime != nil {
		in.EpochSeenAt = in.State.Status.EpochStartTime.Time
	}
}

// believeWallClock measures the settle period by what the clock of the host showed when the epoch began.
func believeWallClock(_ *world, in *svmtrigger.Input) { in.EpochSeenAt = in.EpochSeenAt.Round(0) }

// forgetGaps has the state say that it was written when what is known begins.
func forgetGaps(_ *world, in *svmtrigger.Input) {
	run := in.Observation.Sightings
	if in.State == nil || in.State.Status.Evidence == nil || len(run) == 0 {
		return
	}
	for _, sighting := range run {
		if storageversion.SameEvidence(sighting.Evidence, *in.State.Status.Evidence) {
			return
		}
	}
	changeEvidence(in, func(e *migrationv1alpha1.StorageEvidence) {
		first := e.FirstObservedTime
		*e = *run[0].Evidence.DeepCopy()
		e.FirstObservedTime = first
	})
}

// believeRecords takes the first sighting that is like the recorded one for it, whatever was seen before.
func believeRecords(_ *world, in *svmtrigger.Input) {
	if in.State == nil || in.State.Status.Evidence == nil {
		return
	}
	run := in.Observation.Sightings
	in.Observation.Sightings = run[max(0, slices.IndexFunc(run, func(s storageversion.Sighting) bool {
		return storageversion.SameEvidence(s.Evidence, *in.State.Status.Evidence)
	})):]
}

// forgetGenerations has the state know the generation before the first that is known.
func forgetGenerations(_ *world, in *svmtrigger.Input) {
	run := in.Observation.Sightings
	if in.State == nil || in.State.Status.Evidence == nil || len(run) == 0 ||
		run[0].Evidence.CustomResourceDefinition == nil {
		return
	}
	first := run[0].Evidence.CustomResourceDefinition.Generation
	changeEvidence(in, func(e *migrationv1alpha1.StorageEvidence) {
		if e.CustomResourceDefinition != nil && e.CustomResourceDefinition.Generation < first-1 {
			e.CustomResourceDefinition.Generation = first - 1
		}
	})
}

func changeEvidence(in *svmtrigger.Input, change func(*migrationv1alpha1.StorageEvidence)) {
	in.State = in.State.DeepCopy()
	change(in.State.Status.Evidence)
}

// subtractStored takes versions that leave status.storedVersions out of what is persisted.
func subtractStored(_ *world, in svmtrigger.Input, d *svmtrigger.Decision) {
	if d.StateAction != svmtrigger.UpdateState || d.Status.Evidence == nil ||
		d.Status.Evidence.CustomResourceDefinition == nil ||
		d.Status.CurrentStorageVersionHash != in.State.Status.CurrentStorageVersionHash {
		return
	}
	if len(d.Status.Evidence.CustomResourceDefinition.StoredVersions) == 1 {
		d.Status.PersistedStorageVersionHashes = []string{d.Status.CurrentStorageVersionHash}
	}
}

// forgetUnread takes away everything that tells of processes that nobody read.
func forgetUnread(o *storageversion.Observation) {
	o.UnreadLiving = nil
	o.Sightings = slices.Clone(o.Sightings)
	for i, sighting := range o.Sightings {
		sighting.Writing = slices.DeleteFunc(slices.Clone(sighting.Writing),
			func(h string) bool { return h == storageversion.Unknown })
		sighting.UnreadDeparted = nil
		o.Sightings[i] = sighting
	}
}

// forgetDeparted takes away only what tells of processes that left.
func forgetDeparted(o *storageversion.Observation) {
	o.Sightings = slices.Clone(o.Sightings)
	for i := range o.Sightings {
		o.Sightings[i].UnreadDeparted = nil
	}
}

// forgetReturns takes away what tells of servers that came back and may write what a definition said before.
func forgetReturns(o *storageversion.Observation) {
	if o.Class == storageversion.Custom {
		forgetDeparted(o)
	}
}

func overlookProblems(o *storageversion.Observation) {
	o.Problem, o.UnreadLiving = nil, nil
}
