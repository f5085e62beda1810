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

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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

// checkEmptyFlags returns an error if another flag of the verb has an empty value, for example that of a variable that
// is not set. Without it the verb would answer another question than it was asked, and may answer yes.
func checkEmptyFlags(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		empty := f.Value.String() == ""
		if list, is := f.Value.(pflag.SliceValue); is {
			empty = len(list.GetSlice()) == 0 || slices.Contains(list.GetSlice(), "")
		}
		if empty && !slices.Contains(mayBeEmpty, f.Name) && cmd.InheritedFlags().Lookup(f.Name) == nil {
			err = fmt.Errorf("--%s is empty: give it a value, or leave it out", f.Name)
		}
	})
	return err
}
