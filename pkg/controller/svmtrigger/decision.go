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
	"time"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// Reason tells why a decision is what it is. Logs, events, metrics and tests share it.
type Reason string

// StateAction is what is to be done with a StorageState.
type StateAction string

const (
	KeepState   StateAction = ""
	CreateState StateAction = "Create"
	// UpdateState replaces the status of the state that was decided on, and of no other.
	UpdateState StateAction = "Update"
	DeleteState StateAction = "Delete"
	// RecreateState deletes a state whose epochs cannot be trusted and creates it anew, with the same annotations.
	RecreateState StateAction = "Recreate"
)

// Decision is what is to be done about one resource, in this order:
//
//  1. the state is created, updated, deleted or recreated;
//  2. migrations whose target is out of date are deleted;
//  3. a migration is created. Never in a decision that does something with the state: only the next decision, which is
//     made on the state as it was stored, can justify a migration.
//
// What fails keeps back what comes after it.
type Decision struct {
	State StateAction
	// Status is the whole status to write where State is UpdateState.
	Status migrationv1alpha1.StorageStateStatus
	// Delete are migrations to be deleted, if they are still the ones that were decided on.
	Delete []*migrationv1alpha1.StorageVersionMigration
	// Create is a migration to be created, if the state is still the one that was decided on.
	Create *migrationv1alpha1.StorageVersionMigration
	// ConfirmGone names a migration that must be gone from the API server, and not only from the cache, before the state
	// is written. Empty if there is none.
	ConfirmGone string
	// Due says that a migration is due, whether or not there was a slot for it. Priority orders those that are: the
	// lower, the earlier.
	Due      bool
	Priority int
	// Reason is why.
	Reason Reason
	// Events tell the administrator of transitions that Status records. They are sent when it was stored.
	Events []Event
	// LookAgain is when to decide again if nothing else happens. Zero if only events matter.
	LookAgain time.Time
}

// Event is something to tell on the StorageState.
type Event struct {
	Warning bool
	Reason  string
	Message string
}
