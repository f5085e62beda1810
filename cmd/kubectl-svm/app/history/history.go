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

// Package history is the command that lists migrations.
package history

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

const (
	long = `List all migrations, the newest first. The migrator deletes a migration some time after it has ended
(--finished-migration-ttl, 72 hours by default).`
	example = `  # All migrations
  kubectl svm history

  # Those of one resource, with their messages
  kubectl svm history widgets.example.com -o wide`
)

// Options are what the command needs.
type Options struct {
	cli.NamedOptions
}

// NewCommand returns the command.
func NewCommand(env *cli.Env) *cobra.Command {
	o := &Options{NamedOptions: cli.NamedOptions{Env: env}}
	cmd := cli.Command(env, o, &cobra.Command{
		Use:               "history [RESOURCE...]",
		Short:             "List migrations, also those that have ended",
		Long:              long,
		Example:           example,
		ValidArgsFunction: cli.CompleteResources(env),
	})
	o.Output.AddTo(cmd)
	return cmd
}

// Run prints the migrations.
func (o *Options) Run(ctx context.Context) error {
	cluster, err := o.Clients.Read(ctx)
	if err != nil {
		return err
	}
	resources, err := cluster.Catalog.Resolve(o.Names)
	if err != nil {
		return err
	}
	migrations := slices.DeleteFunc(cluster.Migrations, func(m migrationv1alpha1.StorageVersionMigration) bool {
		return !o.WantsAll() && !slices.Contains(resources, m.GroupResource())
	})
	cli.NewestFirst(migrations)
	o.print(migrations)
	return nil
}

func (o *Options) print(migrations []migrationv1alpha1.StorageVersionMigration) {
	switch {
	case o.Output.Structured():
		o.Output.PrintData(o.Env, cli.ListOf(migrations))
		return
	case o.Output.Format == cli.Name:
		for i := range migrations {
			fmt.Fprintf(o.Out, "storageversionmigration.migration.k8s.io/%s\n", migrations[i].Name)
		}
		return
	case len(migrations) == 0:
		fmt.Fprintln(o.ErrOut, "No migrations found.")
		return
	}
	columns := []cli.Column{
		{Name: "Name"}, {Name: "Resource"}, {Name: "To"}, {Name: "State"}, {Name: "Reason"}, {Name: "Objects"},
		{Name: "Denied"}, {Name: "Took"}, {Name: "Age"}, {Name: "By", Wide: true}, {Name: "Message", Wide: true},
	}
	var rows []cli.Row
	for i := range migrations {
		rows = append(rows, o.row(&migrations[i]))
	}
	o.Output.PrintTable(o.Env, columns, rows)
	if o.Output.Format == cli.Wide {
		return // The table has the messages.
	}
	for i := range migrations {
		if state := cli.CurrentCondition(&migrations[i]); cli.Failing(state) {
			fmt.Fprintf(o.Out, "\n%s: %s\n", migrations[i].Name, o.Paint(cli.Plain, state.Message))
		}
	}
}

func (o *Options) row(m *migrationv1alpha1.StorageVersionMigration) cli.Row {
	state, colour := cli.CurrentCondition(m), cli.Plain
	switch state.Type {
	case migrationv1alpha1.MigrationFailed:
		colour = cli.Red
	case migrationv1alpha1.MigrationRunning, migrationv1alpha1.MigrationWaiting, cli.Pending, cli.Deleting:
		colour = cli.Yellow
	}
	by, target, objects, denied := "a person", "", "", ""
	if m.HasEpoch() {
		by = "the trigger"
	}
	if m.Status.Target != nil {
		target = m.Status.Target.EncodingVersion
	}
	if p := m.Status.Progress; p != nil {
		objects, denied = strconv.FormatInt(p.Processed, 10), strconv.FormatInt(p.Denied, 10)
	}
	now := o.Clock.Now()
	return cli.Row{Colour: colour, Cells: []any{
		m.Name, m.GroupResource().String(), target, string(state.Type), state.Reason, objects, denied, elapsed(m, now),
		cli.Ago(now, m.CreationTimestamp.Time), by, state.Message,
	}}
}

// elapsed returns the time from the start of a migration to its end, or until now.
func elapsed(m *migrationv1alpha1.StorageVersionMigration, now time.Time) string {
	if !m.Begun() {
		return ""
	}
	if m.Status.CompletionTime != nil {
		now = m.Status.CompletionTime.Time
	}
	return duration.HumanDuration(max(0, now.Sub(m.Status.StartTime.Time)))
}
