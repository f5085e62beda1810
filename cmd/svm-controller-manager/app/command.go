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

// Package app is the manager. It has a registry of controllers, takes the flags, opens the secure port, takes part in
// leader election, and runs the selected controllers. It follows the conventions of kube-controller-manager.
package app

import (
	"fmt"

	"github.com/spf13/cobra"
	apiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/flagz"
	cliflag "k8s.io/component-base/cli/flag"
	_ "k8s.io/component-base/logs/json/register"          // the JSON log format
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // metrics of clients and of leader election
	_ "k8s.io/component-base/metrics/prometheus/version"  // the metric kubernetes_build_info
	"k8s.io/component-base/term"
	"k8s.io/component-base/version"

	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/app/options"
	"sigs.k8s.io/svm-controller-manager/cmd/svm-controller-manager/names"
	"sigs.k8s.io/svm-controller-manager/pkg/features"
)

const longDescription = `The svm-controller-manager keeps what a Kubernetes cluster stores in its current encoding. Its
controllers know which encodings may be in etcd, rewrite the objects that are stored in old ones, and clean up.

Run two instances or more, as a Deployment or as static pods beside the API servers. One leads, the others stand by.`

// NewControllerManagerCommand returns the command. With more descriptors another program compiles in controllers of its
// own. It panics if the descriptors contradict each other, because that is an error of the program and not of its user.
func NewControllerManagerCommand(more ...ControllerDescriptor) *cobra.Command {
	o, all := newOptions(more...)
	flagSets := o.Flags()

	cmd := &cobra.Command{
		Use:     names.Manager,
		Long:    longDescription,
		Version: version.Get().String(),
		Args: func(_ *cobra.Command, args []string) error { // cobra.NoArgs speaks of an unknown command.
			if len(args) > 0 {
				return fmt.Errorf("got the argument %q, but there are only flags: write values as in --leader-elect=false", args[0])
			}
			return nil
		},
		// The usage is longer than a screen, and would hide the error.
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// This comes first, because everything after it may log.
			if err := o.ApplyLogs(); err != nil {
				return err
			}
			cliflag.PrintFlags(cmd.Flags())
			c, err := o.Config()
			if err != nil {
				return err
			}
			c.Flags = flagz.NamedFlagSetsReader{FlagSets: *flagSets}
			features.DefaultMutableFeatureGate.AddMetrics()
			return run(apiserver.SetupSignalContext(), c, all)
		},
	}
	for _, fs := range flagSets.FlagSets {
		cmd.Flags().AddFlagSet(fs)
	}
	columns, _, _ := term.TerminalSize(cmd.OutOrStdout())
	cliflag.SetUsageAndHelpFunc(cmd, *flagSets, columns)
	return cmd
}

// FlagSets returns the flags of the command, in the groups in which its help shows them.
func FlagSets() *cliflag.NamedFlagSets {
	o, _ := newOptions()
	return o.Flags()
}

func newOptions(more ...ControllerDescriptor) (*options.Options, *registry) {
	all, err := newRegistry(append(NewControllerDescriptors(), more...)...)
	if err != nil {
		panic(err)
	}
	return options.New(all.options), all
}
