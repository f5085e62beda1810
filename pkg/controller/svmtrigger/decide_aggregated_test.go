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
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

func TestReplicasThatNobodyAsked(t *testing.T) {
	l := newLife(t)
	l.unwatched()
	v1Only := schema.GroupVersion{Group: widgets.Group, Version: "v1"}
	answers := func(unasked string) {
		l.ledger.SetAggregated(l.in.Now, v1Only, &storageversion.AggregatedDocument{
			Address: "widgets/api:443", WhyReplicasDiffer: unasked, Resources: map[schema.GroupResource]storageversion.Resource{
				widgets: {Kind: "Widget", Versions: []string{"v1"}, Hash: v1, Migratable: true},
			},
		})
	}
	migrated := func(epoch int64) {
		t.Helper()
		answers("")
		l.decide()
		l.after(time.Minute)
		l.succeeds()
		l.after(time.Second)
		l.in.Now = l.in.Now.Add(time.Second)
		answers("") // The servers were asked after the migration had ended.
		l.decide()
		l.expect(epoch, v1, v1)
	}
	migrated(1)
	answers("two revisions answer")
	l.decide()
	l.expect(2, storageversion.Unknown, v1, storageversion.Unknown)
	// The rollout is taken back.
	answers("")
	l.decide()
	l.expect(3, v1, v1, storageversion.Unknown)
	migrated(3)
	// Nobody decides while the next one lasts.
	answers("two revisions answer")
	answers("")
	l.decide()
	l.expect(4, v1, v1, storageversion.Unknown)
}

// TestServiceThatMovesWhileNobodyWatches has an APIService lead to another server after a short time without a manager.
func TestServiceThatMovesWhileNobodyWatches(t *testing.T) {
	for name, test := range map[string]struct {
		version, address string
		definition       bool
		epoch            int64
	}{
		"the same server":                 {"v1", "widgets/api:443", false, 1},
		"the same with a further version": {"v2", "widgets/api:443", false, 1},
		"another server":                  {"v1", "widgets/other:443", false, 2},
		"a definition":                    {definition: true, epoch: 2},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLife(t)
			answers := func(version, address string) {
				l.unwatched()
				l.ledger.SetAggregated(l.in.Now, schema.GroupVersion{Group: widgets.Group, Version: version},
					&storageversion.AggregatedDocument{Address: address, Resources: map[schema.GroupResource]storageversion.Resource{
						widgets: {Kind: "Widget", Versions: []string{version}, Hash: v1, Migratable: true},
					}})
			}
			answers("v1", "widgets/api:443")
			l.decide()
			l.after(time.Minute)
			l.succeeds()
			l.after(time.Second)
			l.in.Now = l.in.Now.Add(time.Second)
			answers("v1", "widgets/api:443")
			l.decide()
			l.expect(1, v1, v1)
			l.memory = Memory{}
			if test.definition {
				l.unwatched()
				l.define()
			} else {
				answers(test.version, test.address)
			}
			l.decide()
			if test.epoch == 1 {
				l.expect(1, v1, v1)
				return
			}
			l.expect(test.epoch, v1, v1, storageversion.Unknown)
		})
	}
}

// TestServerThatStopsToPublishHashes has an aggregated server that publishes no hash for many polls.
func TestServerThatStopsToPublishHashes(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Hour} {
		t.Run("the clock of the writer was ahead by "+ahead.String(), func(t *testing.T) {
			l := newLife(t)
			l.unwatched()
			answers := func(document storageversion.AggregatedDocument) {
				document.Address = "widgets/api:443"
				l.ledger.SetAggregated(l.in.Now, schema.GroupVersion{Group: widgets.Group, Version: "v1"}, &document)
				l.decide()
			}
			with := storageversion.AggregatedDocument{Resources: map[schema.GroupResource]storageversion.Resource{
				widgets: {Kind: "Widget", Versions: []string{"v1"}, Hash: v1, Migratable: true},
			}}
			without := storageversion.AggregatedDocument{Resources: map[schema.GroupResource]storageversion.Resource{
				widgets: {Kind: "Widget", Versions: []string{"v1"}, Migratable: true},
			}}
			answers(with)
			l.expect(1, v1, storageversion.Unknown, v1)
			l.in.State.Status.LastHeartbeatTime.Time = l.in.State.Status.LastHeartbeatTime.Add(ahead)
			for range 5 {
				l.in.Now = l.in.Now.Add(periods.Poll)
				answers(without)
				l.expect(2, storageversion.Unknown, storageversion.Unknown, v1)
			}
			for range 2 {
				l.in.Now = l.in.Now.Add(periods.Poll)
				answers(with)
				l.expect(3, v1, storageversion.Unknown, v1)
			}
		})
	}
}

// TestServerThatPublishesNoHashAfterARestart has a manager begin while an aggregated server publishes no hash, for
// longer than a heartbeat takes.
func TestServerThatPublishesNoHashAfterARestart(t *testing.T) {
	l := newLife(t)
	l.unwatched()
	answers := func(resources map[schema.GroupResource]storageversion.Resource) {
		l.ledger.SetAggregated(l.in.Now, schema.GroupVersion{Group: widgets.Group, Version: "v1"},
			&storageversion.AggregatedDocument{Address: "widgets/api:443", Resources: resources})
		l.decide()
	}
	served := map[schema.GroupResource]storageversion.Resource{
		widgets: {Kind: "Widget", Versions: []string{"v1"}, Hash: v1, Migratable: true},
	}
	withoutHash := map[schema.GroupResource]storageversion.Resource{
		widgets: {Kind: "Widget", Versions: []string{"v1"}, Migratable: true},
	}
	answers(served)
	l.after(time.Minute)
	l.succeeds()
	l.after(time.Second)
	l.in.Now = l.in.Now.Add(time.Second)
	answers(served)
	l.expect(1, v1, v1)
	confirmed := l.in.State.Status.LastHeartbeatTime

	l.unwatched()
	l.memory = Memory{}
	l.lookWithout()
	for range 6 {
		l.in.Now = l.in.Now.Add(periods.Poll)
		answers(withoutHash)
	}
	if got := l.in.State.Status.LastHeartbeatTime; !got.Equal(&confirmed) {
		t.Errorf("the heartbeat is of %s, although the server was read last at %s", got, confirmed)
	}
	answers(served)
	l.expect(2, v1, v1, storageversion.Unknown)
}

// TestOldRecordDuringProblem has a problem while a record counts that is older than a poll. If the latest evidence can
// be compared, it takes the place of the record, and no later decision would notice how old that was.
func TestOldRecordDuringProblem(t *testing.T) {
	hour := metav1.NewTime(start.Add(-time.Hour))
	recorded := migrationv1alpha1.StorageEvidence{Source: migrationv1alpha1.EvidenceFromAggregatedDiscovery}
	durable := migrationv1alpha1.StorageEvidence{Source: migrationv1alpha1.EvidenceFromCustomResourceDefinition,
		CustomResourceDefinition: &migrationv1alpha1.CustomResourceDefinitionEvidence{}}
	for _, test := range []struct {
		problem *storageversion.Problem
		latest  migrationv1alpha1.StorageEvidence
		tooOld  bool
	}{
		{nil, recorded, true},
		{&storageversion.Problem{}, recorded, false},
		{&storageversion.Problem{}, durable, true},
	} {
		e := evaluation{
			in: Input{Now: start, Periods: periods,
				Observation: storageversion.Observation{ReadAt: start, Problem: test.problem}},
			old:  &migrationv1alpha1.StorageStateStatus{LastHeartbeatTime: hour},
			last: storageversion.Sighting{Evidence: test.latest},
		}
		if got := e.tooOld(&recorded); got != test.tooOld {
			t.Errorf("problem %v, latest from %s: too old %t", test.problem, test.latest.Source, got)
		}
	}
}
