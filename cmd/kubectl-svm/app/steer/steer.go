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

// Package steer has the commands that change what the trigger and the migrator do by themselves: retry, pause, resume
// and suspend.
package steer

import (
	"context"

	"github.com/spf13/cobra"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

// verb is one of the commands.
type verb struct {
	use, short, long, example string
	complete                  func(*cli.Env) cobra.CompletionFunc
	run                       func(*options, context.Context, *cli.Cluster) error
}

// NewCommands returns the commands.
func NewCommands(env *cli.Env) []*cobra.Command {
	var commands []*cobra.Command
	for _, v := range []verb{retry, pause, resume, suspend} {
		commands = append(commands, cli.Command(env, &options{cli.NamedOptions{Env: env}, v.run}, &cobra.Command{
			Use: v.use, Short: v.short, Long: v.long, Example: v.example, ValidArgsFunction: v.complete(env),
		}))
	}
	return commands
}

// options are what a command needs.
type options struct {
	cli.NamedOptions
	run func(*options, context.Context, *cli.Cluster) error
}

// Validate checks the options before any request is sent.
func (o *options) Validate() error { return o.RequireNames() }

// Run reads the cluster, and does what the verb says.
func (o *options) Run(ctx context.Context) error {
	cluster, err := o.Clients.Read(ctx)
	if err != nil {
		return err
	}
	return o.run(o, ctx, cluster)
}
