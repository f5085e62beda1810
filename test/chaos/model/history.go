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

package model

import (
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/svm-api/migration/v1alpha1"
)

// Outcome is what a writer knows of a request of its own.
type Outcome string

const (
	// Done means that the API server said so.
	Done Outcome = "done"
	// Refused means that the API server said that it changed nothing.
	Refused Outcome = "refused"
	// Unknown means that the write may have happened, or may still happen.
	Unknown Outcome = "unknown"
)

// Request is one write of a writer.
type Request struct {
	// Write is the number of the write, which the object has when it happened. No two requests have the same.
	Write    int64
	Verb     string // POST, PATCH or DELETE
	Resource string
	Name     string
	// Server and Version say through which server, and in which version, the request was sent.
	Server, Version string
	// Era is that of etcd when the request was sent.
	Era        int
	Start, End time.Time
	Outcome    Outcome
	// Code is the HTTP status, zero if there was no answer.
	Code int
	// Revision is the resourceVersion in the answer to a request that was done, zero for DELETE.
	Revision int64
}

// Revision is one write in etcd. One of its pointers is set.
type Revision struct {
	Number     int64
	Seen       time.Time
	Object     *Object
	State      *State
	Migration  *Migration
	Definition *Definition
	Change     *Change
	Leader     *Leader
}

// Object is an object of a writer as etcd has it.
type Object struct {
	Resource, Name string
	Deleted        bool
	// Created is true if the key did not exist before.
	Created bool
	// Encoding is the version of the stored bytes.
	Encoding string
	// Write is the number of the write that the object comes from, by its label.
	Write int64
	// Content is a hash of all that the object says, the same in all versions.
	Content string
	// Broken says what is wrong with the object itself, usually nothing.
	Broken string
}

// State is a write of a StorageState. The state is nil if it was deleted.
type State struct {
	Name string
	*v1alpha1.StorageState
}

// Migration is a write of a StorageVersionMigration. The migration is nil if it was deleted.
type Migration struct {
	Name string
	*v1alpha1.StorageVersionMigration
}

// Definition is a write of the definition of a custom resource.
type Definition struct {
	Resource string
	Storage  string
	Stored   []string
}

// Change says that servers begin to write a built-in resource in another version, or that some do not any more. It is
// not written in etcd: it came after the revision that has its number.
type Change struct{ Resource string }

// Leader is a write of the Lease that the managers elect their leader by.
type Leader struct{ Holder string }

// Era is the time between two restores of etcd.
type Era struct {
	// From is the revision that etcd was restored to. What came after it in earlier eras never happened.
	From      int64
	Revisions []Revision
}

// Fault is something that was broken, or changed, for some time.
type Fault struct {
	Kind, Target string
	Start, End   time.Time
	// Denied are the objects that a server refused to write.
	Denied []string
	// Shift is what the clock of a server showed more than that of the machine.
	Shift time.Duration
	// Error says what went wrong with the fault itself, usually nothing.
	Error string
}

// Patch is a request of a manager that rewrote an object, or would have.
type Patch struct {
	Resource, Name string
	Received       time.Time
	Code           int
}

// Round is a time of faults, and the calm after it.
type Round struct {
	// Start is when the faults began, Calm when they stopped, and Converged when everything was migrated again.
	Start, Calm, Converged time.Time
	// Problem is why the round did not converge, usually nothing.
	Problem string
	// Retries is how many times an administrator asked for another attempt.
	Retries int
}

// History is what is known of a run. Its methods may be called from any goroutine.
type History struct {
	mu       sync.Mutex
	eras     []Era
	requests []Request
	faults   []Fault
	patches  []Patch
	rounds   []Round
	// rewriting are the migrations that rewrite objects at the moment.
	rewriting map[string]bool
}

// Record is a copy of a history.
type Record struct {
	Eras     []Era
	Requests []Request
	Faults   []Fault
	Patches  []Patch
	Rounds   []Round
}

// Record is what is known now.
func (h *History) Record() Record {
	h.mu.Lock()
	defer h.mu.Unlock()
	return Record{
		slices.Clone(h.eras), slices.Clone(h.requests), slices.Clone(h.faults), slices.Clone(h.patches),
		slices.Clone(h.rounds),
	}
}

// Era is the number of the present era.
func (h *History) Era() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.eras) - 1
}

// BeginEra begins an era of etcd.
func (h *History) BeginEra(from int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.eras = append(h.eras, Era{From: from})
	h.rewriting = nil
}

// AddRevision adds what was seen in etcd.
func (h *History) AddRevision(r Revision) {
	h.mu.Lock()
	defer h.mu.Unlock()
	era := &h.eras[len(h.eras)-1]
	era.Revisions = append(era.Revisions, r)
	if m := r.Migration; m != nil {
		if h.rewriting == nil {
			h.rewriting = map[string]bool{}
		}
		if delete(h.rewriting, m.Name); m.StorageVersionMigration != nil && m.IsConditionTrue(v1alpha1.MigrationRunning) {
			h.rewriting[m.Name] = true
		}
	}
}

// Rewriting tells whether a migration rewrites objects at the moment.
func (h *History) Rewriting() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.rewriting) > 0
}

// AddRequest adds a request that has ended.
func (h *History) AddRequest(r Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests = append(h.requests, r)
}

// AddFault adds a fault that has ended.
func (h *History) AddFault(f Fault) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, f)
}

// SetPatches sets all rewrites so far.
func (h *History) SetPatches(patches []Patch) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.patches = patches
}

// AddRound adds a round that has ended.
func (h *History) AddRound(r Round) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.rounds = append(h.rounds, r)
}

// Last is the revision that was seen last.
func (h *History) Last() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	revisions := h.eras[len(h.eras)-1].Revisions
	if len(revisions) == 0 {
		return h.eras[len(h.eras)-1].From
	}
	return revisions[len(revisions)-1].Number
}
