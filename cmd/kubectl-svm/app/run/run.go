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

// Package run is the command that migrates in this process, without a manager.
package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/uuid"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/pacer"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

const (
	long = `Rewrite all objects of resources in the version that the API servers write now, from this terminal and as the
user of the kubeconfig. It needs no manager and no definitions in the cluster.

The command runs the migrator of svm-controller-manager, with the same checks. But the fence does not hold it, so a rule
may change objects: try --dry-run first.

This machine must reach each API server at its own address, as listed in the EndpointSlices of default/kubernetes: run
the command on a control plane node or in a Pod. It starts when all servers have written one version for
--settle-period. If the managers of the cluster have a longer --settle-period, give that one. The command succeeds only
if the servers write that version until the end; then it prunes status.storedVersions of a CustomResourceDefinition.

If you ask for all resources or for a group, and the API server cannot list all of these, for example because an
aggregated API server does not answer, the command does nothing. --allow-incomplete leaves these resources out.

"all" and groups leave out the events of Kubernetes, which expire. Name them to wait until the old ones are gone.

If a manager runs, use "kubectl svm migrate" instead.

Progress is saved in a file for each resource, after a chunk of objects and at most twice a second. While objects are
denied it is saved less often, at least every six seconds. You can interrupt the command at any time, and continue with
--resume. It repeats the requests since progress was last saved. Resources that are done have no file any more, so name
only the others, which the command lists when it is interrupted. If API servers were restarted meanwhile, or etcd was
restored, the command starts over. The API server does not store an object again if it is already stored in the new
version.

Exit codes: 0 all succeeded, 1 error, 2 a migration failed, 3 timeout. Denied objects are printed.`
	example = `  # Would the API server accept all rewrites? Nothing is stored
  kubectl svm run widgets.example.com --dry-run

  # Rewrite all objects, at most 50 in a second
  kubectl svm run widgets.example.com --max-rewrites-per-second=50

  # Continue after an interruption
  kubectl svm run widgets.example.com --resume`

	currentDir = "."
)

// Options are what the command needs.
type Options struct {
	cli.NamedOptions
	// StateDir is the directory of the files with the progress.
	StateDir      string
	Resume        bool
	DryRun        bool
	BesideManager bool
	ManagerLease  cli.ManagerLease
	Timeout       time.Duration
	Migrator      svmigrator.Options
	growth        resource.QuantityValue
}

// NewCommand returns the command.
func NewCommand(env *cli.Env) *cobra.Command {
	o := &Options{NamedOptions: cli.NamedOptions{Env: env}, StateDir: currentDir, Migrator: svmigrator.Options{
		// One after the other, so that a person can follow.
		ConcurrentMigrations: 1, ChunkSize: svmigrator.DefaultChunkSize,
		Pace: pacer.Options{MaxConcurrent: pacer.DefaultMaxConcurrent}, SettlePeriod: storageversion.DefaultSettlePeriod,
		UseStatus: true, PruneStoredVersions: true, // as the gates of a manager are by default
	}}
	o.growth.Quantity = resource.MustParse(svmigrator.DefaultMaxStorageGrowth)
	cmd := cli.Command(env, o, &cobra.Command{
		Use:               "run RESOURCE...",
		Short:             "Rewrite objects from this terminal, without a manager",
		Long:              long,
		Example:           example,
		ValidArgsFunction: cli.CompleteResources(env),
	})
	o.addFlags(cmd)
	return cmd
}

func (o *Options) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&o.Resume, "resume", o.Resume, "Continue where an interrupted run stopped")
	flags.BoolVar(&o.DryRun, "dry-run", o.DryRun,
		"Send every rewrite as a dry run, and print which objects the API server would refuse. Nothing is stored")
	flags.StringVar(&o.StateDir, "state-dir", o.StateDir, "Directory of the files with the progress")
	flags.BoolVar(&o.BesideManager, "beside-manager", o.BesideManager,
		"Run even if a manager runs. Objects may then be rewritten twice")
	o.ManagerLease.AddTo(flags)
	o.AddAllowIncomplete(flags)
	flags.DurationVar(&o.Timeout, "timeout", o.Timeout,
		"How long to run before the command saves its progress and exits with code 3. Zero means no limit")
	flags.DurationVar(&o.Migrator.SettlePeriod, "settle-period", o.Migrator.SettlePeriod,
		"How long all API servers must have written one version before the start: "+
			"their --request-timeout, plus their --shutdown-delay-duration, plus five seconds")
	flags.Int64Var(&o.Migrator.ChunkSize, "chunk-size", o.Migrator.ChunkSize, "How many objects to list at a time")
	flags.IntVar(&o.Migrator.Pace.MaxConcurrent, "max-concurrent-rewrites", o.Migrator.Pace.MaxConcurrent,
		"How many objects to rewrite at a time at most. The command uses fewer while others use the API server")
	flags.Float64Var(&o.Migrator.Pace.MaxPerSecond, "max-rewrites-per-second", o.Migrator.Pace.MaxPerSecond,
		"How many objects to rewrite per second at most. Zero means no limit")
	flags.BoolVar(&o.Migrator.Pace.Unpaced, "unpaced-rewrites", o.Migrator.Pace.Unpaced,
		"Do not give way to other clients of the API server")
	flags.Var(&o.growth, "max-storage-growth",
		"How many bytes rewrites may add to the database file of etcd before they wait for a compaction. "+
			"Zero means no limit")
}

// Validate checks the options before any request is sent.
func (o *Options) Validate() error {
	if err := o.RequireNames(); err != nil {
		return err
	}
	errs := o.Migrator.ValidateFlags("chunk-size", o.growth.Quantity)
	if o.Timeout < 0 {
		errs = append(errs, fmt.Errorf("--timeout must not be negative, got %v", o.Timeout))
	}
	if o.Migrator.SettlePeriod < 0 {
		errs = append(errs, fmt.Errorf("--settle-period must not be negative, got %v", o.Migrator.SettlePeriod))
	}
	if o.Resume && o.DryRun {
		errs = append(errs, errors.New("--resume and --dry-run exclude each other: a dry run saves no progress"))
	}
	o.Migrator.MaxStorageGrowth = o.growth.Value()
	return utilerrors.NewAggregate(errs)
}

// Run migrates, and says how that ended.
func (o *Options) Run(ctx context.Context) error {
	return cli.Within(ctx, o.Timeout, o.run)
}

func (o *Options) run(ctx context.Context) error {
	catalog, err := cli.Discover(ctx, o.Clients.Discovery)
	if err != nil {
		return err
	}
	if err := o.CheckComplete(catalog); err != nil {
		return err
	}
	if slices.ContainsFunc(o.Names, cli.NamesSeveral) { // Otherwise the requests are not needed.
		o.Clients.MarkUnstored(ctx, &cli.Cluster{Catalog: catalog})
		for _, r := range catalog.Resources() { // Such names leave out events too: the run would wait until they expire.
			if storageversion.Expires(r.GroupResource) {
				catalog.Find(r.GroupResource).Unstored = true
			}
		}
	}
	resources, err := catalog.Resolve(o.Names)
	if err != nil {
		return err
	}
	if o.DryRun {
		return o.dryRun(ctx, resources)
	}
	if err := o.checkManager(ctx); err != nil {
		return err
	}
	if err := o.checkReads(ctx); err != nil {
		return err
	}
	if o.Migrator.SettlePeriod < storageversion.DefaultSettlePeriod {
		o.Notef("Warning: --settle-period is shorter than %v. Unless the API servers have a short --request-timeout, "+
			"objects may be stored in an old version after this run, and nobody notices.", storageversion.DefaultSettlePeriod)
	}
	current, err := o.currentOrigin(ctx)
	if err != nil {
		return err
	}
	migrations, err := o.prepare(resources, current)
	if err != nil {
		return err
	}
	ended, err := o.migrate(ctx, migrations)
	if err != nil {
		_, open := o.printEnded(ended)
		if errors.Is(err, errNotSaved) {
			err = fmt.Errorf("%w. %s", err, toContinue(ended, open))
		}
		return err
	}
	return o.conclude(ctx, ended)
}

// prepare returns the migrations to run: those of files, and new ones.
func (o *Options) prepare(
	resources []schema.GroupResource, current origin,
) ([]*migrationv1alpha1.StorageVersionMigration, error) {
	if info, err := os.Stat(o.StateDir); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("--state-dir=%s is not a directory", o.StateDir)
	}
	var migrations []*migrationv1alpha1.StorageVersionMigration
	for i, gr := range resources {
		kept := files{o.StateDir}
		m, err := kept.load(gr)
		switch {
		case err != nil:
			return nil, err
		case m != nil && !o.Resume:
			return nil, fmt.Errorf("%s has the progress of an earlier run: continue with --resume, or remove the file to "+
				"start over", kept.path(gr))
		case m != nil && !current.continues(m):
			_, _ = fmt.Fprintf(o.ErrOut, "%s: starting over, because API servers were restarted or etcd was restored since "+
				"the last run, or that was of another cluster. Before Kubernetes 1.36 every run starts over. Objects that are "+
				"already stored in the new version are not written again.\n", gr)
			m = nil
		case m == nil && o.Resume:
			_, _ = fmt.Fprintf(o.ErrOut, "%s: nothing was saved in %s, so the migration starts from the beginning.\n",
				gr, o.StateDir)
		}
		if m == nil {
			m = cli.WithKind(cli.NewMigration(gr))
			m.Name, m.GenerateName, m.UID = gr.String(), "", uuid.NewUUID()
			// In the order of their names.
			m.CreationTimestamp = metav1.NewTime(o.Clock.Now().Add(time.Duration(i) * time.Millisecond))
		}
		current.stamp(m)
		migrations = append(migrations, m)
	}
	return migrations, nil
}
