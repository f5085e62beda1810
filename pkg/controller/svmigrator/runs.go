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
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
)

// runs has the migrations that run, at most one of each resource, and the memory of migrations between two runs.
type runs struct {
	mu      sync.Mutex
	running map[schema.GroupResource]*migrationRun
	// memories has no entries of migrations that run.
	memories map[types.UID]runMemory
}

// runMemory is what a run leaves to the next run of the same migration. It only saves work: without it, for example in
// a new process, a run resumes from the status.
type runMemory struct {
	// task is nil before the migration begins. Only the run uses it.
	task *rewrite.Task
	// contentSince says which content of the definition the task knows. It is zero if there is none.
	contentSince time.Time
	// stuck means that the last run made no progress.
	stuck bool
	// whyPostponed is the decision to wait of the last run, or nil if it was not postponed.
	whyPostponed *Decision
	// hadTurn means that the migration gave its slot to others when its turn was over.
	hadTurn bool
	// notBefore is when the migration may run again.
	notBefore time.Time
	// failingSince is when runs began to fail because of requests that are not for objects. It is zero if the last run did
	// not fail.
	failingSince time.Time
}

// recall returns the memory of a migration. It is empty while the migration runs. A process that has just become the
// leader remembers nothing, but the status of a migration says that its last run made no progress. The caller holds
// r.mu.
func (r *runs) recall(m *migrationv1alpha1.StorageVersionMigration) runMemory {
	memory, known := r.memories[m.UID]
	if !known {
		memory.stuck = statusSaysStuck(&m.Status)
	}
	return memory
}

// statusSaysStuck reports whether the status says that a run made no progress.
func statusSaysStuck(status *migrationv1alpha1.StorageVersionMigrationStatus) bool {
	c := status.Condition(migrationv1alpha1.MigrationRunning)
	return c != nil && c.Reason == string(rewrite.Stuck)
}

// saysStuck reports whether the status says why the last run made no progress.
func (m *runMemory) saysStuck(status *migrationv1alpha1.StorageVersionMigrationStatus) bool {
	return m.stuck && statusSaysStuck(status)
}

// saysPostponed reports whether the status says why the last run was postponed.
func (m *runMemory) saysPostponed(status *migrationv1alpha1.StorageVersionMigrationStatus) bool {
	return m.whyPostponed != nil && !waitingSince(status, *m.whyPostponed).IsZero()
}

func newRuns() *runs {
	return &runs{running: map[schema.GroupResource]*migrationRun{}, memories: map[types.UID]runMemory{}}
}

// claimResource registers a run. It returns false if another migration of the resource runs.
func (r *runs) claimResource(run *migrationRun) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running[run.resource] != nil {
		return false
	}
	r.running[run.resource], run.runMemory = run, r.recall(run.status.stored)
	delete(r.memories, run.uid)
	return true
}

// release removes a run that has ended. It keeps the memory for the next run if there may be one.
func (r *runs) release(run *migrationRun, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, run.resource)
	if err != nil && !errors.Is(err, errMigrationGone) {
		if run.task != nil {
			run.stuck = run.task.Stuck
		}
		r.memories[run.uid] = run.runMemory
	}
}

// all returns all runs.
func (r *runs) all() []*migrationRun {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.running))
}

// runOf returns the run of a resource, or nil.
func (r *runs) runOf(resource schema.GroupResource) *migrationRun {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running[resource]
}

// runOfMigration returns the run of a migration, or nil.
func (r *runs) runOfMigration(m *migrationv1alpha1.StorageVersionMigration) *migrationRun {
	if run := r.runOf(m.GroupResource()); run != nil && run.uid == m.UID {
		return run
	}
	return nil
}

// memoryOf returns what recall does.
func (r *runs) memoryOf(m *migrationv1alpha1.StorageVersionMigration) runMemory {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.recall(m)
}

func (r *runs) forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.memories, uid)
}
