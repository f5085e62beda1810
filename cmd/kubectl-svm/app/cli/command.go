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

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// Options of a verb.
type Options interface {
	// Complete fills the options from the arguments. It sends no request.
	Complete(args []string) error
	// Validate checks the options.
	Validate() error
	// Run does what the verb says.
	Run(ctx context.Context) error
}

// Command lets a command run a verb. It returns the first error of writing to Out, so a verb need not look for one.
func Command(env *Env, o Options, cmd *cobra.Command) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		env.ConnectionFlags = ConnectionFlags(cmd)
		if slices.Contains(args, "") {
			return errors.New("an argument is empty: give it a value, or leave it out")
		}
		if err := checkEmptyFlags(cmd); err != nil {
			return err
		}
		if err := o.Complete(args); err != nil {
			return err
		}
		if err := o.Validate(); err != nil {
			return err
		}
		out := &checkedWriter{Writer: env.Out}
		env.Out = out
		err := o.Run(cmd.Context())
		return cmp.Or(out.err, err)
	}
	return cmd
}

// checkedWriter remembers the first error.
type checkedWriter struct {
	io.Writer
	err error
}

func (w *checkedWriter) Write(text []byte) (int, error) {
	n, err := w.Writer.Write(text)
	w.err = cmp.Or(w.err, err)
	return n, err
}

// mayBeEmpty are flags for which an empty value is one of those that people may mean.
var mayBeEmpty = []string{"manager-lease", "output", "cacert", "cert", "key", "other-server-ca"}

// checkEmptyFlags returns an error if another flag has an empty value, for example that of a variable that is not set.
// Without it the verb would answer another question than it was asked, or about another cluster, because clients ignore
// an empty --context. It may answer yes.
func checkEmptyFlags(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		empty := f.Value.String() == ""
		if list, is := f.Value.(pflag.SliceValue); is {
			empty = len(list.GetSlice()) == 0 || slices.Contains(list.GetSlice(), "")
		}
		if empty && !slices.Contains(mayBeEmpty, f.Name) {
			err = fmt.Errorf("--%s is empty: give it a value, or leave it out", f.Name)
		}
	})
	return err
}

// NamedOptions are the options that most verbs have. Verbs with flags of their own add them, and check them.
type NamedOptions struct {
	*Env
	Clients *Clients
	// Names are what the person named.
	Names []string
	// Output is empty for verbs that print no objects.
	Output Output
	// AllowIncomplete is for verbs that refuse to leave out what the API server could not list.
	AllowIncomplete bool
}

// Server is the address of the API server, so that answers about many clusters can be told apart.
func (o *NamedOptions) Server() string {
	if o.Clients == nil || o.Clients.Config == nil {
		return ""
	}
	return WithoutPassword(o.Clients.Config.Host)
}

// Selected returns the resources that a person named. No name means all.
func (o *NamedOptions) Selected(cluster *Cluster) ([]schema.GroupResource, error) {
	names := o.Names
	if len(names) == 0 {
		names = []string{All}
	}
	return cluster.Catalog.Resolve(names)
}

// WantsAll reports whether the person asked for all resources.
func (o *NamedOptions) WantsAll() bool {
	return len(o.Names) == 0 || slices.ContainsFunc(o.Names, IsAll)
}

// IsAll reports whether a name stands for all resources.
func IsAll(name string) bool { return strings.EqualFold(name, All) }

// NamesSeveral reports whether a name stands for any number of resources.
func NamesSeveral(name string) bool { return IsAll(name) || strings.HasPrefix(name, "*.") }

// Unlisted returns an error if the API server could not list resources that the person asked for: any resource, or
// those of a group whose pattern they named. A resource that they named is known.
func (o *NamedOptions) Unlisted(catalog *Catalog) error {
	failed := (*discovery.ErrGroupDiscoveryFailed)(nil)
	if o.WantsAll() || !errors.As(catalog.Incomplete, &failed) {
		return catalog.Incomplete
	}
	wanted := map[schema.GroupVersion]error{}
	for version, err := range failed.Groups {
		if slices.ContainsFunc(o.Names, func(name string) bool { return strings.EqualFold(name, "*."+version.Group) }) {
			wanted[version] = err
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	return fmt.Errorf("the API server could not list all its resources: %w",
		&discovery.ErrGroupDiscoveryFailed{Groups: wanted})
}

// AddAllowIncomplete adds the flag of verbs that migrate.
func (o *NamedOptions) AddAllowIncomplete(flags *pflag.FlagSet) {
	flags.BoolVar(&o.AllowIncomplete, "allow-incomplete", o.AllowIncomplete,
		"Migrate the others even if the API server could not list all its resources.")
}

// CheckComplete returns an error if resources that the person asked for would be left out, because the API server could
// not list them.
func (o *NamedOptions) CheckComplete(catalog *Catalog) error {
	unlisted := o.Unlisted(catalog)
	switch {
	case unlisted == nil:
		return nil
	case o.AllowIncomplete:
		o.Notef("Warning: some resources are left out, because %v", unlisted)
		return nil
	}
	return fmt.Errorf("nothing was done, because %w\nTo migrate those that it could list, use --allow-incomplete",
		unlisted)
}

// Complete fills the options from the arguments.
func (o *NamedOptions) Complete(args []string) (err error) {
	o.Names = args
	o.Clients, err = o.Connect()
	return err
}

// Validate checks the options before any request is sent.
func (o *NamedOptions) Validate() error { return o.Output.Validate() }

// RequireNames returns an error if the person named nothing.
func (o *NamedOptions) RequireNames() error {
	if len(o.Names) == 0 {
		return errors.New("name at least one resource, as in widgets.example.com; \"" + SVM + " status all\" lists them")
	}
	return nil
}
