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

package validate

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/chaos/failpoint"
	"sigs.k8s.io/svm-controller-manager/test/chaos/model"
)

var (
	start  = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	bounds = Limits{
		Grace: 60 * time.Second, Recovery: 10 * time.Second, Notice: 10 * time.Second, NoticeAtOnce: 4 * time.Second,
		Chunk: 2, Workers: 1,
	}
)

// recording makes a record, one revision after the other, each a second after the one before.
type recording struct {
	model.Record
	last int64
}

func newRecording() *recording {
	return &recording{Record: model.Record{Eras: []model.Era{{}}}}
}

func (r *recording) at(number int64) time.Time { return start.Add(time.Duration(number) * time.Second) }

func (r *recording) add(v model.Revision) *recording {
	r.last++
	v.Number, v.Seen = r.last, r.at(r.last)
	era := &r.Eras[len(r.Eras)-1]
	era.Revisions = append(era.Revisions, v)
	return r
}

// stored adds an object as etcd has it.
func (r *recording) stored(name, encoding string, write int64, created bool) *recording {
	return r.add(model.Revision{Object: &model.Object{
		Resource: "springs", Name: name, Encoding: encoding, Write: write, Created: created, Content: "same",
	}})
}

// create adds an object that a writer created, as it should be.
func (r *recording) create(name, encoding string, write int64) *recording {
	r.requested(http.MethodPost, name, write, model.Done, r.last+1)
	return r.stored(name, encoding, write, true)
}

func (r *recording) requested(verb, name string, write int64, outcome model.Outcome, revision int64) *recording {
	r.Requests = append(r.Requests, model.Request{
		Write: write, Verb: verb, Resource: "springs", Name: name, Outcome: outcome, Revision: revision,
		Era: len(r.Eras) - 1,
	})
	return r
}

func (r *recording) deleted(name string) *recording {
	return r.add(model.Revision{Object: &model.Object{Resource: "springs", Name: name, Deleted: true}})
}

func (r *recording) defined(storage string, stored ...string) *recording {
	return r.add(model.Revision{Definition: &model.Definition{Resource: "springs", Storage: storage, Stored: stored}})
}

func (r *recording) state(epoch int64, versions ...string) *recording {
	s := &v1alpha1.StorageState{}
	s.Name, s.UID, s.Status.Epoch = model.Springs.String(), "state", epoch
	for _, version := range versions {
		hash := v1alpha1.Unknown
		if version != v1alpha1.Unknown {
			hash = model.Springs.Hash(version)
		}
		s.Status.PersistedStorageVersionHashes = append(s.Status.PersistedStorageVersionHashes, hash)
	}
	return r.add(model.Revision{State: &model.State{Name: s.Name, StorageState: s}})
}

// made adds n objects that a writer created.
func (r *recording) made(n int64) *recording {
	for write := range n {
		r.create(fmt.Sprint("object-", write), "v1", write)
	}
	return r
}

// elected adds a write of the Lease of the leader.
func (r *recording) elected(holder string) *recording {
	return r.add(model.Revision{Leader: &model.Leader{Holder: holder}})
}

// migration adds a write of the only migration.
func (r *recording) migration(
	target string, processed int64, kind v1alpha1.MigrationConditionType, reason string, denied ...string,
) *recording {
	m := &v1alpha1.StorageVersionMigration{}
	m.Name, m.UID = "migration", types.UID("migration")
	m.Spec.Resource.Group, m.Spec.Resource.Resource = model.Group, "springs"
	m.Status.Target = &v1alpha1.MigrationTarget{StorageVersionHash: model.Springs.Hash(target)}
	m.Status.Progress = &v1alpha1.MigrationProgress{Processed: processed}
	m.Status.Conditions = []v1alpha1.MigrationCondition{{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: "a message",
	}}
	for _, name := range denied {
		m.Status.DeniedObjects = append(m.Status.DeniedObjects, v1alpha1.DeniedObject{
			Name: name, Reason: "Forbidden", Message: "the hook says: " + failpoint.Denial,
		})
	}
	return r.add(model.Revision{Migration: &model.Migration{Name: m.Name, StorageVersionMigration: m}})
}

func (r *recording) fault(kind string, from, to int64, denied ...string) *recording {
	r.Faults = append(r.Faults, model.Fault{Kind: kind, Start: r.at(from), End: r.at(to), Denied: denied})
	return r
}

// otherUID has the last revision be of a state that was created anew.
func (r *recording) otherUID() *recording {
	r.Eras[0].Revisions[len(r.Eras[0].Revisions)-1].State.UID = "another"
	return r
}

// shifted sets the clock of a server for a while.
func (r *recording) shifted(from, to int64, by time.Duration) *recording {
	r.fault("shift clock of server", from, to)
	r.Faults[len(r.Faults)-1].Shift = by
	return r
}

// wait lets time pass.
func (r *recording) wait(seconds int64) *recording {
	r.last += seconds
	return r
}

const (
	running   = v1alpha1.MigrationRunning
	succeeded = v1alpha1.MigrationSucceeded
	failed    = v1alpha1.MigrationFailed
	denied    = v1alpha1.MigrationReasonObjectsDenied
)

func TestValidators(t *testing.T) {
	r := newRecording
	for name, test := range map[string]struct {
		record *recording
		want   []string // what violations begin with
	}{
		"a whole migration": {record: r().defined("v1", "v1").create("a", "v1", 1).state(1, "v1").
			defined("v2", "v1", "v2").state(2, "v1", "v2").migration("v2", 0, running, "").stored("a", "v2", 1, false).
			migration("v2", 1, succeeded, "").defined("v2", "v2").state(2, "v2")},
		"an encoding leaves the state too early": {
			record: r().create("a", "v1", 1).state(1, "v1", "v2").state(1, "v2"), want: []string{p1}},
		"a state that was created anew knows too much": {
			record: r().create("a", "v1", 1).state(1, "v1").state(1, "v2").otherUID(), want: []string{p1}},
		"a state that was created anew knows nothing": {
			record: r().create("a", "v1", 1).state(2, "v1").state(1).otherUID()},
		"the epoch goes down": {record: r().state(2, "v1").state(1, "v1"), want: []string{p1}},
		"the state does not list what is written": {
			record: r().state(1, "v1").create("a", "v2", 1).wait(100).state(1, "v1"), want: []string{p1}},
		"the state does not list it because of a fault": {
			record: r().state(1, "v1").create("a", "v2", 1).fault("kill etcd", 1, 80).wait(100).state(1, "v1")},
		"the state does not list it, and what is broken does not matter": {
			record: r().state(1, "v1").create("a", "v2", 1).fault(failpoint.DenyObjects, 1, 80).wait(100).state(1, "v1"),
			want:   []string{p1}},
		"the state lists it in time": {
			record: r().state(1, "v1").create("a", "v2", 1).wait(20).state(2, "v1", "v2").wait(100).state(2, "v1", "v2")},
		"a version may be dropped that is needed": {
			record: r().create("a", "v1", 1).defined("v2", "v2"), want: []string{p1}},
		"an object is written in a version that was pruned": {
			record: r().defined("v2", "v2").create("a", "v1", 1), want: []string{p1}},
		"a success leaves an object behind": {
			record: r().create("a", "v1", 1).migration("v2", 0, running, "").migration("v2", 1, succeeded, ""),
			want:   []string{p2}},
		"a success although the version changed long before": {
			record: r().defined("v2", "v2").migration("v2", 0, running, "").defined("v1", "v2", "v1").wait(20).
				migration("v2", 0, succeeded, ""), want: []string{p2}},
		"an object is written in another version just before the success": {
			record: r().defined("v2", "v2").migration("v2", 0, running, "").defined("v1", "v2", "v1").create("a", "v1", 1).
				migration("v2", 1, succeeded, "")},
		"an object is written in another version some time before the success": {
			record: r().defined("v2", "v2").migration("v2", 0, running, "").defined("v1", "v2", "v1").create("a", "v1", 1).
				wait(5).migration("v2", 1, succeeded, ""), want: []string{p2, p2}},
		"the same while something is broken": {
			record: r().defined("v2", "v2").migration("v2", 0, running, "").defined("v1", "v2", "v1").create("a", "v1", 1).
				wait(5).fault("pause manager", 5, 9).migration("v2", 1, succeeded, "")},
		"a confirmed write is lost": {
			record: r().requested(http.MethodPost, "a", 1, model.Done, 5).create("b", "v1", 2), want: []string{p3}},
		"a refused write happens": {
			record: r().requested(http.MethodPost, "a", 1, model.Refused, 0).stored("a", "v1", 1, true), want: []string{p3}},
		"a write of unknown outcome happens": {
			record: r().requested(http.MethodPost, "a", 1, model.Unknown, 0).stored("a", "v1", 1, true)},
		"an earlier write comes back": {
			record: r().create("a", "v1", 1).requested(http.MethodPatch, "a", 2, model.Done, 2).stored("a", "v1", 2, false).
				stored("a", "v2", 1, false), want: []string{p3}},
		"a deleted object comes back": {
			record: r().create("a", "v1", 1).requested(http.MethodDelete, "a", 2, model.Done, 0).deleted("a").
				stored("a", "v2", 1, true), want: []string{p3}},
		"nobody deleted it":    {record: r().create("a", "v1", 1).deleted("a"), want: []string{p3}},
		"nobody wrote it":      {record: r().stored("a", "v1", 1, true), want: []string{p3}},
		"a rewrite changes it": {record: changedBy(r().create("a", "v1", 1).stored("a", "v2", 1, false)), want: []string{p3}},
		"a rewrite for nothing": {
			record: r().create("a", "v1", 1).stored("a", "v1", 1, false), want: []string{p4}},
		"progress is lost": {
			record: r().made(9).migration("v1", 9, running, "").migration("v1", 3, running, ""), want: []string{p4}},
		"progress is lost chunk by chunk": {
			record: r().made(9).migration("v1", 9, running, "").migration("v1", 7, running, "").migration("v1", 5, running, ""),
			want:   []string{p4}},
		"the work of a chunk is done again": {
			record: r().made(9).migration("v1", 9, running, "").migration("v1", 7, running, "")},
		"objects are counted twice": {
			record: r().made(9).migration("v1", 5, running, "").migration("v1", 10, running, ""), want: []string{p4}},
		"an object that comes later is counted": {
			record: r().made(9).migration("v1", 5, running, "").create("new", "v1", 100).migration("v1", 10, running, "")},
		"objects are rewritten again and again": {
			record: patched(r().made(1).migration("v1", 0, running, "").wait(10).migration("v1", 1, succeeded, ""), 3),
			want:   []string{p4}},
		"an object is rewritten again after a fault": {
			record: patched(r().made(1).migration("v1", 0, running, "").wait(10).fault("kill server", 2, 3).
				migration("v1", 1, succeeded, ""), 3)},
		"an object is rewritten again by the next leader": {
			record: patched(r().made(1).migration("v1", 0, running, "").wait(10).fault("kill manager", 2, 3).elected("b").
				migration("v1", 1, succeeded, ""), 3)},
		"an object is rewritten again after a manager that did not lead was killed": {
			record: patched(r().made(1).migration("v1", 0, running, "").wait(10).fault("kill manager", 2, 3).elected("").
				migration("v1", 1, succeeded, ""), 3), want: []string{p4}},
		"an object is rewritten again while a webhook is away": {
			record: patched(r().made(1).migration("v1", 0, running, "").wait(10).fault("validation webhook away", 2, 3).
				migration("v1", 1, succeeded, ""), 3), want: []string{p4}},
		"a server tells wrong times of rewrites": {
			record: patched(r().made(1).migration("v1", 0, running, "").wait(100).migration("v1", 1, succeeded, "").
				wait(100).shifted(190, 200, -193*time.Second), 3)},
		"denied objects are named": {
			record: r().create("a", "v1", 1).migration("v2", 0, running, "").fault(failpoint.DenyObjects, 1, 9, "a").
				migration("v2", 1, failed, denied, "a")},
		"a denied object is not named": {
			record: r().create("a", "v1", 1).create("b", "v1", 2).migration("v2", 0, running, "").
				fault(failpoint.DenyObjects, 1, 9, "a").migration("v2", 1, failed, denied, "a"), want: []string{p6}},
		"another one was denied": {
			record: r().create("a", "v1", 1).migration("v2", 0, running, "").fault(failpoint.DenyObjects, 1, 9, "b").
				migration("v2", 1, failed, denied, "a"), want: []string{p6}},
		"nobody denied it": {
			record: r().create("a", "v1", 1).migration("v2", 0, running, "").migration("v2", 1, failed, denied, "a"),
			want:   []string{p6, p6}},
		"a restore takes back writes": {record: restored(r().create("a", "v1", 1).create("b", "v1", 2), 1)},
	} {
		t.Run(name, func(t *testing.T) {
			got := All(test.record.Record, bounds).Violations
			if len(got) != len(test.want) {
				t.Fatalf("got %v, want %v", got, test.want)
			}
			for i, want := range test.want {
				if !strings.HasPrefix(got[i].Promise, want) {
					t.Errorf("got %v, want %v", got[i], want)
				}
			}
		})
	}
}

// changedBy has the last write say something else.
func changedBy(r *recording) *recording {
	revisions := r.Eras[0].Revisions
	revisions[len(revisions)-1].Object.Content = "different"
	return r
}

// patched has the manager rewrite an object so many times a second after the first revision.
func patched(r *recording, times int) *recording {
	for range times {
		r.Patches = append(r.Patches, model.Patch{Resource: "springs", Name: "a", Received: r.at(2), Code: http.StatusOK})
	}
	return r
}

// restored puts etcd back to a revision.
func restored(r *recording, revision int64) *recording {
	r.Eras = append(r.Eras, model.Era{From: revision})
	r.last = revision
	return r.create("b", "v1", 3)
}
