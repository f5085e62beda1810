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

// Package suspend is the command that stops migrations, which keep their progress.
package suspend

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

const (
	long = `Stop migrations. Name a migration, or a resource to stop those of it that have not ended. They keep their
progress: "kubectl svm resume" lets them go on where they stopped. It sets spec.suspend.

If the servers write another version by then, the trigger deletes a suspended migration and creates another one. To
prevent that, pause the resource as well.`
	example = `  # Stop what migrates the widgets now
  kubectl svm suspend widgets.example.com

  # Let it go on
  kubectl svm resume widgets.example.com`
)

// Options are what the command needs.
type Options struct{ cli.NamedOptions }

// NewCommand returns the command.
func NewCommand(env *cli.Env) *cobra.Command {
	o := &Options{cli.NamedOptions{Env: env}}
	return &cobra.Command{
		Use:               "suspend MIGRATION|RESOURCE...",
		Short:             "Stop migrations, which keep their progress",
		Long:              long,
		Example:           example,
		ValidArgsFunction: cli.CompleteMigrations(env, stoppable),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.Execute(cmd, args, o)
		},
	}
}

func stoppable(m *migrationv1alpha1.StorageVersionMigration) bool {
	return !m.Finished() && !m.Spec.Suspend
}

// Run suspends the migrations.
func (o *Options) Run(ctx context.Context) error {
	cluster, err := o.Clients.Read(ctx)
	if err != nil {
		return err
	}
	for _, name := range o.Names {
		migrations, err := cluster.MigrationsOf(name)
		if err != nil {
			return err
		}
		suspended := false
		for _, m := range migrations {
			if !stoppable(&m) {
				continue
			}
			if err := o.Clients.SetSuspend(ctx, m.Name, true); err != nil {
				return err
			}
			suspended = true
			fmt.Fprintf(o.Out, "storageversionmigration.migration.k8s.io/%s suspended\n", m.Name)
			fmt.Fprintf(o.ErrOut, "To let it go on: kubectl svm resume %s\n", m.Name)
		}
		if !suspended {
			return fmt.Errorf("%s: there is no migration to stop. To keep the trigger from creating one: kubectl svm pause "+
				"RESOURCE", name)
		}
	}
	return nil
}
