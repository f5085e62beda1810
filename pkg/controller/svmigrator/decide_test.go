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
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

var (
	widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}
	v1      = storageversion.Hash(schema.GroupVersion{Group: "example.com", Version: "v1"}, "Widget")
	v2      = storageversion.Hash(schema.GroupVersion{Group: "example.com", Version: "v2"}, "Widget")
	noon    = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)
)

const period = time.Minute

// written is a sighting at a minute before noon.
func written(minutesAgo int, generation int64, hashes ...string) storageversion.Sighting {
	seen := metav1.NewTime(noon.Add(-time.Duration(minutesAgo) * time.Minute))
	return storageversion.Sighting{
		Since: seen.Time,
		Evidence: migrationv1alpha1.StorageEvidence{
			Source:                   migrationv1alpha1.EvidenceFromCustomResourceDefinition,
			FirstObservedTime:        &seen,
			CustomResourceDefinition: &migrationv1alpha1.CustomResourceDefinitionEvidence{UID: "crd", Generation: generation},
		},
		Writing: hashes,
	}
}

func observed(run ...storageversion.Sighting) storageversion.Observation {
	return storageversion.Observation{
		Resource: widgets, Time: noon, Class: storageversion.Custom, Presence: storageversion.Served, Sightings: run,
		Versions: map[string]string{v1: "example.com/v1", v2: "example.com/v2"},
	}
}

// stateAt is a state that was written on what was seen nine minutes before noon.
func stateAt(epoch int64, current string, agreed metav1.ConditionStatus) *migrationv1alpha1.StorageState {
	evidence := written(9, 2, v2).Evidence
	return &migrationv1alpha1.StorageState{
		ObjectMeta: metav1.ObjectMeta{Name: widgets.String(), UID: "state"},
		Status: migrationv1alpha1.StorageStateStatus{
			Epoch: epoch, CurrentStorageVersionHash: current, CurrentEncodingVersion: "example.com/v2",
			Evidence: &evidence,
			Conditions: []metav1.Condition{{
				Type: migrationv1alpha1.StorageStateAgreed, Status: agreed, Message: "As the state says.",
			}},
		},
	}
}

// polled is a sighting of an aggregated resource half a second after a minute before noon.
func polled(minutesAgo int) storageversion.Sighting {
	s := written(minutesAgo, 0, v2)
	s.Evidence.Source, s.Evidence.CustomResourceDefinition = migrationv1alpha1.EvidenceFromAggregatedDiscovery, nil
	s.Since = s.Since.Add(time.Second / 2)
	s.Evidence.FirstObservedTime = new(metav1.NewTime(migrationv1alpha1.RoundUp(s.Since)))
	return s
}

// polledState is a state that was written on a look by another process, and confirmed later.
func polledState(written, confirmed int) *migrationv1alpha1.StorageState {
	state := stateAt(3, v2, metav1.ConditionTrue)
	evidence := polled(written).Evidence
	state.Status.Evidence = &evidence
	state.Status.LastHeartbeatTime = metav1.NewTime(noon.Add(-time.Duration(confirmed) * time.Minute))
	return state
}

// serversSince is an observation after a server has come or left.
func serversSince(o storageversion.Observation, ago time.Duration) storageversion.Observation {
	o.ServersSince = noon.Add(-ago)
	return o
}

// suspended is a copy of a migration that somebody suspended.
func suspended(m *migrationv1alpha1.StorageVersionMigration) *migrationv1alpha1.StorageVersionMigration {
	m = m.DeepCopy()
	m.Spec.Suspend = true
	return m
}

func made(change func(*migrationv1alpha1.StorageVersionMigration)) *migrationv1alpha1.StorageVersionMigration {
	m := &migrationv1alpha1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "m"}}
	m.Spec.Resource = migrationv1alpha1.GroupVersionResource{Group: widgets.Group, Resource: widgets.Resource}
	if change != nil {
		change(m)
	}
	return m
}

func boundTo(epoch int64) *migrationv1alpha1.MigrationTarget {
	return &migrationv1alpha1.MigrationTarget{
		StorageVersionHash: v2, EncodingVersion: "example.com/v2", Epoch: &epoch, StorageStateUID: "state",
	}
}

func TestDecide(t *testing.T) {
	byTrigger := made(func(m *migrationv1alpha1.StorageVersionMigration) { m.Spec.Target = boundTo(3) })
	alone := func(evidence storageversion.Sighting) *migrationv1alpha1.StorageVersionMigration {
		return made(func(m *migrationv1alpha1.StorageVersionMigration) {
			m.Status.StartTime = ptr.To(metav1.NewTime(noon.Add(-time.Minute)))
			m.Status.Target = &migrationv1alpha1.MigrationTarget{StorageVersionHash: v2, EncodingVersion: "example.com/v2"}
			m.Status.Evidence = &evidence.Evidence
		})
	}
	unseen := func(s storageversion.Sighting) storageversion.Sighting {
		s.UnreadDeparted = []storageversion.Process{{Identity: "a", Incarnation: "b"}}
		return s
	}
	// partly is a sighting while replicas of an aggregated server were not asked.
	partly := func(s storageversion.Sighting) storageversion.Sighting {
		s.Writing = append(s.Writing, storageversion.Unknown)
		return s
	}
	for name, test := range map[string]struct {
		migration  *migrationv1alpha1.StorageVersionMigration
		observed   storageversion.Observation
		state      *migrationv1alpha1.StorageState
		hasTrigger bool
		want       Verdict
		reason     string
		message    string // a part of it
		epoch      int64  // of the target, where the verdict is Go
	}{
		"the trigger's migration goes while its epoch stands and the servers agree": {
			migration: byTrigger, observed: observed(written(9, 2, v2)), state: stateAt(3, v2, metav1.ConditionTrue),
			hasTrigger: true,
			want:       Go, epoch: 3,
		},
		"it waits while the state does not find that the servers agree": {
			migration: byTrigger, observed: observed(written(9, 2, v2)), state: stateAt(3, v2, metav1.ConditionFalse),
			hasTrigger: true,
			want:       Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, message: "As the state says",
		},
		"it waits as soon as a server was seen to write something else, before the state tells of it": {
			migration: byTrigger, observed: observed(written(9, 2, v2), written(0, 3, v1)),
			state: stateAt(3, v2, metav1.ConditionTrue), hasTrigger: true,
			want: Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement,
			message: "another encoding than example.com/v2",
		},
		"it waits while a server cannot be asked": {
			migration: byTrigger, state: stateAt(3, v2, metav1.ConditionTrue), hasTrigger: true,
			observed: func() storageversion.Observation {
				o := observed(written(9, 2, v2))
				o.Problem = &storageversion.Problem{
					Reason: migrationv1alpha1.StateReasonServersUnseen, Message: "the API server at 192.0.2.7 could not be asked",
				}
				return o
			}(),
			want: Wait, reason: migrationv1alpha1.MigrationReasonServersUnseen, message: "192.0.2.7",
		},
		"it fails when a new epoch began": {
			migration: byTrigger, observed: observed(written(9, 2, v2)), state: stateAt(4, v2, metav1.ConditionTrue),
			want: Fail, reason: migrationv1alpha1.MigrationReasonAgreementLost, message: "epoch 4",
		},
		"it waits for the trigger to delete it when a new epoch began": {
			migration: byTrigger, observed: observed(written(9, 2, v2)), state: stateAt(4, v2, metav1.ConditionTrue),
			hasTrigger: true,
			want:       Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, message: "trigger replaces",
		},
		"it waits where the cache has an older epoch": {
			migration: byTrigger, observed: observed(written(9, 2, v2)), state: stateAt(2, v1, metav1.ConditionTrue),
			hasTrigger: true,
			want:       Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement,
		},
		"it goes on while a change of something else is not in the state yet": {
			migration: byTrigger, observed: observed(written(9, 2, v2), written(1, 3, v2)),
			state: stateAt(3, v2, metav1.ConditionTrue), hasTrigger: true,
			want: Go, epoch: 3,
		},
		"it waits for the trigger's word about a change and back": {
			migration: byTrigger, observed: observed(written(9, 2, v2), written(4, 3, v1), written(3, 4, v2)),
			state: stateAt(3, v2, metav1.ConditionTrue), hasTrigger: true,
			want: Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, message: "trigger updates it",
		},
		"it waits for the trigger's word about a rollout that was taken back": {
			migration: byTrigger, observed: observed(polled(9), partly(polled(4)), polled(3)), state: polledState(9, 9),
			hasTrigger: true,
			want:       Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, message: "trigger updates it",
		},
		"it waits for the trigger's word about what nobody saw": {
			migration: byTrigger, observed: observed(written(0, 4, v2)), state: stateAt(3, v2, metav1.ConditionTrue),
			hasTrigger: true,
			want:       Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, message: "trigger updates it",
		},
		"it waits for events, and not for a time, where the trigger is late": {
			migration: byTrigger, observed: observed(written(90, 4, v2)), state: stateAt(3, v2, metav1.ConditionTrue),
			hasTrigger: true,
			want:       Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, message: "trigger updates it",
		},
		"it waits for the trigger's word about a server that nobody asked": {
			migration: byTrigger, observed: observed(written(9, 2, v2), unseen(written(1, 3, v2))),
			state: stateAt(3, v2, metav1.ConditionTrue), hasTrigger: true,
			want: Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, message: "trigger updates it",
		},
		"it waits for a trigger elsewhere as well": {
			migration: byTrigger, observed: observed(written(9, 2, v2), written(4, 3, v1), written(3, 4, v2)),
			state: stateAt(3, v2, metav1.ConditionTrue),
			want:  Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, message: "trigger updates it",
		},
		"it fails where nobody keeps the state any more": {
			migration: byTrigger, observed: observed(written(40, 4, v2)), state: stateAt(3, v2, metav1.ConditionTrue),
			want: Fail, reason: migrationv1alpha1.MigrationReasonAgreementLost, message: "updates the StorageState",
		},
		"it fails when another encoding is current": {
			migration: byTrigger, observed: observed(written(9, 2, v2)), state: stateAt(3, v1, metav1.ConditionTrue),
			hasTrigger: true,
			want:       Fail, reason: migrationv1alpha1.MigrationReasonTargetChanged,
		},
		"it fails when its state is gone": {
			migration: byTrigger, observed: observed(written(9, 2, v2)),
			want: Fail, reason: migrationv1alpha1.MigrationReasonTargetChanged, message: "gone",
		},
		"it waits for the trigger to delete it when its state is gone": {
			migration: byTrigger, observed: observed(written(9, 2, v2)), hasTrigger: true,
			want: Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, message: "gone",
		},
		"one made by hand takes the epoch of the state": {
			migration: made(nil), observed: observed(written(9, 2, v2)), state: stateAt(7, v2, metav1.ConditionTrue),
			hasTrigger: true,
			want:       Go, epoch: 7,
		},
		"one made by hand waits for the trigger's word": {
			migration: made(nil), observed: observed(written(9, 2, v2)), state: stateAt(7, v2, metav1.ConditionFalse),
			hasTrigger: true,
			want:       Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, message: "As the state says",
		},
		"one made by hand waits for a state where there will be one": {
			migration: made(nil), observed: observed(written(9, 2, v2)), hasTrigger: true,
			want: Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, message: "No StorageState",
		},
		"without a trigger the observation is enough, when it stood for the settle period": {
			migration: made(nil), observed: observed(written(9, 1, v1), written(1, 2, v2)), want: Go,
		},
		"without a trigger a fresh observation is not enough": {
			migration: made(nil), observed: observed(written(9, 1, v1), written(0, 2, v2)),
			want: Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, message: "starts at 2026-01-02T12:01:00Z",
		},
		"the settle period does not begin anew with what changes nothing": {
			migration: made(nil), observed: observed(written(9, 1, v1), written(2, 2, v2), written(0, 3, v2)), want: Go,
		},
		"it begins anew after a server that nobody asked": {
			migration: made(nil), observed: observed(written(9, 1, v2), unseen(written(0, 2, v2))),
			want: Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement,
		},
		"a state that somebody left behind is not waited for": {
			migration: made(nil), observed: observed(written(9, 2, v2)), state: stateAt(7, v1, metav1.ConditionFalse), want: Go,
		},
		"a state that was left behind before a change and back is not believed": {
			migration: made(nil), observed: observed(written(9, 2, v2), written(4, 3, v1), written(3, 4, v2)),
			state: stateAt(7, v2, metav1.ConditionTrue), want: Go,
		},
		"one made by hand waits for a state that tells of the present": {
			migration: made(nil), observed: observed(written(9, 2, v2), written(4, 3, v1), written(3, 4, v2)),
			state: stateAt(7, v2, metav1.ConditionTrue), hasTrigger: true,
			want: Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, message: "No StorageState",
		},
		"one made by hand takes the epoch while a change of something else is not in the state yet": {
			migration: made(nil), observed: observed(written(9, 2, v2), written(1, 3, v2)),
			state: stateAt(7, v2, metav1.ConditionTrue), hasTrigger: true,
			want: Go, epoch: 7,
		},
		"what is only polled is believed of a trigger that has looked since this process did": {
			migration: byTrigger, observed: observed(polled(5)), state: polledState(9, 5), hasTrigger: true, want: Go, epoch: 3,
		},
		"what is only polled is not believed of one that looked before this process did": {
			migration: byTrigger, observed: observed(polled(5)), state: polledState(9, 6), hasTrigger: true,
			want: Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, message: "trigger updates it",
		},
		"what is only polled is not believed of one whose clock is ahead": {
			migration: byTrigger, observed: observed(polled(5)), state: polledState(9, -2), hasTrigger: true,
			want: Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, message: "trigger updates it",
		},
		"one that started alone fails in another process where evidence is only polled": {
			migration: alone(polled(9)), observed: observed(polled(5)), want: Fail,
			reason: migrationv1alpha1.MigrationReasonAgreementLost,
		},
		"one made by hand for an encoding that is not written fails": {
			migration: made(func(m *migrationv1alpha1.StorageVersionMigration) {
				m.Spec.Target = &migrationv1alpha1.MigrationTarget{StorageVersionHash: v1, EncodingVersion: "example.com/v1"}
			}),
			observed: observed(written(9, 2, v2)), want: Fail, reason: migrationv1alpha1.MigrationReasonTargetChanged,
			message: "example.com/v2, not example.com/v1",
		},
		"one that started alone goes on while nothing changed": {
			migration: alone(written(5, 2, v2)), observed: observed(written(9, 1, v1), written(5, 2, v2)), want: Go,
		},
		"it goes on in another process, if the evidence continues": {
			migration: alone(written(5, 2, v2)), observed: observed(written(1, 3, v2)), want: Go,
		},
		"it fails if something may have gone unseen between two processes": {
			migration: alone(written(5, 2, v2)), observed: observed(written(1, 4, v2)),
			want: Fail, reason: migrationv1alpha1.MigrationReasonAgreementLost,
		},
		"it fails after a change and back": {
			migration: alone(written(5, 2, v2)), observed: observed(written(5, 2, v2), written(4, 3, v1), written(3, 4, v2)),
			want: Fail, reason: migrationv1alpha1.MigrationReasonAgreementLost,
		},
		"a subresource is none": {
			migration: made(func(m *migrationv1alpha1.StorageVersionMigration) { m.Spec.Resource.Resource = "widgets/status" }),
			observed:  observed(written(9, 2, v2)), want: Fail, reason: migrationv1alpha1.MigrationReasonInvalidResource,
			message: "subresource",
		},
		"nothing is named": {
			migration: made(func(m *migrationv1alpha1.StorageVersionMigration) { m.Spec.Resource.Resource = "" }),
			want:      Fail, reason: migrationv1alpha1.MigrationReasonInvalidResource,
		},
		"by hand, it waits for the writes of a server that ended": {
			migration: made(nil), state: stateAt(3, v2, metav1.ConditionTrue), hasTrigger: true,
			observed: serversSince(observed(written(9, 2, v2)), 30*time.Second),
			want:     Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, message: "encryption key",
		},
		"by hand, with a target that names no epoch, it waits for them as well": {
			migration: made(func(m *migrationv1alpha1.StorageVersionMigration) {
				m.Spec.Target = &migrationv1alpha1.MigrationTarget{StorageVersionHash: v2}
			}),
			state: stateAt(3, v2, metav1.ConditionTrue), hasTrigger: true,
			observed: serversSince(observed(written(9, 2, v2)), 30*time.Second),
			want:     Wait, reason: migrationv1alpha1.MigrationReasonAwaitingAgreement, message: "encryption key",
		},
		"by hand, it starts a settle period after a server ended": {
			migration: made(nil), state: stateAt(3, v2, metav1.ConditionTrue), hasTrigger: true,
			observed: serversSince(observed(written(9, 2, v2)), period), want: Go, epoch: 3,
		},
		"of the trigger, it does not wait for a server that ended": {
			migration: byTrigger, state: stateAt(3, v2, metav1.ConditionTrue), hasTrigger: true,
			observed: serversSince(observed(written(9, 2, v2)), 30*time.Second), want: Go, epoch: 3,
		},
		"it waits while it is suspended": {
			migration: suspended(made(nil)), observed: observed(written(5, 1, v2)),
			want: Wait, reason: migrationv1alpha1.MigrationReasonSuspended, message: "spec.suspend",
		},
		"a migration that is suspended fails if it cannot succeed any more": {
			migration: suspended(made(func(m *migrationv1alpha1.StorageVersionMigration) {
				m.Status.Target, m.Status.StartTime = boundTo(3), new(metav1.NewTime(noon))
			})),
			state: stateAt(4, v2, metav1.ConditionTrue), observed: observed(written(5, 1, v2)),
			want: Fail, reason: migrationv1alpha1.MigrationReasonAgreementLost,
		},
		"of the trigger, it keeps other migrations away": {
			migration: suspended(byTrigger), state: stateAt(4, v2, metav1.ConditionTrue), observed: observed(written(5, 1, v2)),
			want: Wait, reason: migrationv1alpha1.MigrationReasonSuspended,
		},
		"the definition was deleted": {
			migration: alone(written(5, 2, v2)), observed: storageversion.Observation{Presence: storageversion.Deleted},
			want: Fail, reason: migrationv1alpha1.MigrationReasonResourceNotServed,
		},
		"the definition may have been created again with the migration": {
			migration: made(func(m *migrationv1alpha1.StorageVersionMigration) { m.CreationTimestamp = metav1.NewTime(noon) }),
			observed:  storageversion.Observation{Presence: storageversion.Deleted},
			want:      Wait, reason: migrationv1alpha1.MigrationReasonResourceNotServed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := Decide(Input{
				Migration: test.migration, Observation: test.observed, State: test.state, HasTrigger: test.hasTrigger,
				Settle: period, Now: noon})
			if got.Verdict != test.want || got.Reason != test.reason || !strings.Contains(got.Message, test.message) {
				t.Fatalf("decided %+v", got)
			}
			if !got.DecideAt.IsZero() && !got.DecideAt.After(noon) {
				t.Errorf("it is to be looked at again at %v, which is over", got.DecideAt)
			}
			if got.Verdict != Go {
				return
			}
			if got.Target == nil || got.Target.StorageVersionHash != v2 || ptr.Deref(got.Target.Epoch, 0) != test.epoch ||
				got.Evidence == nil {
				t.Errorf("the target is %+v, the evidence %+v", got.Target, got.Evidence)
			}
		})
	}
}
