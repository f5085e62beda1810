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

package rewrite

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/sweep"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// Migration is what an engine needs from the owner of the migration that it runs. The engine calls all methods from one
// goroutine, and waits until they return.
type Migration interface {
	// SavePosition is called after each chunk with the position of the next one. It may skip a position that is not
	// complete: after a crash the run repeats what came after the last stored position. An error ends the run. The
	// position is complete when all objects have outcomes, and again after the second sweep of the denied ones.
	SavePosition(ctx context.Context, position sweep.Position) error
	// ObjectDone is called when an object gets its outcome, also if the list shows that others wrote it, so that no
	// request is needed. After the list had to begin anew, and in the second sweep, it is not called for objects that the
	// list shows to be current: they may have been counted before.
	ObjectDone(object *sweep.Object, outcome sweep.Outcome)
	// ReportPhase is called at most four times a second, and when a sweep begins, unless the task is stuck. It must return
	// soon.
	ReportPhase(ctx context.Context, report Report)
	// MustYield reports whether other migrations wait. Then a run without progress ends with ErrStuck. A run that has made
	// progress ends with ErrTurnOver when its turn is over and nothing is in flight. The next run continues in the middle
	// of the chunk if it has the same Task.
	MustYield() bool
}

// Resource is what an engine rewrites.
type Resource struct {
	// GroupVersionResource has the version at which the objects are listed and written.
	schema.GroupVersionResource
	Class storageversion.Class
	// Namespaced says whether objects are in namespaces. It is nil if that is not known.
	Namespaced *bool
	// MayUseStatus means that objects may be rewritten through their status subresource, too. The engine does so for
	// denied objects, and for objects that a rewrite of the resource itself would change.
	MayUseStatus bool
	// Schemas are the schemas of a custom resource, otherwise nil. They show which fields API servers drop, and which
	// defaults they add, when they store an object in another version than before.
	Schemas *documents.Schemas
	// ReadServedVersions reads the served versions from the CustomResourceDefinition on the API server. Entries of
	// managedFields in other versions are dropped. If it is nil, no entry is dropped.
	ReadServedVersions func(ctx context.Context) ([]string, error)
	// DryRun sends each rewrite as a dry run, which stores nothing.
	DryRun bool
}

// Engine rewrites objects. All migrations of a process use one engine and share its pace.
type Engine struct {
	client    rest.Interface
	pacer     *pacer.Pacer
	clock     clock.WithTicker
	chunkSize int64
	turn      time.Duration
	trees     sync.Mutex // held while objects are compared as trees
}

// NewEngine returns an engine that lists chunkSize objects at a time. turn is how long a run goes on while other
// migrations wait. Zero means until it ends. documents.BoundAnswers should have prepared the config, or servers may
// send more than the process has room for.
func NewEngine(
	config *rest.Config, pace *pacer.Pacer, clk clock.WithTicker, chunkSize int64, turn time.Duration,
) (*Engine, error) {
	client, err := newObjectsClient(config)
	if err != nil {
		return nil, err
	}
	return &Engine{client: client, pacer: pace, clock: clk, chunkSize: chunkSize, turn: turn}, nil
}

// ErrStuck ends a run that makes no progress while other migrations wait.
var ErrStuck = errors.New("there was no progress for a while, and other migrations wait")

// ErrTurnOver ends a run that has had its turn while other migrations wait.
var ErrTurnOver = errors.New("the turn is over, and other migrations wait")

// PermanentError ends a run that cannot succeed. Reason and Message are for the Failed condition.
type PermanentError struct {
	Reason, Message string
}

func (e *PermanentError) Error() string { return e.Reason + ": " + e.Message }

// Run rewrites all objects of the resource that have no outcome yet. It returns nil when every object has its outcome
// and the final position is saved. No request is in flight when it returns.
func (e *Engine) Run(ctx context.Context, task *Task, resource Resource, m Migration) error {
	if task.changed.kind == changesObject {
		return task.changed.permanentError()
	}
	lane := e.pacer.Lane()
	defer lane.Close()
	task.Begin(e.clock.Now())
	if !task.first.sweep.Complete() {
		w := e.newRewriter(resource, task.first.sweep.Position().Baseline)
		r := &sweepRunner{
			sweepState: task.first, clock: e.clock, lane: lane, turn: e.turn, task: task, migration: m, normal: Rewriting,
			list: e.lister(w, &task.first.listLimit), rewrite: w.rewrite,
		}
		if task.Only != nil {
			r.list = listNamed(task.Only)
		}
		err := r.run(ctx)
		if err == nil {
			err = r.checkAllDenied()
		}
		if err != nil {
			return err
		}
	}
	return e.secondSweep(ctx, lane, task, resource, m)
}

func (e *Engine) newRewriter(resource Resource, baseline string) *rewriter {
	return &rewriter{
		client: e.client, clock: e.clock, resource: resource, baseline: baseline,
		comparing: semaphore.NewWeighted(maxComparedObjects), trees: &e.trees,
	}
}

// secondSweep tries the denied objects once more when all others are done. By then the reason may be gone, or there may
// be another way.
func (e *Engine) secondSweep(ctx context.Context, lane *pacer.Lane, task *Task, resource Resource, m Migration) error {
	position := task.first.sweep.Position()
	denied := position.Counts[sweep.Denied]
	if denied == 0 || task.secondSaved {
		return nil
	}
	w := e.newRewriter(resource, position.Baseline)
	w.deniedBefore = true
	named := denied <= int64(len(position.Denied))
	if task.second == nil {
		from := sweep.Position{}
		if !named { // The sweep lists all objects again. It does not rewrite those that were written after the baseline.
			from.Baseline = position.Baseline
		}
		task.second = newSweepState(resource.Class, from)
	}
	r := &sweepRunner{
		sweepState: task.second, clock: e.clock, lane: lane, turn: e.turn, task: task, migration: m, normal: RetryingDenied,
		list: e.lister(w, &task.second.listLimit), rewrite: w.rewrite,
	}
	if named {
		r.list, r.impatient = listNamed(position.Denied), true
	}
	if err := r.run(ctx); err != nil {
		return err
	}
	second := task.second.sweep.Position()
	position.Counts = mergeSweeps(position.Counts, second.Counts)
	position.Retried += second.Retried
	if second.Counts[sweep.Denied] <= denied { // Otherwise the second sweep also denied objects that the first one stored.
		position.Denied = second.Denied
	}
	klog.FromContext(ctx).Info("Tried denied objects once more",
		"before", denied, "after", position.Counts[sweep.Denied], "status", resource.MayUseStatus)
	err := m.SavePosition(ctx, position)
	task.secondSaved = err == nil
	return err
}

// listNamed returns a function that lists the denied objects as one chunk. They have no resource version.
func listNamed(denied []migrationv1alpha1.DeniedObject) func(context.Context, string) (sweep.Chunk, error) {
	return func(context.Context, string) (sweep.Chunk, error) {
		var chunk sweep.Chunk
		for _, d := range denied {
			chunk.Objects = append(chunk.Objects, &sweep.Object{Namespace: d.Namespace, Name: d.Name, UID: d.UID})
		}
		return chunk, nil
	}
}

// mergeSweeps moves objects that were denied in the first sweep to their outcomes in the second one. If the second
// sweep listed all objects again, its counts include objects that have outcomes already. So mergeSweeps moves only as
// many objects as are not left any more, and WrittenByOthers comes last: to the second sweep, what the first one has
// rewritten looks like that.
func mergeSweeps(first, second sweep.Counts) sweep.Counts {
	merged := first
	moved := max(0, first[sweep.Denied]-second.Left())
	merged[sweep.Denied] -= moved
	for _, outcome := range []sweep.Outcome{sweep.Rewritten, sweep.Gone, sweep.WrittenByOthers} {
		n := min(moved, second[outcome])
		merged[outcome] += n
		moved -= n
	}
	// The others were deleted, or somebody stored them in the target encoding.
	merged[sweep.AlreadyCurrent] += moved
	return merged
}

// RetryDelay returns how long to wait after the given number of failed tries: at first a random time of a quarter to
// half a second, doubling up to half a minute. It is random so that requests that failed together are not repeated
// together.
func RetryDelay(failedTries int) time.Duration {
	longest := min(minResend<<min(failedTries-1, maxDoublings), maxResend)
	return wait.Jitter(longest/2, 1)
}
