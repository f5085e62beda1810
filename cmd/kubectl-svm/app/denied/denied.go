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

// Package denied is the command that names the objects that the API server refuses to rewrite.
package denied

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
)

const (
	long = `List the objects that the API server refuses to rewrite: who refuses each, why, and what to do.
They stay stored in the old version. Name migrations or resources; without arguments the command lists all.
The command also names each resource whose newest migration failed for another reason.

Exit codes: 0 no object is denied, 1 error, 2 objects are denied or a migration failed.`
	example = `  # All denied objects
  kubectl svm denied

  # Those of one resource, each with the API server's answer
  kubectl svm denied widgets.example.com -o wide`
)

// Options are what the command needs.
type Options struct {
	cli.NamedOptions
}

// Answer is what -o json prints.
type Answer struct {
	// Server is the address of the API server that was asked.
	Server string   `json:"server,omitempty"`
	Items  []Denied `json:"items"`
}

// Denied is about one migration.
type Denied struct {
	Migration string `json:"migration"`
	Resource  string `json:"resource"`
	// Total is how many objects are denied. Objects has at most 100.
	Total   int64    `json:"total"`
	Objects []Object `json:"objects"`
	// Failure is why the migration failed, if no object is denied.
	Failure string `json:"failure,omitempty"`

	gone bool // Nothing of the resource is left.
}

// Object is one denied object.
type Object struct {
	migrationv1alpha1.DeniedObject `json:",inline"`
	// RefusedBy is who refuses it, and Remedy what to do.
	RefusedBy string `json:"refusedBy"`
	Remedy    string `json:"remedy"`
}

// NewCommand returns the command.
func NewCommand(env *cli.Env) *cobra.Command {
	o := &Options{NamedOptions: cli.NamedOptions{Env: env}}
	cmd := cli.Command(env, o, &cobra.Command{
		Use:     "denied [MIGRATION|RESOURCE...]",
		Short:   "List objects that the API server refuses to rewrite, and what to do",
		Long:    long,
		Example: example,
		ValidArgsFunction: cli.CompleteMigrations(env, func(m *migrationv1alpha1.StorageVersionMigration) bool {
			return deniedCount(m) > 0
		}, nil),
	})
	o.Output.AddTo(cmd, cli.Wide, cli.JSON, cli.YAML)
	return cmd
}

// Run prints the objects.
func (o *Options) Run(ctx context.Context) error {
	cluster, err := o.Clients.Read(ctx)
	if err != nil {
		return err
	}
	migrations, err := o.selected(cluster)
	if err != nil {
		return err
	}
	all := make([]Denied, 0, len(migrations))
	for i := range migrations {
		denied := newDenied(&migrations[i])
		denied.gone = cluster.Catalog.Gone(migrations[i].GroupResource())
		all = append(all, denied)
	}
	if o.Output.Structured() {
		o.Output.PrintAnswer(o.Env, Answer{Server: o.Server(), Items: all})
	} else {
		o.print(all)
	}
	if len(all) > 0 {
		return cli.NotSafe()
	}
	return nil
}

// selected returns the migrations with denied objects that a person means, and those that failed for another reason.
func (o *Options) selected(cluster *cli.Cluster) ([]migrationv1alpha1.StorageVersionMigration, error) {
	names := o.Names
	if len(names) == 0 {
		names = []string{cli.All}
	}
	var selected []migrationv1alpha1.StorageVersionMigration
	for _, name := range names {
		migrations, err := cluster.ResolveMigrations(name)
		if err != nil {
			return nil, err
		}
		selected = append(selected, newestFailed(migrations)...)
	}
	known := sets.New[string]()
	return slices.DeleteFunc(selected, func(m migrationv1alpha1.StorageVersionMigration) bool {
		repeated := known.Has(m.Name)
		known.Insert(m.Name)
		return repeated
	}), nil
}

// newestFailed returns the newest migration of each resource that denied objects, unless a newer one has succeeded. If
// none did, it returns the newest migration of the resource if that has failed. The migrations of a resource are the
// newest first.
func newestFailed(
	migrations []migrationv1alpha1.StorageVersionMigration,
) (newest []migrationv1alpha1.StorageVersionMigration) {
	seen, known := sets.New[schema.GroupResource](), sets.New[schema.GroupResource]()
	failed := map[schema.GroupResource]int{} // where in newest
	for i := range migrations {
		m, denied := &migrations[i], deniedCount(&migrations[i]) > 0
		resource := m.GroupResource()
		at, failedLater := failed[resource]
		switch {
		case known.Has(resource):
		case denied && failedLater:
			newest[at] = *m
		case denied:
			newest = append(newest, *m)
		case m.IsConditionTrue(migrationv1alpha1.MigrationFailed) && !seen.Has(resource):
			failed[resource] = len(newest)
			newest = append(newest, *m)
		}
		seen.Insert(resource)
		if denied || m.IsConditionTrue(migrationv1alpha1.MigrationSucceeded) {
			known.Insert(resource)
		}
	}
	return newest
}

func deniedCount(m *migrationv1alpha1.StorageVersionMigration) int64 {
	count := int64(len(m.Status.DeniedObjects))
	if m.Status.Progress != nil {
		count = max(count, m.Status.Progress.Denied)
	}
	return count
}

func newDenied(m *migrationv1alpha1.StorageVersionMigration) Denied {
	d := Denied{
		Migration: m.Name, Resource: m.GroupResource().String(), Total: deniedCount(m), Objects: []Object{},
	}
	for _, object := range m.Status.DeniedObjects {
		who, remedy := refusal(object)
		d.Objects = append(d.Objects, Object{DeniedObject: object, RefusedBy: who, Remedy: remedy})
	}
	if d.Total == 0 {
		ended := cli.CurrentCondition(m)
		d.Failure = ended.Reason + ": " + ended.Message
	}
	return d
}

func (o *Options) print(all []Denied) {
	var denied, failed []Denied
	for _, d := range all {
		if d.Failure == "" {
			denied = append(denied, d)
		} else {
			failed = append(failed, d)
		}
	}
	if len(denied) == 0 {
		fmt.Fprintln(o.Out, "No objects are denied.")
	} else {
		o.printDenied(denied)
	}
	for _, d := range failed {
		fmt.Fprintf(o.Out, "The migration %s of %s failed, %s\n", d.Migration, d.Resource, o.Paint(cli.Plain, d.Failure))
	}
}

func (o *Options) printDenied(all []Denied) {
	columns := []cli.Column{
		{Name: "Resource"}, {Name: "Namespace"}, {Name: "Name"}, {Name: "Refused by"}, {Name: "Reason"},
		{Name: "Message", Wide: true},
	}
	var rows []cli.Row
	var refusals, gone []string
	var retries []*assess.Resource
	first := map[string]Object{} // by refusal
	named := sets.New[string]()
	for _, d := range all {
		for _, object := range d.Objects {
			rows = append(rows, cli.Row{Cells: []any{
				d.Resource, object.Namespace, object.Name, object.RefusedBy, string(object.Reason), object.Message,
			}})
			refusal := object.RefusedBy + ": " + object.Remedy
			if _, known := first[refusal]; !known {
				first[refusal], refusals = object, append(refusals, refusal)
			}
		}
		switch {
		case named.Has(d.Resource): // A person named several of its migrations.
		case d.gone:
			gone = append(gone, "nothing: the API server does not serve "+d.Resource+" any more")
		default:
			retries = append(retries, assess.Retry(schema.ParseGroupResource(d.Resource)))
		}
		named.Insert(d.Resource)
	}
	o.Output.PrintTable(o.Env, columns, rows)
	for _, d := range all {
		if more := d.Total - int64(len(d.Objects)); more > 0 {
			fmt.Fprintf(o.Out, "... and %d more of %s. A migration names at most %d: if these are repaired, the next one names "+
				"others.\n", more, d.Resource, migrationv1alpha1.MaxDeniedObjects)
		}
	}
	fmt.Fprintln(o.Out, "\nWhat to do:")
	slices.Sort(refusals)
	for _, refusal := range refusals {
		object := first[refusal]
		answer := fmt.Sprintf("The answer for %s: %s", cache.NewObjectName(object.Namespace, object.Name), object.Message)
		// Its author may be a tenant, so it must not look like lines of this command.
		answer = strings.Join(strings.Fields(answer), " ")
		fmt.Fprintln(o.Out, o.Paint(cli.Plain, "  "+refusal+"\n    "+answer))
	}
	fmt.Fprintln(o.Out, "Then:")
	for _, then := range append(assess.Commands(retries, nil), gone...) {
		fmt.Fprintln(o.Out, o.Paint(cli.Plain, "  "+then))
	}
}
