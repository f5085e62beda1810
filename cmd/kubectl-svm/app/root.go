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

// Package app is the command kubectl-svm. Each folder below it is a verb, except steer, which is four,
// and assess and cli, which have what verbs share.
package app

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/component-base/version"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/denied"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/history"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/migrate"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/plan"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/preflight"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/rbac"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/report"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/run"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/status"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/steer"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/verify"
)

const longDescription = `See and steer what svm-controller-manager does: in which versions objects may be
stored, whether it is safe to upgrade or to remove a version, what is migrated, and what stands in
the way.

Exit codes: 0 safe or done, 1 error, 2 not safe, not known, or objects denied, 3 timeout.`

// NewCommand returns the command with all its verbs.
func NewCommand(streams genericiooptions.IOStreams) *cobra.Command {
	cmd, _ := newCommand(streams)
	return cmd
}

func newCommand(streams genericiooptions.IOStreams) (*cobra.Command, *cli.Env) {
	flags := genericclioptions.NewConfigFlags(true)
	// Nothing that the commands read or write depends on a namespace, and discovery is not cached.
	flags.Namespace, flags.CacheDir = nil, nil
	env := cli.NewEnv(streams, flags)
	cmd := &cobra.Command{
		Use:           "kubectl-svm",
		Short:         "See and steer the migration of stored objects",
		Long:          longDescription,
		Version:       version.Get().String(),
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl svm"},
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		env.ConnectionFlags = cli.ConnectionFlags(cmd)
		return requireVerb(cmd, args)
	}
	cmd.CompletionOptions.HiddenDefaultCmd = true // kubectl completes the arguments of plugins.
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fmt.Errorf("%w\nSee %s --help", err, cmd.CommandPath())
	})
	cmd.SetIn(streams.In)
	cmd.SetOut(streams.Out)
	cmd.SetErr(streams.ErrOut)
	flags.AddFlags(cmd.PersistentFlags())
	cmd.AddCommand(verbs(env)...)
	for _, verb := range cmd.Commands() {
		verb.SetUsageTemplate(usageOfVerbs(verb.UsageTemplate()))
	}
	return cmd, env
}

// requireVerb is the root command. It prints help if there is nothing on the command line. An argument that is empty,
// as from a variable that is not set, must not look like a command that is done: the exit code of help is that of
// "safe".
func requireVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 && cmd.ArgsLenAtDash() < 0 && cmd.Flags().NFlag() == 0 {
		return cmd.Help()
	}
	cmd.PrintErrln(cmd.UsageString())
	return errors.New("name a command, for example: " + cli.SVM + " status")
}

// usageOfVerbs leaves out the flags that all verbs share, which are many.
func usageOfVerbs(template string) string {
	begin := strings.Index(template, "{{if .HasAvailableInheritedFlags}}")
	end := strings.Index(template, "{{if .HasHelpSubCommands}}")
	if begin < 0 || end < begin {
		return template
	}
	return template[:begin] +
		"\n\nFor the flags that select the cluster and the user, which kubectl has too, run: kubectl svm --help\n"
}

// verbs returns the commands. One line registers one verb, and one all of steer.
func verbs(env *cli.Env) []*cobra.Command {
	return append(steer.NewCommands(env),
		status.NewCommand(env),
		plan.NewCommand(env),
		migrate.NewCommand(env),
		denied.NewCommand(env),
		history.NewCommand(env),
		preflight.NewCommand(env),
		rbac.NewCommand(env),
		report.NewCommand(env),
		run.NewCommand(env),
		verify.NewCommand(env),
	)
}

// Run runs the command and returns the exit code.
func Run(ctx context.Context, streams genericiooptions.IOStreams, args []string) int {
	cmd, env := newCommand(streams)
	cmd.SetArgs(args)
	return cli.ExitCode(cmd.ExecuteContext(ctx), env)
}
