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
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

func TestServersThatCannotBeSeen(t *testing.T) {
	l := newLife(t)
	l.migrated()
	problem := &storageversion.Problem{Reason: migrationv1alpha1.StateReasonServersUnseen, Message: "b was not read",
		Since: l.in.Now}
	o := l.ledger.Observe(l.in.Now, widgets)
	o.Problem = problem
	decide := func(o storageversion.Observation) Decision {
		l.in.Observation = o
		return Decide(l.in)
	}
	if d := decide(o); d.StateAction != KeepState || !d.DecideAt.Equal(problem.Since.Add(periods.Patience)) {
		t.Errorf("what passes in seconds is not worth a write: %+v", d)
	}
	l.in.Now = l.in.Now.Add(periods.Patience)
	if d := decide(o); !slices.Equal(d.Status.PersistedStorageVersionHashes, []string{v1}) ||
		meta.IsStatusConditionTrue(d.Status.Conditions, migrationv1alpha1.StorageStateAgreed) {
		t.Errorf("the servers do not agree, but nothing unknown was stored: %+v", d.Status)
	}
	o.Class = storageversion.BuiltIn
	of := func(version string) []migrationv1alpha1.EndpointEvidence {
		return []migrationv1alpha1.EndpointEvidence{{Address: "10.0.0.1:6443", ServerVersion: version}}
	}
	short, long := periods.Patience, periods.UnreadPatience
	for name, test := range map[string]struct {
		recorded, seen []migrationv1alpha1.EndpointEvidence
		incarnation    string
		patience       time.Duration
	}{
		"its caches may not be full":            {recorded: of("v1.36.0"), incarnation: "2", patience: long},
		"the same, when a server has left":      {seen: of("v1.37.1"), incarnation: "2", patience: long},
		"nobody knows which process it is":      {recorded: of("v1.37.1"), patience: short},
		"its Lease may pass to another process": {recorded: of("v1.35.4"), incarnation: "2", patience: short},
		"the same after a roll back": {
			recorded: of("v1.36.0"), seen: of("v1.35.4"), incarnation: "2", patience: short},
		"nobody knows the versions of servers": {incarnation: "2", patience: short},
	} {
		l.in.State.Status.Evidence.Endpoints = test.recorded
		o.Sightings[len(o.Sightings)-1].Evidence.Endpoints = test.seen
		o.UnreadLiving = []storageversion.Process{{Identity: "b", Incarnation: test.incarnation}}
		l.in.Now = problem.Since.Add(test.patience - time.Second)
		if d := decide(o); d.Status.Epoch > 1 || !d.DecideAt.Equal(problem.Since.Add(test.patience)) {
			t.Errorf("%s: after %v: %+v", name, test.patience-time.Second, d)
		}
		l.in.Now = problem.Since.Add(test.patience)
		if d := decide(o); !slices.Equal(d.Status.PersistedStorageVersionHashes, []string{v1, storageversion.Unknown}) ||
			d.Status.Epoch != 2 || d.Status.CurrentStorageVersionHash != storageversion.Unknown {
			t.Errorf("%s: a new server that cannot be asked may write anything: %+v", name, d.Status)
		}
	}
}
