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
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
)

// rateWindow is how far back the rate looks that is told in the status.
const rateWindow = time.Minute

// positionOf is where a migration was interrupted.
func positionOf(status *migrationv1alpha1.StorageVersionMigrationStatus) sweep.Position {
	position := sweep.Position{Baseline: status.BaselineResourceVersion, Complete: status.SweepCompletionTime != nil}
	p := status.Progress
	if p == nil {
		return position
	}
	position.Token = p.ContinueToken
	position.Counts = sweep.Counts{
		Rewritten: p.Rewritten, AlreadyCurrent: p.AlreadyCurrent, WrittenByOthers: p.WrittenByOthers, Gone: p.Gone, Denied: p.Denied, Retried: p.Retried,
	}
	if p.ContinueToken == "" && !position.Complete {
		// Nothing that counts was saved, or somebody took the token away: what was counted is counted anew.
		position.Counts = sweep.Counts{}
		return position
	}
	for _, denied := range status.DeniedObjects {
		position.Denied = append(position.Denied, sweep.Denial{Namespace: denied.Namespace, Name: denied.Name, UID: denied.UID, Reason: denied.Reason, Message: denied.Message})
	}
	return position
}

// putPosition writes into the status how far a migration is.
func putPosition(status *migrationv1alpha1.StorageVersionMigrationStatus, position sweep.Position, now time.Time, perMinute *int64) {
	putCounts(status, position.Counts, position.Denied)
	p := status.Progress
	p.ContinueToken = position.Token
	p.ObjectsPerMinute = perMinute
	p.EstimatedTotal, p.PercentComplete, status.EstimatedCompletionTime = nil, nil, nil
	if position.Complete {
		swept := metav1.NewTime(now)
		status.SweepCompletionTime = &swept
		p.EstimatedTotal, p.PercentComplete = ptr.To(p.Processed), ptr.To[int32](100)
		return
	}
	if position.Remaining == nil {
		return
	}
	total := p.Processed + *position.Remaining
	p.EstimatedTotal = &total
	p.PercentComplete = ptr.To(int32(min(99, p.Processed*100/max(total, 1))))
	if perMinute != nil && *perMinute > 0 {
		left := time.Duration(float64(*position.Remaining) / float64(*perMinute) * float64(time.Minute))
		at := metav1.NewTime(now.Add(left))
		status.EstimatedCompletionTime = &at
	}
}

// putCounts writes the counters, and denied objects by name.
func putCounts(status *migrationv1alpha1.StorageVersionMigrationStatus, counts sweep.Counts, denied []sweep.Denial) {
	if status.Progress == nil {
		status.Progress = &migrationv1alpha1.MigrationProgress{}
	}
	p := status.Progress
	p.Processed = counts.Processed()
	p.Rewritten, p.AlreadyCurrent, p.WrittenByOthers, p.Gone, p.Denied, p.Retried =
		counts.Rewritten, counts.AlreadyCurrent, counts.WrittenByOthers, counts.Gone, counts.Denied, counts.Retried
	status.DeniedObjects = nil
	for _, d := range denied {
		status.DeniedObjects = append(status.DeniedObjects, migrationv1alpha1.DeniedObject{
			Namespace: d.Namespace, Name: d.Name, UID: d.UID,
			Reason:  metav1.StatusReason(firstRunes(string(d.Reason), migrationv1alpha1.MaxDeniedObjectReasonLength)),
			Message: firstRunes(d.Message, migrationv1alpha1.MaxDeniedObjectMessageLength),
		})
	}
}

// rate tells how fast objects get their outcomes.
type rate struct {
	seen []rateSample
}

type rateSample struct {
	at        time.Time
	processed int64
}

// perMinute takes in how many objects were processed at a time, and returns how many are in a minute, nil while there is nothing
// to tell it from.
func (r *rate) perMinute(now time.Time, processed int64) *int64 {
	r.seen = append(r.seen, rateSample{at: now, processed: processed})
	for len(r.seen) > 2 && now.Sub(r.seen[1].at) >= rateWindow {
		r.seen = r.seen[1:]
	}
	first := r.seen[0]
	if elapsed := now.Sub(first.at); elapsed > 0 && processed >= first.processed {
		return ptr.To(int64(float64(processed-first.processed) / elapsed.Minutes()))
	}
	return nil
}
