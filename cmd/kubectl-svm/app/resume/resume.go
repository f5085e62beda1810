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

// Package resume is the command that takes back what pause and suspend did.
package resume

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

const (
	long = `Let resources and migrations go on. For a resource, it takes back the pause, and the suspension of its
migrations. For a migration, it takes back the suspension.`
	example = `  # After kubectl svm pause, or kubectl svm suspend
  kubectl svm resume widgets.example.com

  # One migration only
  kubectl svm resume widgets-x7k2p`
)

// Options are what the command needs.
type Options struct{ cli.NamedOptions }

// NewCommand returns the command.
func NewCommand(env *cli.Env) *cobra.Command {
	o := &Options{cli.NamedOptions{Env: env}}
	return &cobra.Command{
		Use:               "resume RESOURCE|MIGRATION...",
		Short:             "Let paused resources and suspended migrations go on",
		Long:              long,
		Example:           example,
		ValidArgsFunction: cli.CompleteMigrations(env, suspended),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.Execute(cmd, args, o)
		},
	}
}

func suspended(m *migrationv1alpha1.StorageVersionMigration) bool {
	return m.Spec.Suspend && !m.Finished()
}

// Run takes back pauses and suspensions.
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
		changed := false
		if cluster.Named(name) == nil {
			if changed, err = o.unpause(ctx, cluster, name); err != nil {
				return err
			}
		}
		for _, m := range migrations {
			if !suspended(&m) {
				continue
			}
			if err := o.Clients.SetSuspend(ctx, m.Name, false); err != nil {
				return err
			}
			changed = true
			fmt.Fprintf(o.Out, "storageversionmigration.migration.k8s.io/%s resumed\n", m.Name)
		}
		if !changed {
			fmt.Fprintf(o.ErrOut, "%s: nothing is paused or suspended.\n", name)
		}
	}
	return nil
}

// unpause takes back the pauses of the resources, by the field and by the annotation.
func (o *Options) unpause(ctx context.Context, cluster *cli.Cluster, name string) (changed bool, err error) {
	resources, err := cluster.Catalog.Resolve([]string{name})
	if err != nil {
		return false, err
	}
	for _, resource := range resources {
		state := cluster.State(resource)
		if state == nil {
			continue
		}
		_, annotated := state.Annotations[migrationv1alpha1.PausedAnnotation]
		if !state.Spec.Paused && !annotated {
			continue
		}
		patch := cli.Object{"spec": cli.Object{"paused": false}}
		if annotated {
			patch["metadata"] = cli.Object{"annotations": cli.Object{migrationv1alpha1.PausedAnnotation: nil}}
		}
		if err := o.Clients.PatchState(ctx, resource, patch); err != nil {
			return changed, err
		}
		changed = true
		fmt.Fprintf(o.Out, "storagestate.migration.k8s.io/%s resumed\n", state.Name)
	}
	return changed, nil
}
