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
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/features"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	// saveInterval bounds how often progress is stored. What is done again after a crash is one chunk, and what was done in that
	// time where a chunk takes less.
	saveInterval = 500 * time.Millisecond
	// endRetry is how often it is looked at the end of a migration whether what was read last is still true.
	endRetry = time.Second
)

// errStopped ends the turn of a migration that is to write nothing for now.
var errStopped = errors.New("the migration is to write nothing for now")

// turn is the time in which one migration writes.
type turn struct {
	*Controller
	journal  *journal
	resource schema.GroupResource
	uid      types.UID
	// log names the migration, which the controller's logger does not.
	log klog.Logger
	// stop ends the turn. What it was for is decided anew then.
	stop context.CancelCauseFunc
	// bound is the migration as its turn began, for those who look whether it may go on. Nil before that.
	bound atomic.Pointer[migrationv1alpha1.StorageVersionMigration]
	// saved is the migration as it was stored last, for metrics.
	saved    atomic.Pointer[migrationv1alpha1.StorageVersionMigration]
	endpoint *endpoint
	class    storageversion.Class
	savedAt  time.Time
	rate     rate
	// denialsTold is how many denied objects an event was told about.
	denialsTold int
	// phase is what the Running condition says while nothing is wrong.
	phase phase
	// stuck says that the turn before this one ended because nothing came about.
	stuck bool
	// troubled says that the log tells of requests that fail.
	troubled bool
	// tellAgain is when the next try to tell of them may be made.
	tellAgain time.Time
	// ending says that the end of the migration is being written by this turn.
	ending atomic.Bool
}

// phase is a reason and a message of the Running condition.
type phase struct {
	reason, message string
}

func (c *Controller) newTurn(m *migrationv1alpha1.StorageVersionMigration) *turn {
	return &turn{
		Controller: c,
		journal:    &journal{client: c.client.StorageVersionMigrations(), clock: c.clock, stored: m},
		resource:   resourceOf(m),
		uid:        m.UID,
		stuck:      c.isStuck(m.UID),
		troubled:   c.isStuck(m.UID),
	}
}

// run takes a migration as far as it gets. It returns nil if the migration has ended.
func (t *turn) run(ctx context.Context) error {
	t.log = klog.FromContext(ctx)
	// The cache may not show yet what the turn before this one wrote.
	if err := t.journal.refresh(ctx); err != nil {
		return err
	}
	decision, err := t.Controller.decide(ctx, t.journal.stored)
	if err != nil {
		return err
	}
	switch decision.Verdict {
	case Ignore:
		return nil
	case Go:
	default:
		return errStopped
	}
	missing, err := t.find(ctx, decision.Target)
	if err != nil {
		return err
	}
	if missing != nil {
		return t.fail(ctx, *missing)
	}
	t.class = t.observer.Observe(t.resource).Class
	if t.changedUnseen(decision.Target) {
		t.observer.ReadAggregated()
		return fmt.Errorf("objects are written in another encoding than %s, which was observed last: %w", words(decision.Target), errMoved)
	}
	if err := t.begin(ctx, decision); err != nil {
		return err
	}
	defer t.bound.Store(nil)
	err = t.work(ctx)
	var ended *endedError
	if errors.As(err, &ended) {
		return t.giveUp(ctx, ended)
	}
	return err
}

// giveUp ends a migration that cannot go on. A resource that is not served at one version may be served at another one, at which the
// next turn goes on.
func (t *turn) giveUp(ctx context.Context, ended *endedError) error {
	if ended.reason == migrationv1alpha1.MigrationReasonResourceNotServed && t.served() {
		missing, err := t.find(ctx, t.journal.stored.Status.Target)
		if err != nil {
			return err
		}
		if missing == nil {
			return errStopped
		}
		return t.fail(ctx, *missing)
	}
	return t.fail(ctx, Decision{Verdict: Fail, Reason: ended.reason, Message: ended.message})
}

func (t *turn) find(ctx context.Context, target *migrationv1alpha1.MigrationTarget) (missing *Decision, err error) {
	preferred := ""
	if version, err := schema.ParseGroupVersion(target.EncodingVersion); err == nil && version.Group == t.resource.Group {
		preferred = version.Version
	}
	t.endpoint, missing, err = find(ctx, t.documents, t.journal.stored, preferred)
	if err != nil || missing != nil || !t.cleans() {
		return missing, err
	}
	// Others of the group may be served at versions that this one is served at no more.
	d, err := readDefinition(ctx, t.documents, t.resource)
	if err != nil {
		return nil, err
	}
	t.endpoint.served = d.servedVersions()
	return nil, nil
}

// changedUnseen says that an aggregated server writes something else than the target. Nobody tells of its changes, so that a look at the
// start and one at the end have to find what was observed.
func (t *turn) changedUnseen(target *migrationv1alpha1.MigrationTarget) bool {
	return t.class == storageversion.Aggregated && t.endpoint.hash != "" && t.endpoint.hash != target.StorageVersionHash
}

// cleans says that managedFields of the objects are cleaned.
func (t *turn) cleans() bool {
	return t.features.Enabled(features.CRDManagedFieldsCleaning) && t.observer.Observe(t.resource).Class == storageversion.Custom
}

// begin binds the migration to its target, once, before anything is written.
func (t *turn) begin(ctx context.Context, decision Decision) error {
	first := t.journal.stored.Status.StartTime == nil
	t.phase = phase{migrationv1alpha1.MigrationReasonRewriting, "Objects are being listed and rewritten in " + words(decision.Target) + "."}
	err := t.journal.persist(ctx, func(status *migrationv1alpha1.StorageVersionMigrationStatus) {
		now := t.clock.Now()
		if status.StartTime == nil {
			// Rounded up: nothing was written before that time, and a proof has to be younger than what it proves.
			started := metav1.NewTime(ceil(now))
			status.StartTime, status.Target, status.Evidence = &started, decision.Target, decision.Evidence
		}
		if !t.stuck { // else that stands there, and is still true
			running(status, now, t.phase.reason, t.phase.message)
		}
	})
	if err != nil {
		return err
	}
	if first {
		klog.FromContext(ctx).Info("Migration starts", "target", words(decision.Target), "version", t.endpoint.resource.Version, "epoch", decision.Target.Epoch)
		t.tell(t.journal.stored, corev1.EventTypeNormal, eventStarted, "All objects are being brought to "+words(decision.Target))
	} else if !t.stuck {
		klog.FromContext(ctx).Info("Migration goes on", "target", words(decision.Target), "progress", t.journal.stored.Status.Progress)
	}
	t.bound.Store(t.journal.stored)
	// What changed before that was nobody's to tell us.
	if d := t.decideCached(t.journal.stored); d.Verdict != Go {
		return errStopped
	}
	return nil
}

// work does what is left to do: the sweep, denied objects once more, and the end.
func (t *turn) work(ctx context.Context) error {
	s := t.sweeps.take(t.journal.uid(), func() *sweep.Sweep { return sweep.New(positionOf(&t.journal.stored.Status), t.sweepOptions()) })
	if !s.Complete() {
		if err := t.sweep(ctx, s); err != nil {
			t.keep(t.journal.uid(), s, err)
			return err
		}
	}
	if err := t.retryDenied(ctx, s.Position()); err != nil {
		return err
	}
	return t.finish(ctx)
}

// keep keeps an interrupted sweep for the next turn, if there may be one.
func (t *turn) keep(key types.UID, s *sweep.Sweep, cause error) {
	if !errors.Is(cause, errMigrationGone) {
		t.sweeps.keep(key, s)
	}
}

func (t *turn) sweepOptions() sweep.Options {
	return sweep.Options{Newer: newer(t.class), MaxDenials: migrationv1alpha1.MaxDeniedObjects}
}

func (t *turn) sweep(ctx context.Context, s *sweep.Sweep) error {
	lane := t.pacer.Lane()
	defer lane.Close()
	r := t.rewriter()
	p := t.newPass(lane)
	p.sweep, p.list, p.rewrite = s, t.lister(r), r.rewrite
	p.save, p.observed = t.save, t.observed
	return p.run(ctx)
}

// newPass lacks what differs between the passes of a migration.
func (t *turn) newPass(lane *pacer.Lane) *pass {
	return &pass{clock: t.clock, lane: lane, tell: t.tellTrouble, served: t.served, othersWait: t.othersWait, stuck: t.stuck, told: t.stuck}
}

// othersWait says whether migrations wait for a place among those that write.
func (t *turn) othersWait() bool { return t.turns.Len() > 0 }

func (t *turn) rewriter() *rewriter {
	r := &rewriter{
		objects:    &objects{client: t.objectsClient, resource: t.endpoint.resource},
		clock:      t.clock,
		aggregated: t.class == storageversion.Aggregated,
		newer:      newer(t.class),
		baseline:   t.journal.stored.Status.BaselineResourceVersion,
	}
	if t.endpoint.served != nil {
		r.clean = &cleaner{group: t.resource.Group, served: t.endpoint.served, kept: t.endpoint.resource.Version}
	}
	return r
}

// lister returns what lists a chunk of objects as r writes them.
func (t *turn) lister(r *rewriter) func(ctx context.Context, token string) (sweep.Chunk, error) {
	return func(ctx context.Context, token string) (sweep.Chunk, error) {
		list, err := r.objects.list(ctx, token, t.options.ChunkSize)
		if err != nil {
			return sweep.Chunk{}, err
		}
		chunk := sweep.Chunk{Next: list.Continue, ResourceVersion: list.ResourceVersion, Remaining: list.RemainingItemCount}
		if chunk.Next == "" {
			var none int64
			chunk.Remaining = &none
		}
		for i := range list.Items {
			item := &list.Items[i]
			object := &sweep.Object{Namespace: item.Namespace, Name: item.Name, UID: item.UID, ResourceVersion: item.ResourceVersion}
			if r.clean != nil {
				r.clean.prepare(object, item)
			}
			chunk.Objects = append(chunk.Objects, object)
		}
		return chunk, nil
	}
}

// save stores the position behind a chunk, unless that was done a moment ago.
func (t *turn) save(ctx context.Context, position sweep.Position) error {
	now := t.clock.Now()
	perMinute := t.rate.perMinute(now, position.Counts.Processed())
	if !position.Complete && now.Sub(t.savedAt) < saveInterval {
		return nil
	}
	err := t.journal.persist(ctx, func(status *migrationv1alpha1.StorageVersionMigrationStatus) {
		status.BaselineResourceVersion = position.Baseline
		putPosition(status, position, t.clock.Now(), perMinute)
	})
	t.savedAt = t.clock.Now()
	t.saved.Store(t.journal.stored)
	klog.FromContext(ctx).V(4).Info("Chunk done", "counts", position.Counts, "complete", position.Complete)
	return err
}

func (t *turn) served() bool {
	presence := t.observer.Observe(t.resource).Presence
	return presence != storageversion.NotServed && presence != storageversion.Deleted
}

// observed logs what became of an object, and counts it.
func (t *turn) observed(object *sweep.Object, a attempt) {
	countObject(t.resource, a.outcome)
	if a.outcome == sweep.Denied {
		t.log.Info("The API server refuses to rewrite an object", "object", klog.KRef(object.Namespace, object.Name), "uid", object.UID, "answer", a.failure.inShort())
		return
	}
	t.log.V(6).Info("Object done", "object", klog.KRef(object.Namespace, object.Name), "outcome", a.outcome)
}

// ceil rounds up to what the API can store.
func ceil(t time.Time) time.Time {
	if truncated := t.Truncate(time.Second); truncated.Before(t) {
		return truncated.Add(time.Second)
	}
	return t
}
