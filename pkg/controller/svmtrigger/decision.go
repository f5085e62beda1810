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

// Reason is why a decision is what it is. Logs, metrics and tests use it.
type Reason string

// Reasons of decisions.
const (
	reasonDefinitionDeleted Reason = "DefinitionDeleted"
	reasonNothingKnown      Reason = "NothingKnownYet"
	reasonNewResource       Reason = "NewResource"
	reasonMigrationDue      Reason = "MigrationDue"
	reasonOutdated          Reason = "Outdated"
	reasonNothingDue        Reason = "NothingToMigrate"
	reasonNewEpoch          Reason = "NewEpoch"
	reasonMigrated          Reason = "MigrationProven"
	reasonHeartbeat         Reason = "Heartbeat"
	reasonStateChanged      Reason = "StateChanged"
)

// StateAction is what to do with a StorageState.
type StateAction string

const (
	KeepState   StateAction = ""
	CreateState StateAction = "Create"
	// UpdateState replaces the status of the very state that was decided on.
	UpdateState StateAction = "Update"
	DeleteState StateAction = "Delete"
)

// Decision is what to do about one resource, in this order:
//
//  1. create, update or delete the state;
//  2. delete migrations that are not needed any more;
//  3. create a migration.
//
// If one of these fails, those after it are not done. No decision both updates the state and creates a migration: a
// migration rests on what is stored in the state, and the next decision records it there.
type Decision struct {
	StateAction StateAction
	// Status is the whole status to write where StateAction is UpdateState.
	Status migrationv1alpha1.StorageStateStatus
	// Delete are migrations to delete, if they are still the ones that were decided on. DeleteReason is why.
	Delete       []*migrationv1alpha1.StorageVersionMigration
	DeleteReason Reason
	// Create is a migration to create, if the state is still the one that was decided on.
	Create *migrationv1alpha1.StorageVersionMigration
	// Reason is why the state is written, or the migration created.
	Reason Reason
	// Events report transitions that Status records. They are sent when it was stored.
	Events []Event
	// DecideAt is when to decide again if nothing else happens. Zero if nothing but an event can change the decision.
	DecideAt time.Time
}

// Event is an event about the StorageState.
type Event struct {
	// Type is Normal or Warning.
	Type, Reason, Message string
}
