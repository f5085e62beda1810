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
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/features"
)

// maxDenialEvents is how many denied objects of one migration get an event each. All are logged.
const maxDenialEvents = 10

// retryDenied tries objects that were denied, or set aside, once more when all others are done: what stood in their way may be
// gone, and admission rules often are about the resource and not about its status, by way of which it is stored as a whole too.
func (t *turn) retryDenied(ctx context.Context, swept sweep.Position) error {
	denied := swept.Counts.Denied
	if denied == 0 {
		return nil
	}
	t.phase = phase{migrationv1alpha1.MigrationReasonRetryingDenied,
		fmt.Sprintf("All else is done; %d objects that the API server refused to rewrite are tried once more.", denied)}
	err := t.journal.persist(ctx, func(status *migrationv1alpha1.StorageVersionMigrationStatus) {
		running(status, t.clock.Now(), t.phase.reason, t.phase.message)
	})
	if err != nil {
		return err
	}
	lane := t.pacer.Lane()
	defer lane.Close()
	r := t.rewriter()
	if t.endpoint.status && t.features.Enabled(features.StatusSubresourceFallback) {
		r.subresource = "status"
	}
	p := t.newPass(lane)
	p.save, p.observed, p.last = func(context.Context, sweep.Position) error { return nil }, t.triedAgain, true
	if listed := swept.Denied; denied <= int64(len(listed)) {
		p.sweep = t.secondSweep(sweep.Position{})
		p.list = func(context.Context, string) (sweep.Chunk, error) { return chunkOf(listed), nil }
		p.rewrite = r.rewriteAnew
	} else {
		// Nobody kept the names of all of them. What was written since the baseline is left out.
		p.sweep = t.secondSweep(sweep.Position{Baseline: swept.Baseline})
		p.list, p.rewrite = t.lister(r), r.rewrite
	}
	if err := p.run(ctx); err != nil {
		t.keep(second(t.journal.uid()), p.sweep, err)
		return err
	}
	counts := settle(swept.Counts, p.sweep.Counts())
	klog.FromContext(ctx).Info("Tried denied objects once more", "before", denied, "after", counts.Denied, "subresource", r.subresource)
	return t.journal.persist(ctx, func(status *migrationv1alpha1.StorageVersionMigrationStatus) {
		putCounts(status, counts, p.sweep.Position().Denied)
	})
}

// secondSweep is that of denied objects, as far as it came in an earlier turn.
func (t *turn) secondSweep(from sweep.Position) *sweep.Sweep {
	return t.sweeps.take(second(t.journal.uid()), func() *sweep.Sweep { return sweep.New(from, t.sweepOptions()) })
}

// second is under what the sweep of a migration's denied objects is kept.
func second(uid types.UID) types.UID { return uid + "/denied" }

func (t *turn) triedAgain(object *sweep.Object, a attempt) {
	countObject(t.resource, a.outcome)
	if a.outcome == sweep.Denied {
		if t.denialsTold++; t.denialsTold <= maxDenialEvents {
			t.tell(t.journal.stored, corev1.EventTypeWarning, eventDenied,
				fmt.Sprintf("The API server refuses to rewrite %s: %s", klog.KRef(object.Namespace, object.Name), a.failure.inShort()))
		}
		return
	}
	t.log.V(2).Info("An object that was refused is done", "object", klog.KRef(object.Namespace, object.Name), "outcome", a.outcome)
}

func chunkOf(denied []sweep.Denial) sweep.Chunk {
	var chunk sweep.Chunk
	for _, d := range denied {
		chunk.Objects = append(chunk.Objects, &sweep.Object{Namespace: d.Namespace, Name: d.Name, UID: d.UID})
	}
	return chunk
}

// settle gives those objects their last outcome that were denied at first. The second counts may be about more objects: about
// others they say nothing new.
func settle(first, second sweep.Counts) sweep.Counts {
	counts := first
	left := max(0, first.Denied-second.Denied)
	for _, outcome := range []sweep.Outcome{sweep.Rewritten, sweep.Gone, sweep.WrittenByOthers} {
		for n := second.Of(outcome); n > 0 && left > 0; n-- {
			counts.Settle(outcome)
			left--
		}
	}
	// Deleted, or stored in the target encoding by whomever.
	for ; left > 0; left-- {
		counts.Settle(sweep.AlreadyCurrent)
	}
	counts.Retried += second.Retried
	return counts
}
