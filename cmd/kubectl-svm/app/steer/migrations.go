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

package steer

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

var suspend = verb{
	use: "suspend MIGRATION|RESOURCE...", short: "Stop migrations, which keep their progress",
	long: `Stop migrations. Name a migration, or a resource to stop all its migrations that have not ended. They keep their
progress: after "kubectl svm resume" they continue where they stopped. The command sets spec.suspend.

While a migration of the trigger is suspended, the trigger creates no other migration of the resource. If API servers
write another encoding in the meantime, another migration takes its place after "kubectl svm resume".`,
	example: `  # Stop what migrates the widgets now
  kubectl svm suspend widgets.example.com

  # Let it continue
  kubectl svm resume widgets.example.com`,
	complete: func(env *cli.Env) cobra.CompletionFunc { return cli.CompleteMigrations(env, stoppable, nil) },
	run:      (*options).suspend,
}

var resume = verb{
	use: "resume RESOURCE|MIGRATION...", short: "Resume paused resources and suspended migrations",
	long: `Resume resources and migrations. For a resource, the command ends its pause and the suspension of its
migrations. For a migration, it ends the suspension.`,
	example: `  # After kubectl svm pause, or kubectl svm suspend
  kubectl svm resume widgets.example.com

  # One migration only
  kubectl svm resume widgets-x7k2p`,
	complete: func(env *cli.Env) cobra.CompletionFunc { return cli.CompleteMigrations(env, suspended, assess.Paused) },
	run:      (*options).resume,
}

func stoppable(m *migrationv1alpha1.StorageVersionMigration) bool {
	return m.Active() && !m.Spec.Suspend
}

func suspended(m *migrationv1alpha1.StorageVersionMigration) bool {
	return m.Active() && m.Spec.Suspend
}

func (o *options) suspend(ctx context.Context, cluster *cli.Cluster) error {
	var errs []error
	for _, name := range o.Names {
		changed, err := o.setSuspend(ctx, cluster, name, true)
		if err == nil && len(changed) == 0 {
			pause := name
			if m := cluster.Migration(name); m != nil {
				pause = m.GroupResource().String()
			}
			err = fmt.Errorf("%s: there is no migration to stop. To keep the trigger from creating one: %s pause %s",
				name, cli.SVM, pause)
		}
		errs = append(errs, err) // Whoever names several wants the others to be stopped.
		for _, migration := range changed {
			o.Notef("To continue it: "+cli.SVM+" resume %s", migration)
		}
	}
	return errors.Join(errs...)
}

func (o *options) resume(ctx context.Context, cluster *cli.Cluster) error {
	var errs []error
	for _, name := range o.Names {
		resources, err := cluster.Catalog.Resolve([]string{name})
		if err != nil && cluster.Migration(name) == nil {
			errs = append(errs, err)
			continue
		}
		unpaused, err := o.unpause(ctx, cluster, resources)
		changed, failed := o.setSuspend(ctx, cluster, name, false)
		errs = append(errs, err, failed) // Whoever names several wants the others to be resumed.
		if err == nil && failed == nil && !unpaused && len(changed) == 0 {
			o.Notef("%s: nothing is paused or suspended.", name)
		}
	}
	return errors.Join(errs...)
}

// setSuspend suspends or resumes the migrations that a person named. It returns the names of those that it changed. It
// goes on after an error.
func (o *options) setSuspend(
	ctx context.Context, cluster *cli.Cluster, name string, suspend bool,
) (changed []string, err error) {
	migrations, err := cluster.ResolveMigrations(name)
	if err != nil {
		return nil, err
	}
	var errs []error
	operation := "resumed"
	if suspend {
		operation = "suspended"
	}
	for _, m := range migrations {
		if !m.Active() || m.Spec.Suspend == suspend {
			continue
		}
		if err := o.Clients.SetSuspend(ctx, m.Name, suspend); err != nil {
			errs = append(errs, err)
			continue
		}
		changed = append(changed, m.Name)
		fmt.Fprintf(o.Out, "storageversionmigration.migration.k8s.io/%s %s\n", m.Name, operation)
	}
	return changed, errors.Join(errs...)
}
