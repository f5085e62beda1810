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

// Package pause is the command that keeps the trigger from creating migrations of resources.
package pause

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

const (
	long = `Keep the trigger from creating migrations of resources. It still observes them. It sets spec.paused of their
StorageStates. A migration that exists goes on: "kubectl svm suspend" stops it.`
	example = `  # Leave the widgets as they are for now
  kubectl svm pause widgets.example.com

  # Let the trigger go on
  kubectl svm resume widgets.example.com`
)

// Options are what the command needs.
type Options struct{ cli.NamedOptions }

// NewCommand returns the command.
func NewCommand(env *cli.Env) *cobra.Command {
	o := &Options{cli.NamedOptions{Env: env}}
	return &cobra.Command{
		Use:               "pause RESOURCE...",
		Short:             "Start no more migrations of resources",
		Long:              long,
		Example:           example,
		ValidArgsFunction: cli.CompleteResources(env),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.Execute(cmd, args, o)
		},
	}
}

// Run pauses the resources.
func (o *Options) Run(ctx context.Context) error {
	cluster, err := o.Clients.Read(ctx)
	if err != nil {
		return err
	}
	states, err := cluster.StatesOf(o.Names)
	if err != nil {
		return err
	}
	for _, state := range states {
		resource := state.GroupResource()
		if err := o.Clients.PatchState(ctx, resource, cli.Object{"spec": cli.Object{"paused": true}}); err != nil {
			return err
		}
		fmt.Fprintf(o.Out, "storagestate.migration.k8s.io/%s paused\n", state.Name)
		for _, m := range cli.Of(resource, cluster.Migrations) {
			if !m.Finished() && !m.Spec.Suspend {
				fmt.Fprintf(o.ErrOut, "The migration %s goes on. To stop it: kubectl svm suspend %s\n", m.Name, m.Name)
			}
		}
	}
	return nil
}
