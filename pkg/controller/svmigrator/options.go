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

import "time"

const (
	// DefaultChunkSize is that of Kubernetes' own clients: large enough for the list to cost little beside the rewrites, and
	// small enough to be done again.
	DefaultChunkSize = 500
	// DefaultConcurrentMigrations is more than one, so that one stuck resource holds nobody up. They share one pace.
	DefaultConcurrentMigrations = 3
	// DefaultFinishedTTL is longer than a weekend.
	DefaultFinishedTTL = 72 * time.Hour

	// maxEventLength is what the API takes of an event's message.
	maxEventLength = 1024
)

// Reasons of events on StorageVersionMigrations.
const (
	eventStarted   = "MigrationStarted"
	eventSucceeded = "MigrationSucceeded"
	eventFailed    = "MigrationFailed"
	eventDenied    = "ObjectDenied"
	eventPruned    = "StoredVersionsPruned"
	eventNotPruned = "StoredVersionsNotPruned"
)

// Options are what administrators choose.
type Options struct {
	// ChunkSize is how many objects are listed at a time.
	ChunkSize int64
	// ConcurrentMigrations is how many migrations write at a time.
	ConcurrentMigrations int
	// MaxConcurrentRewrites is how many objects all migrations together rewrite at a time at most.
	MaxConcurrentRewrites int
	// MaxRewritesPerSecond is how many objects all migrations together rewrite in a second at most. Zero is no bound.
	MaxRewritesPerSecond float64
	// Unpaced rewrites MaxConcurrentRewrites objects at a time, whatever the API server's latency.
	Unpaced bool
	// FinishedTTL is how long a migration is kept that has ended. Zero keeps it for ever.
	FinishedTTL time.Duration
	// SettlePeriod is how long what the servers write must stand before it counts as agreement.
	SettlePeriod time.Duration
	// Triggered says that this process keeps StorageStates too.
	Triggered bool
}
