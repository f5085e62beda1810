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
}

// MaxChunkSize and MaxConcurrentRewrites are bounds of flags. They keep a mistyped number from becoming load.
const MaxChunkSize, MaxConcurrentRewrites = 10000, 1000

// ValidateAtMost returns an error without a subject, because the caller names its flag.
func ValidateAtMost[N int | int64](most, n N) error {
	if n >= 1 && n <= most {
		return nil
	}
	return fmt.Errorf("must be between 1 and %d, got %d", most, n)
}

// minPerSecond and maxPerSecond are the bounds of --max-rewrites-per-second.
const minPerSecond, maxPerSecond = 0.01, 1e6

// ValidateMaxPerSecond returns an error without a subject, because the caller names its flag.
func ValidateMaxPerSecond(perSecond float64) error {
	if perSecond == 0 || perSecond >= minPerSecond && perSecond <= maxPerSecond { // Neither is true of NaN.
		return nil
	}
	return fmt.Errorf("must be zero, which is no bound, or between %v and %v, got %v", minPerSecond, maxPerSecond,
		perSecond)
}

// leastStorageGrowth and mostStorageGrowth are the bounds of --max-storage-growth. A database file of etcd never gets
// as large as the upper one.
var leastStorageGrowth, mostStorageGrowth = resource.MustParse("1Mi"), resource.MustParse("1Pi")

// ValidateMaxStorageGrowth returns an error without a subject, because the caller names its flag.
func ValidateMaxStorageGrowth(growth resource.Quantity) error {
	if growth.IsZero() || growth.Cmp(leastStorageGrowth) >= 0 && growth.Cmp(mostStorageGrowth) <= 0 {
		return nil
	}
	return fmt.Errorf("must be zero, which is no bound, or between %v and %v, got %v",
		&leastStorageGrowth, &mostStorageGrowth, &growth)
}
