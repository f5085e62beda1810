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
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
)

const (
	// DefaultChunkSize is the size that Kubernetes' own clients use. A list costs little compared with the rewrites of its
	// objects, and a crash repeats little.
	DefaultChunkSize = 500
	// DefaultConcurrentMigrations is more than one, so that a migration without progress does not hold up all others. They
	// share one pace.
	DefaultConcurrentMigrations = 3
	// DefaultTurn is long compared with the list that each turn costs, and short enough for small migrations that wait.
	DefaultTurn = 5 * time.Minute
	// DefaultFinishedTTL is longer than a weekend.
	DefaultFinishedTTL = 72 * time.Hour
	// DefaultMaxStorageGrowth is a sixteenth of the quota that etcd has by default.
	DefaultMaxStorageGrowth = "128Mi"
)

// Options are the settings of a Controller.
type Options struct {
	// ChunkSize is how many objects are listed at a time.
	ChunkSize int64
	// ConcurrentMigrations is how many migrations run at a time: the number of slots.
	ConcurrentMigrations int
	// Turn is how long a migration keeps its slot while others wait for one. Zero means until it ends.
	Turn time.Duration
	// Pace bounds how fast all migrations together rewrite.
	Pace pacer.Options
	// FinishedTTL is how long a migration is kept after its end. Zero keeps it forever.
	FinishedTTL time.Duration
	// MaxStorageGrowth is by how many bytes rewrites may enlarge etcd's database file. Zero means without a bound.
	MaxStorageGrowth int64
	// SettlePeriod is how long all servers must have written one encoding before they count as agreed.
	SettlePeriod time.Duration
	// HasTrigger means that this manager runs the trigger too.
	HasTrigger bool
	// UseStatus allows rewrites through the status subresource.
	UseStatus bool
	// PruneStoredVersions removes old versions from status.storedVersions of a definition before a success.
	PruneStoredVersions bool
	// CleanManagedFields removes entries of managedFields of custom resources that name versions which are not served.
	CleanManagedFields bool
}

// Bounds of flags keep a mistyped number from becoming load. A database file of etcd never gets as large as
// mostStorageGrowth.
var leastStorageGrowth, mostStorageGrowth = resource.MustParse("1Mi"), resource.MustParse("1Pi")

const (
	maxChunkSize, maxConcurrentRewrites = 10000, 1000
	minPerSecond, maxPerSecond          = 0.01, 1e6
)

// ValidateFlags returns what is wrong with the flags that several programs have for these options. growth is the value
// of --max-storage-growth, chunkSize the name of the flag for ChunkSize. Some of the errors may be nil.
func (o *Options) ValidateFlags(chunkSize string, growth resource.Quantity) []error {
	errs := []error{
		ValidateAtMost(chunkSize, maxChunkSize, o.ChunkSize),
		ValidateAtMost("max-concurrent-rewrites", maxConcurrentRewrites, int64(o.Pace.MaxConcurrent)),
	}
	n := o.Pace.MaxPerSecond
	if n != 0 && !(n >= minPerSecond && n <= maxPerSecond) { // also if it is NaN
		errs = append(errs, fmt.Errorf("--max-rewrites-per-second must be zero, which is no bound, or between %v and %v, "+
			"got %v", minPerSecond, maxPerSecond, n))
	}
	if !growth.IsZero() && (growth.Cmp(leastStorageGrowth) < 0 || growth.Cmp(mostStorageGrowth) > 0) {
		errs = append(errs, fmt.Errorf("--max-storage-growth must be zero, which is no bound, or between %v and %v, got %v",
			&leastStorageGrowth, &mostStorageGrowth, &growth))
	}
	return errs
}

// ValidateAtMost returns an error if the value of a flag is not from 1 to most.
func ValidateAtMost(flag string, most, n int64) error {
	if n >= 1 && n <= most {
		return nil
	}
	return fmt.Errorf("--%s must be between 1 and %d, got %d", flag, most, n)
}
