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

// Package status is the command that answers whether it is safe to upgrade.
package status

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

const (
	long = `Show whether it is safe to upgrade and to remove old versions, as far as stored objects are concerned.

For each resource that is not safe, the command shows in which versions objects may be stored, which version the servers
write, whether all servers agree, how far its migration is, and what happens next. Resources that need your action come
first. Name resources, or "all", to see those that are safe as well. Before an upgrade ask about all: about some alone
the command says only whether it is safe to remove old versions.

The command compares each StorageState with the CustomResourceDefinition of the resource, if you may list these, because
the trigger may not have seen the latest change yet. A resource can be safe although its newest migration failed, for
example one for a new encryption key. The command prints that too.

It is not safe to upgrade if the next minor release of Kubernetes cannot read what the API servers write of a built-in
resource. If the plugin does not know that release, it says so, and the exit code is 0 all the same: programs look at
nextRelease of -o json. There the field "answer" is safe, notSafe, or notKnown. For other releases run "kubectl svm
preflight --kubernetes-version".

With --watch the command also ends, with code 0, when nothing is left of the resources that you named, because their
CustomResourceDefinitions were deleted, and their objects with them.

Exit codes: 0 safe, as far as the plugin knows the next release, 1 error, 2 not safe, or not known, 3 timeout of
--watch.`
	example = `  # Is it safe to upgrade, and why not?
  kubectl svm status

  # One resource, by its name or its short name
  kubectl svm status widgets.example.com

  # Wait in a script until it is safe, for an hour at most
  kubectl svm status --watch --timeout=1h

  # Everything, for a program
  kubectl svm status all -o json`
)

// Options are what the command needs.
type Options struct {
	cli.NamedOptions
	Watch        bool
	Timeout      time.Duration
	ManagerLease cli.ManagerLease
}

// NewCommand returns the command.
func NewCommand(env *cli.Env) *cobra.Command {
	o := &Options{NamedOptions: cli.NamedOptions{Env: env}}
	cmd := cli.Command(env, o, &cobra.Command{
		Use:               "status [RESOURCE...]",
		Short:             "Show whether it is safe to upgrade, and what happens next",
		Long:              long,
		Example:           example,
		ValidArgsFunction: cli.CompleteResources(env),
	})
	o.Output.AddTo(cmd)
	cmd.Flags().BoolVarP(&o.Watch, "watch", "w", false,
		"Watch until it is safe, and print each change. A terminal also shows a progress bar.")
	cmd.Flags().DurationVar(&o.Timeout, "timeout", 0,
		"How long --watch may take before it exits with code 3. Zero means no limit.")
	o.ManagerLease.AddTo(cmd.Flags())
	return cmd
}

// Validate checks the options before any request is sent.
func (o *Options) Validate() error {
	switch {
	case o.Timeout != 0 && !o.Watch:
		return errors.New("--timeout needs --watch: without it the command does not wait")
	case o.Timeout < 0:
		return errors.New("--timeout must not be negative")
	case o.Watch && o.Output.Format != "" && o.Output.Format != cli.Wide:
		return errors.New("--watch prints lines for people: leave -o out, or use " + cli.Kubectl + " get storagestates -w")
	}
	return o.Output.Validate()
}

// Run prints whether it is safe. With --watch it continues until it is.
func (o *Options) Run(ctx context.Context) error { return cli.Within(ctx, o.Timeout, o.run) }

func (o *Options) run(ctx context.Context) error {
	cluster, err := o.Clients.Read(ctx)
	if err != nil {
		return err
	}
	resources, err := o.Selected(cluster)
	if err != nil {
		return err
	}
	o.Clients.ReadDefinitions(ctx, cluster)
	report := o.report(ctx, cluster, resources)
	if err := ctx.Err(); err != nil {
		return err // Something may have been left out.
	}
	o.print(report)
	switch {
	case report.Safe:
		return nil
	case o.Watch:
		return o.watch(ctx, cluster, report)
	default:
		return cli.NotSafe()
	}
}

// report concludes from what was read. The lease of the managers is read anew.
func (o *Options) report(ctx context.Context, cluster *cli.Cluster, resources []schema.GroupResource) *Report {
	now := o.Clock.Now()
	manager := assess.FindManager(ctx, o.Env, o.Clients, o.ManagerLease, cluster.States)
	report := newReport(cluster, assess.Resources(cluster, resources, manager, now), manager, o.Unlisted(cluster.Catalog))
	if report.Safe {
		report.askNextRelease(ctx, o.Clients.Discovery)
	}
	if report.Safe && !o.WantsAll() {
		report.aboutSome()
	}
	return report
}
