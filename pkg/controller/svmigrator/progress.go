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
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// rateWindow is the time over which the rate in the status is measured.
const rateWindow = time.Minute

// counters returns the field of the progress that counts each outcome.
func counters(p *migrationv1alpha1.MigrationProgress) map[sweep.Outcome]*int64 {
	return map[sweep.Outcome]*int64{
		sweep.Rewritten:       &p.Rewritten,
		sweep.AlreadyCurrent:  &p.AlreadyCurrent,
		sweep.WrittenByOthers: &p.WrittenByOthers,
		sweep.Gone:            &p.Gone,
		sweep.Denied:          &p.Denied,
	}
}

// countsOf returns the counts of a progress. Objects whose outcome has no counter here count as denied.
func countsOf(p *migrationv1alpha1.MigrationProgress) (counts sweep.Counts) {
	for outcome, count := range counters(p) {
		counts[outcome] = *count
	}
	counts[sweep.Denied] += max(0, p.Processed-counts.Processed())
	return counts
}

// objectsLeft is how many objects of a migration have an outcome, and are neither migrated nor gone.
func objectsLeft(status *migrationv1alpha1.StorageVersionMigrationStatus) int64 {
	if status.Progress == nil {
		return 0
	}
	return countsOf(status.Progress).Left()
}

// writesNoObject reports whether the runs of a migration write no object: all are done, or they expire.
func writesNoObject(m *migrationv1alpha1.StorageVersionMigration) bool {
	position := positionOf(&m.Status)
	done := m.Begun() && position.Complete && position.Counts.Left() == 0
	return done || storageversion.Expires(m.GroupResource())
}

// positionOf returns the position at which a migration was interrupted.
func positionOf(status *migrationv1alpha1.StorageVersionMigrationStatus) sweep.Position {
	p := status.Progress
	position := sweep.Position{
		Baseline: status.BaselineResourceVersion, Complete: p != nil && status.SweepCompletionTime != nil,
	}
	if p == nil || p.ContinueToken == "" && !position.Complete {
		// The first chunk was not done, or somebody removed the token. So the sweep starts from the beginning, with counts of
		// zero.
		return position
	}
	position.Token, position.Retried = p.ContinueToken, p.Retried
	position.Counts, position.Denied = countsOf(p), status.DeniedObjects
	for _, counted := range status.ManagedFieldsVersions {
		if position.Versions == nil {
			position.Versions = map[string]int64{}
		}
		position.Versions[counted.Version] = counted.Objects
	}
	return position
}

// putPosition stores a position. perMinute is the rate, or nil if it is not known yet.
func putPosition(position sweep.Position, perMinute *int64) statusChange {
	return func(status *migrationv1alpha1.StorageVersionMigrationStatus, now time.Time) {
		if status.Progress == nil {
			status.Progress = &migrationv1alpha1.MigrationProgress{}
		}
		p := status.Progress
		for outcome, count := range counters(p) {
			*count = position.Counts[outcome]
		}
		p.Processed, p.Retried = position.Counts.Processed(), position.Retried
		status.DeniedObjects = position.Denied
		if status.SweepCompletionTime != nil {
			return // The sweep was complete before, and this is the second sweep.
		}
		status.ManagedFieldsVersions = countedVersions(position.Versions)
		status.BaselineResourceVersion, p.ContinueToken, p.ObjectsPerMinute = position.Baseline, position.Token, perMinute
		if position.Complete {
			status.SweepCompletionTime = new(metav1.NewTime(now))
		}
		putEstimates(status, position, now)
	}
}

// countedVersions returns the counts sorted by version, at most as many as the status may have.
func countedVersions(counts map[string]int64) []migrationv1alpha1.ManagedFieldsVersion {
	var counted []migrationv1alpha1.ManagedFieldsVersion
	for _, version := range slices.Sorted(maps.Keys(counts)) {
		if len(counted) < migrationv1alpha1.MaxManagedFieldsVersions {
			counted = append(counted, migrationv1alpha1.ManagedFieldsVersion{Version: version, Objects: counts[version]})
		}
	}
	return counted
}

// putEstimates stores how many objects there are, and when the migration will be done.
func putEstimates(status *migrationv1alpha1.StorageVersionMigrationStatus, position sweep.Position, now time.Time) {
	p := status.Progress
	p.EstimatedTotal, p.PercentComplete, status.EstimatedCompletionTime = nil, nil, nil
	switch {
	case position.Complete:
		p.EstimatedTotal, p.PercentComplete = new(p.Processed), new(int32(100))
	case position.Remaining != nil:
		total := p.Processed + *position.Remaining
		p.EstimatedTotal, p.PercentComplete = new(total), new(int32(min(99, p.Processed*100/max(total, 1))))
		if perMinute := ptr.Deref(p.ObjectsPerMinute, 0); perMinute > 0 {
			left := time.Duration(float64(*position.Remaining) / float64(perMinute) * float64(time.Minute))
			status.EstimatedCompletionTime = new(metav1.NewTime(now.Add(left)))
		}
	}
}

// rate measures how fast objects get their outcomes.
type rate struct {
	samples []rateSample
}

type rateSample struct {
	at        time.Time
	processed int64
}

// perMinute records the number of processed objects, and returns how many are processed per minute. It returns nil if
// that is not known yet.
func (r *rate) perMinute(now time.Time, processed int64) *int64 {
	r.samples = append(r.samples, rateSample{at: now, processed: processed})
	for len(r.samples) > 2 && now.Sub(r.samples[1].at) >= rateWindow {
		r.samples = r.samples[1:]
	}
	first := r.samples[0]
	if elapsed := now.Sub(first.at); elapsed > 0 && processed >= first.processed {
		return new(int64(float64(processed-first.processed) / elapsed.Minutes()))
	}
	return nil
}

// shown returns the progress as the log shows it: without the long token, which says nothing to a person.
func shown(progress *migrationv1alpha1.MigrationProgress) *migrationv1alpha1.MigrationProgress {
	if progress == nil {
		return nil
	}
	without := *progress
	without.ContinueToken = ""
	return &without
}
