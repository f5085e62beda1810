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

// Package retry is the command that asks for another attempt after a failed migration.
package retry

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

const (
	long = `Try the failed migrations of resources again at once. The trigger creates another migration of each, whatever
status.backoff of its StorageState says. Repair the cause first: "kubectl svm denied" names the objects that were
refused, "kubectl svm history -o wide" says why migrations failed.`
	example = `  # The webhook is repaired: try again
  kubectl svm retry widgets.example.com`
)

// Options are what the command needs.
type Options struct{ cli.NamedOptions }

// NewCommand returns the command.
func NewCommand(env *cli.Env) *cobra.Command {
	o := &Options{cli.NamedOptions{Env: env}}
	return &cobra.Command{
		Use:               "retry RESOURCE...",
		Short:             "Try failed migrations again at once",
		Long:              long,
		Example:           example,
		ValidArgsFunction: cli.CompleteResources(env),
		RunE: func(cmd *cobra.Command, args []string) error {
			return cli.Execute(cmd, args, o)
		},
	}
}

// Run sets a new retry token where a migration has failed.
func (o *Options) Run(ctx context.Context) error {
	cluster, err := o.Clients.Read(ctx)
	if err != nil {
		return err
	}
	states, err := cluster.StatesOf(o.Names)
	if err != nil {
		return err
	}
	retried := false
	for _, state := range states {
		if state.Status.Backoff == nil {
			fmt.Fprintf(o.ErrOut, "%s: no migration of the trigger has failed, so there is nothing to retry. "+
				"To migrate it anyway: kubectl svm migrate %s\n", state.Name, state.Name)
			continue
		}
		token := o.Clock.Now().UTC().Format(time.RFC3339Nano)
		patch := cli.Object{"spec": cli.Object{"retryToken": token}}
		if err := o.Clients.PatchState(ctx, state.GroupResource(), patch); err != nil {
			return err
		}
		retried = true
		if assess.Paused(state) {
			fmt.Fprintf(o.ErrOut, "%s is paused, so nothing starts: kubectl svm resume %s\n", state.Name, state.Name)
		}
		fmt.Fprintf(o.Out, "storagestate.migration.k8s.io/%s retried\n", state.Name)
	}
	if retried {
		fmt.Fprintln(o.ErrOut, "To follow it: kubectl svm status --watch")
	}
	return nil
}
