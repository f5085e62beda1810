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
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/chaos/failpoint"
	"sigs.k8s.io/svm-controller-manager/test/chaos/model"
)

const (
	p2 = "P2 (no false success)"
	p4 = "P4 (no loss of progress)"
	p6 = "P6 (no silence)"
)

// run is a migration from when it got its target on.
type run struct {
	resource   string
	first      int64 // the revision of that
	start, end time.Time
	processed  int64
	ended      bool
	live       bool // some of it is of this era
	// names are those of all objects of the resource that there were meanwhile.
	names map[string]bool
}

func (j *judge) migrationWritten(m model.Migration) {
	if before := j.world.Migrations[m.Name]; m.StorageVersionMigration == nil && before != nil {
		if r := j.runs[string(before.UID)]; r != nil && !r.ended {
			r.ended, r.end = true, j.now.Seen
		}
	}
	j.world.Apply(j.now)
	if m.StorageVersionMigration == nil {
		return
	}
	r := j.runs[string(m.UID)]
	if r == nil {
		if m.Status.Target == nil {
			return
		}
		r = &run{
			resource: m.Spec.Resource.Resource, first: j.now.Number, start: j.now.Seen, names: map[string]bool{},
		}
		for name := range j.world.Objects[r.resource] {
			r.names[name] = true
		}
		j.runs[string(m.UID)] = r
	}
	if r.ended {
		return
	}
	if r.end = j.now.Seen; j.live && !r.live {
		r.live, r.start = true, j.now.Seen
	}
	j.progressed(m.StorageVersionMigration, r)
	succeeded, failed := condition(m, v1alpha1.MigrationSucceeded), condition(m, v1alpha1.MigrationFailed)
	ended := succeeded
	if failed != nil {
		ended = failed
	}
	if ended == nil {
		return
	}
	r.ended = true
	if j.live {
		j.result.Migrations[string(ended.Type)+" "+ended.Reason]++
	}
	resource, known := resourceOf(v1alpha1.GroupResource{
		Group: m.Spec.Resource.Group, Resource: m.Spec.Resource.Resource,
	}.StorageStateName())
	switch {
	case !known || m.Status.Target == nil:
	case succeeded != nil:
		j.succeeded(resource, m, r)
	default:
		j.failed(resource, m, r, *failed)
	}
}

func condition(m model.Migration, kind v1alpha1.MigrationConditionType) *v1alpha1.MigrationCondition {
	for i, c := range m.Status.Conditions {
		if c.Type == kind && c.Status == corev1.ConditionTrue {
			return &m.Status.Conditions[i]
		}
	}
	return nil
}

// behind are the objects that are not stored in the target. Those that were written after a change of the version that
// servers write do not count, if the change came so late that nobody can know it.
func (j *judge) behind(resource model.Resource, m model.Migration) []string {
	var names []string
	for name, o := range j.world.Objects[resource.Resource] {
		if resource.Hash(o.Encoding) != m.Status.Target.StorageVersionHash && !j.lateChange(resource.Resource, o.Revision) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// lateChange tells whether the version that servers write changed shortly before now, and before an object was written.
func (j *judge) lateChange(resource string, written int64) bool {
	return slices.ContainsFunc(j.changes[resource], func(change model.Revision) bool {
		return change.Number <= written && j.now.Seen.Sub(change.Seen) <= j.notice()
	})
}

// notice is how old a change may be that a manager which ends a migration now need not have noticed.
func (j *judge) notice() time.Duration {
	if calm(j.record.Faults, j.now.Seen.Add(-j.limits.Notice), j.now.Seen, j.limits.NoticeAtOnce) < j.limits.Notice {
		return j.limits.Notice
	}
	return j.limits.NoticeAtOnce
}

// succeeded wants that every object is stored in the target, and that the target did not change meanwhile.
func (j *judge) succeeded(resource model.Resource, m model.Migration, r *run) {
	if names := j.behind(resource, m); len(names) > 0 {
		j.violated(p2, resource.Resource, "%s succeeded, and %d objects are not stored in its target: %v",
			m.Name, len(names), names)
	}
	for _, change := range j.changes[resource.Resource] {
		if change.Number > r.first && j.now.Seen.Sub(change.Seen) > j.notice() {
			j.violated(p2, resource.Resource,
				"%s succeeded, and the version that servers write changed after its start, %v before its end",
				m.Name, j.now.Seen.Sub(change.Seen))
		}
	}
}

// failed wants a reason, and the name of every object that is left, with the reason of the server.
func (j *judge) failed(resource model.Resource, m model.Migration, r *run, said v1alpha1.MigrationCondition) {
	if said.Reason == "" || said.Message == "" {
		j.violated(p6, resource.Resource, "%s failed, and says only %q, %q", m.Name, said.Reason, said.Message)
	}
	if said.Reason != v1alpha1.MigrationReasonObjectsDenied {
		return
	}
	denied, mayBe := map[string]bool{}, j.deniedDuring(r)
	for _, o := range m.Status.DeniedObjects {
		denied[o.Name] = true
		if o.Reason == "" || !strings.Contains(o.Message, failpoint.Denial) {
			j.violated(p6, resource.Resource, "%s does not say why %s is denied, only %q, %q",
				m.Name, o.Name, o.Reason, o.Message)
		}
		if !mayBe[o.Name] {
			j.violated(p6, resource.Resource, "%s says that %s is denied, and nobody denied it", m.Name, o.Name)
		}
	}
	for _, name := range j.behind(resource, m) {
		if !denied[name] {
			j.violated(p6, resource.Resource, "%s failed, and does not name %s, which is not stored in its target",
				m.Name, name)
		}
	}
	if len(mayBe) == 0 {
		j.violated(p6, resource.Resource, "%s says that objects are denied, and nobody denied any", m.Name)
	}
}

// deniedDuring are the objects that were denied during a migration.
func (j *judge) deniedDuring(r *run) map[string]bool {
	denied := map[string]bool{}
	for _, f := range j.record.Faults {
		if f.Start.Before(r.end) && f.End.After(r.start) {
			for _, name := range f.Denied {
				denied[name] = true
			}
		}
	}
	return denied
}

// progressed wants that a migration never loses more than a chunk of what it has done, and counts each object once.
// Built-in resources have objects that the record leaves out.
func (j *judge) progressed(m *v1alpha1.StorageVersionMigration, r *run) {
	if m.Status.Progress == nil {
		return
	}
	if processed := m.Status.Progress.Processed; processed+int64(j.limits.Chunk) < r.processed {
		j.violated(p4, r.resource, "%s had processed %d objects, and then %d", m.Name, r.processed, processed)
	}
	if processed := m.Status.Progress.Processed; m.Spec.Resource.Group == model.Group && processed > int64(len(r.names)) {
		j.violated(p4, r.resource, "%s has processed %d objects, and there were only %d", m.Name, processed, len(r.names))
	}
	r.processed = max(r.processed, m.Status.Progress.Processed)
}

// counted wants that a migration rewrites each object once, and those of a chunk again after a fault.
func (j *judge) counted() {
	for _, r := range j.runs {
		if !r.live {
			continue
		}
		patches := map[string]int{}
		repeated := 0
		for _, p := range j.record.Patches {
			if p.Resource != r.resource || p.Received.Before(r.start) || p.Received.After(r.end) || j.displaced(p.Received) {
				continue
			}
			j.result.Patches++
			if patches[p.Name]++; patches[p.Name] > 1 {
				repeated++
			}
		}
		j.result.Repeated += repeated
		interruptions := j.interruptions(r)
		if most := j.limits.Workers + interruptions*(j.limits.Chunk+j.limits.Workers); repeated > most {
			j.violated(p4, r.resource, "a migration rewrote objects again %d times, with %d interruptions; %d are allowed",
				repeated, interruptions, most)
		}
	}
}

// displaced tells whether a server whose clock was set may have given this time to a request of another time.
func (j *judge) displaced(received time.Time) bool {
	return slices.ContainsFunc(j.record.Faults, func(f model.Fault) bool {
		at := received.Add(-f.Shift)
		return f.Shift != 0 && at.After(f.Start) && at.Before(f.End)
	})
}

// interruptions counts what may have ended a run of a migration, or have lost the answer of a server. A leader that is
// killed counts once: by the election of the next one.
func (j *judge) interruptions(r *run) int {
	count := 0
	for _, f := range j.record.Faults {
		if failpoint.Interrupts(f.Kind) && f.Start.Before(r.end) && f.End.Add(j.limits.Recovery).After(r.start) {
			count++
		}
	}
	for _, election := range j.elections {
		if election.After(r.start) && election.Before(r.end) {
			count++
		}
	}
	return count
}
