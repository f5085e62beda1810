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

// Package migrate is the command that creates migrations.
package migrate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

const (
	long = `Create a migration of each resource: the migrator rewrites all objects in the version that the servers write.

A migration that you create does not wait for a soak period, and runs even if the resource is paused or excluded by
--auto-migrate. Create one also after you made a new encryption key the first one on all API servers.

If you ask for all resources or for a group, and the API server cannot list all of these, for example because an
aggregated API server does not answer, the command creates nothing. --allow-incomplete leaves these resources out.
With --builtin alone this does not matter.

With --wait, -o json prints the migrations when they have ended, or when the command stops waiting.

Exit codes: 0 created (with --wait: all succeeded), 1 error, 2 a migration failed, 3 timeout of --wait.`
	example = `  # Migrate two resources
  kubectl svm migrate widgets.example.com secrets

  # Show what would be created
  kubectl svm migrate secrets --dry-run=client -o yaml

  # Migrate everything that the default roles of the manager allow
  kubectl svm migrate --all --except='*.admissionregistration.k8s.io'

  # Migrate all custom resources, and wait for an hour at most
  kubectl svm migrate --all --custom --wait --timeout=1h`

	dryRunClient, dryRunServer = "client", "server"
)

// Options are what the command needs.
type Options struct {
	cli.NamedOptions
	// Everything selects all resources, or those of the classes.
	Everything                  bool
	BuiltIn, Custom, Aggregated bool
	// Except names resources that are left out of everything.
	Except       []string
	DryRun       string
	Wait         bool
	Timeout      time.Duration
	ManagerLease cli.ManagerLease
}

// NewCommand returns the command.
func NewCommand(env *cli.Env) *cobra.Command {
	o := &Options{NamedOptions: cli.NamedOptions{Env: env}}
	cmd := cli.Command(env, o, &cobra.Command{
		Use:               "migrate RESOURCE... | --all [--builtin] [--custom] [--aggregated] [--except=RESOURCE,...]",
		Short:             "Migrate resources now",
		Long:              long,
		Example:           example,
		ValidArgsFunction: cli.CompleteResources(env),
	})
	flags := cmd.Flags()
	flags.BoolVar(&o.Everything, "all", false,
		"Migrate every resource that is stored, except the events of Kubernetes, which expire.")
	flags.BoolVar(&o.BuiltIn, "builtin", false, "With --all: built-in resources only.")
	flags.BoolVar(&o.Custom, "custom", false, "With --all: resources of CustomResourceDefinitions only.")
	flags.BoolVar(&o.Aggregated, "aggregated", false, "With --all: resources of aggregated API servers only.")
	flags.StringSliceVar(&o.Except, "except", nil, "With --all: resources to leave out.")
	o.AddAllowIncomplete(flags)
	flags.StringVar(&o.DryRun, "dry-run", "",
		"client prints what would be created; server also lets the API server validate it.")
	_ = cmd.RegisterFlagCompletionFunc("dry-run",
		cobra.FixedCompletions([]string{dryRunClient, dryRunServer}, cobra.ShellCompDirectiveNoFileComp))
	flags.BoolVar(&o.Wait, "wait", false, "Wait until the migrations have ended, and show their progress.")
	flags.DurationVar(&o.Timeout, "timeout", 0,
		"How long --wait may take before it exits with code 3. Zero means no limit.")
	o.ManagerLease.AddTo(flags)
	o.Output.AddTo(cmd, cli.JSON, cli.YAML, cli.Name)
	return cmd
}

// Complete fills the options from the arguments.
func (o *Options) Complete(args []string) error {
	names := slices.DeleteFunc(args, cli.IsAll)
	o.Everything = o.Everything || len(names) < len(args)
	return o.NamedOptions.Complete(names)
}

// Validate checks the options before any request is sent.
func (o *Options) Validate() error {
	classes := o.BuiltIn || o.Custom || o.Aggregated
	switch {
	case classes && !o.Everything:
		return errors.New("--builtin, --custom and --aggregated need --all: they narrow it down")
	case len(o.Except) > 0 && !o.Everything:
		return errors.New("--except needs --all: it narrows it down")
	case o.Everything && len(o.Names) > 0:
		return errors.New("name the resources to migrate, or use --all, not both")
	case !o.Everything && len(o.Names) == 0:
		return errors.New("name the resources to migrate, or use --all")
	case o.DryRun != "" && o.DryRun != dryRunClient && o.DryRun != dryRunServer:
		return fmt.Errorf("--dry-run=%s is not known: use client or server", o.DryRun)
	case o.Wait && o.DryRun != "":
		return errors.New("--wait and --dry-run exclude each other: a dry run creates nothing to wait for")
	case o.Timeout != 0 && !o.Wait:
		return errors.New("--timeout needs --wait: without it the command does not wait")
	case o.Timeout < 0:
		return errors.New("--timeout must not be negative")
	}
	return o.Output.Validate()
}

// Run creates the migrations.
func (o *Options) Run(ctx context.Context) error { return cli.Within(ctx, o.Timeout, o.run) }

func (o *Options) run(ctx context.Context) error {
	cluster, err := o.Clients.Read(ctx)
	if err != nil {
		return err
	}
	if err := o.checkComplete(cluster.Catalog); err != nil {
		return err
	}
	resources, err := o.selected(ctx, cluster)
	if err != nil {
		return err
	}
	if len(resources) == 0 {
		return errors.New("no resource matches: nothing was created")
	}
	o.warn(ctx, cluster, resources)
	return o.migrate(ctx, cluster, resources)
}

// migrate creates the migrations, and waits for those that it created if the person wants that.
func (o *Options) migrate(ctx context.Context, cluster *cli.Cluster, resources []schema.GroupResource) (err error) {
	created, failed := o.createAll(ctx, resources)
	if len(created) == 0 {
		return failed
	}
	if failed != nil && len(created) < len(resources) { // The error at the end may come an hour later.
		o.Notef("Warning: %v", failed)
		failed = fmt.Errorf("%d of %d migrations were not created", len(resources)-len(created), len(resources))
	}
	if o.Wait {
		err = o.wait(ctx, cluster, created) // It puts into the list what it has seen last.
	}
	if o.Output.Structured() {
		o.Output.PrintData(o.Env, cli.ListOf(created))
	}
	if !o.Wait && o.DryRun == "" {
		o.Notef("To follow them: %s history. To wait for the end, use --wait", cli.SVM)
	}
	return cmp.Or(failed, err)
}

// createAll creates a migration of each resource. After an error it goes on with the next one.
func (o *Options) createAll(
	ctx context.Context, resources []schema.GroupResource,
) (created []migrationv1alpha1.StorageVersionMigration, _ error) {
	var errs []error
	for _, resource := range resources {
		migration, err := o.create(ctx, resource)
		if err == nil {
			created = append(created, *migration)
			if err := o.print(migration); err != nil {
				return created, err // Nobody would see the next one.
			}
		} else if errs = append(errs, err); ctx.Err() != nil {
			break
		}
	}
	return created, errors.Join(errs...)
}

func (o *Options) create(
	ctx context.Context, resource schema.GroupResource,
) (*migrationv1alpha1.StorageVersionMigration, error) {
	switch o.DryRun {
	case dryRunClient:
		return cli.WithKind(cli.NewMigration(resource)), nil
	case dryRunServer:
		return o.Clients.CreateMigration(ctx, resource, metav1.DryRunAll)
	default:
		return o.Clients.CreateMigration(ctx, resource)
	}
}

// print prints one migration. Output as JSON or YAML is printed at the end, for all migrations together.
func (o *Options) print(m *migrationv1alpha1.StorageVersionMigration) error {
	operation := ""
	switch {
	case o.Output.Structured():
		return nil
	case o.Output.Format == cli.Name:
	case o.DryRun != "":
		operation = " created (" + o.DryRun + " dry run)"
	default:
		operation = " created"
	}
	name := cmp.Or(m.Name, m.GenerateName+"*")
	_, err := fmt.Fprintf(o.Out, "storageversionmigration.migration.k8s.io/%s%s\n", name, operation)
	return err
}
