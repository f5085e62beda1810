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
	"k8s.io/component-base/featuregate"
	"k8s.io/utils/clock"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmtrigger"
	"sigs.k8s.io/svm-controller-manager/pkg/definition"
	"sigs.k8s.io/svm-controller-manager/pkg/features"
)

// migrationAPI is what the trigger and the migrator need.
var migrationAPI = []Need{{Resource: definition.States}, {Resource: definition.Migrations}}

func newStorageVersionMigrationTriggerDescriptor() ControllerDescriptor {
	flags := &migrationTriggerOptions{AutoMigrate: []string{"*"}}
	return ControllerDescriptor{
		Name:         names.StorageVersionMigrationTriggerController,
		Aliases:      []string{"svmtrigger"},
		FeatureGates: []featuregate.Feature{features.StorageVersionMigrationTrigger},
		Needs:        migrationAPI,
		Observes:     true,
		Options:      flags,
		New: func(ctx context.Context, c ControllerContext) (Controller, error) {
			autoMigrate, _ := svmtrigger.ParseSelection(flags.AutoMigrate) // It is valid.
			options := svmtrigger.Options{AutoMigrate: autoMigrate, Periods: svmtrigger.DefaultPeriods()}
			options.CleanManagedFields = features.DefaultFeatureGate.Enabled(features.CRDManagedFieldsCleaning)
			options.Periods.Soak = flags.SoakPeriod
			options.Periods.Settle = c.Observation.SettlePeriod
			options.Periods.Poll = c.Observation.PollInterval
			return svmtrigger.New(ctx, c.MigrationClient, c.MigrationInformers.Migration().V1alpha1(), c.Observer, c.Events,
				options, clock.RealClock{})
		},
	}
}

// maxSoakPeriod is a year, as for spec.soakSeconds.
const maxSoakPeriod = 365 * 24 * time.Hour

// migrationTriggerOptions are the flags of the trigger.
type migrationTriggerOptions struct {
	AutoMigrate []string
	// SoakPeriod is how long the servers must have written an encoding before a migration to it is created.
	SoakPeriod time.Duration
}

// AddFlags implements options.ControllerOptions.
func (o *migrationTriggerOptions) AddFlags(fs *pflag.FlagSet) {
	fs.StringSliceVar(&o.AutoMigrate, "auto-migrate", o.AutoMigrate,
		"A list of the resources for which the trigger creates migrations. '*' is all resources, 'secrets' and "+
			"'deployments.apps' are single resources, '*.example.com' is all resources of the group example.com, and a "+
			"leading '-' excludes. The most specific item applies, in whatever order. With '-*' the trigger only observes.")
	fs.DurationVar(&o.SoakPeriod, "soak-period", o.SoakPeriod,
		"How long the servers must have written an encoding before the trigger creates a migration to it. An upgrade, or a "+
			"change of a storage version, can be rolled back during this time without a second migration. After an "+
			"installation, all resources wait this long. spec.soakSeconds of a StorageState overrides it for one resource. "+
			"At most a year.")
}

// Validate implements options.ControllerOptions.
func (o *migrationTriggerOptions) Validate() []error {
	var errs []error
	_, wrong := svmtrigger.ParseSelection(o.AutoMigrate)
	for _, err := range wrong {
		errs = append(errs, fmt.Errorf("--auto-migrate: %w", err))
	}
	if o.SoakPeriod < 0 || o.SoakPeriod > maxSoakPeriod {
		errs = append(errs, fmt.Errorf("--soak-period must be from 0s to %v, got %v; to migrate nothing write "+
			"--auto-migrate=-*", maxSoakPeriod, o.SoakPeriod))
	}
	return errs
}
