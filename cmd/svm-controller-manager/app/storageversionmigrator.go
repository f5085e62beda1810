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

package app

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-base/featuregate"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/features"
)

// maxConcurrentMigrations bounds the memory: each migration may have an object of some megabytes that it compares.
const maxConcurrentMigrations = 10

// minTurn is long enough to rewrite something between the list that a turn begins with and the progress that it saves.
const minTurn = time.Second

func newStorageVersionMigratorDescriptor() ControllerDescriptor {
	flags := &migratorOptions{Options: svmigrator.Options{
		ConcurrentMigrations: svmigrator.DefaultConcurrentMigrations,
		Pace:                 pacer.Options{MaxConcurrent: pacer.DefaultMaxConcurrent},
		ChunkSize:            svmigrator.DefaultChunkSize,
		Turn:                 svmigrator.DefaultTurn,
		FinishedTTL:          svmigrator.DefaultFinishedTTL,
	}}
	flags.storageGrowth.Quantity = resource.MustParse(svmigrator.DefaultMaxStorageGrowth)
	return ControllerDescriptor{
		Name:         names.StorageVersionMigratorController,
		Aliases:      []string{"svmigrator"},
		FeatureGates: []featuregate.Feature{features.StorageVersionMigrator},
		Needs:        migrationAPI,
		Observes:     true,
		Fenced:       true,
		Options:      flags,
		New: func(ctx context.Context, c ControllerContext) (Controller, error) {
			options := flags.Options
			options.MaxStorageGrowth = flags.storageGrowth.Value()
			options.SettlePeriod = c.Observation.SettlePeriod
			options.HasTrigger = c.Selected(names.StorageVersionMigrationTriggerController)
			options.UseStatus = features.DefaultFeatureGate.Enabled(features.StatusSubresourceFallback)
			options.PruneStoredVersions = features.DefaultFeatureGate.Enabled(features.CRDStoredVersionsPruning)
			options.CleanManagedFields = features.DefaultFeatureGate.Enabled(features.CRDManagedFieldsCleaning)
			clients := svmigrator.Clients{
				Migrations: c.MigrationClient, Documents: c.Client.Discovery().RESTClient(), Objects: c.Config,
			}
			return svmigrator.New(ctx, clients, c.MigrationInformers.Migration().V1alpha1(), c.Observer, c.Events, options)
		},
	}
}

// migratorOptions are the flags of the migrator. They set the options of the controller.
type migratorOptions struct {
	svmigrator.Options
	storageGrowth resource.QuantityValue
}

// AddFlags implements options.ControllerOptions.
func (o *migratorOptions) AddFlags(fs *pflag.FlagSet) {
	fs.IntVar(&o.ConcurrentMigrations, "concurrent-migrations", o.ConcurrentMigrations,
		fmt.Sprintf("How many migrations run at a time, at most %d. They share one pace. A higher number is not faster, "+
			"but keeps a migration without progress from holding up the others.", maxConcurrentMigrations))
	fs.DurationVar(&o.Turn, "migration-turn", o.Turn,
		"How long a migration may run while others wait for a slot of --concurrent-migrations. Then it gives up its slot, "+
			"and continues later where it stopped, so that small migrations do not wait for the end of big ones. "+
			"At least 1s; zero means no limit.")
	fs.IntVar(&o.Pace.MaxConcurrent, "max-concurrent-rewrites", o.Pace.MaxConcurrent,
		"How many objects all migrations together rewrite at a time at most. "+
			"They rewrite one at a time with pauses while other clients use the API server, and more while nobody else does.")
	fs.Float64Var(&o.Pace.MaxPerSecond, "max-rewrites-per-second", o.Pace.MaxPerSecond,
		"How many objects all migrations together rewrite in a second at most. "+
			"Zero means no limit: migrations still give way to other clients of the API server.")
	fs.BoolVar(&o.Pace.Unpaced, "unpaced-rewrites", o.Pace.Unpaced,
		"If true, migrations rewrite --max-concurrent-rewrites objects at a time, however slow the API server gets, "+
			"and other clients will feel that. The migrations still obey --max-rewrites-per-second, 429 and Retry-After.")
	fs.Int64Var(&o.ChunkSize, "migration-chunk-size", o.ChunkSize,
		"How many objects the migrator lists at a time. It saves its progress after such a chunk, at most twice a second. "+
			"After a crash it repeats what came after that.")
	fs.Var(&o.storageGrowth, "max-storage-growth",
		"By how many bytes rewrites may enlarge the database file of etcd, for example 128Mi, before migrations pause "+
			"until etcd is compacted. After each pause the file may grow by another sixteenth of this value, until it has "+
			"grown by twice this value. From then on migrations reuse only the space that compactions free. Zero means no "+
			"limit.")
	fs.DurationVar(&o.FinishedTTL, "finished-migration-ttl", o.FinishedTTL,
		"How long the migrator keeps a StorageVersionMigration that has ended. Zero keeps all of them forever.")
}

// Validate implements options.ControllerOptions.
func (o *migratorOptions) Validate() []error {
	errs := append(o.ValidateFlags("migration-chunk-size", o.storageGrowth.Quantity),
		svmigrator.ValidateAtMost("concurrent-migrations", maxConcurrentMigrations, int64(o.ConcurrentMigrations)))
	if o.Turn != 0 && o.Turn < minTurn {
		errs = append(errs, fmt.Errorf("--migration-turn must be at least %v, or zero for no limit, got %v", minTurn, o.Turn))
	}
	if o.FinishedTTL < 0 {
		errs = append(errs, fmt.Errorf("--finished-migration-ttl must not be negative, got %v; "+
			"zero keeps migrations for ever", o.FinishedTTL))
	}
	return errs
}
