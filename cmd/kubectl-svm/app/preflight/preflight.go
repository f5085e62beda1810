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

// Package preflight is the command that reports what stands in the way of a change: another release of Kubernetes,
// another CustomResourceDefinition, or the removal of a version.
package preflight

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/releases"
)

const (
	long = `Report what stands in the way of a change, before you make it. The command changes nothing: it applies
definitions as server-side dry runs.

With --file=- the command reads the standard input, for example the output of helm template --include-crds.

Without flags the command reports everything that is wrong now. Each line is one finding: its level, its code, the
resource, and what to do. docs/preflight.md explains the codes. Exit code 2 means that there is an ERROR.`
	example = `  # What is wrong now?
  kubectl svm preflight

  # May these definitions be applied? Other kinds are skipped
  kubectl svm preflight --file=config/crds/

  # May this version be removed from its CustomResourceDefinition?
  kubectl svm preflight --drop-version=widgets.example.com/v1alpha1

  # Can that release of Kubernetes read and serve what is stored?
  kubectl svm preflight --kubernetes-version=1.37

  # Can that API server, which has the same etcd, read it?
  kubectl svm preflight --other-server=https://10.0.0.7:6443`
)

// Options are what the command needs.
type Options struct {
	cli.NamedOptions
	ManagerLease cli.ManagerLease

	Files             []string
	DropVersions      []string
	KubernetesVersion string
	// OtherServer is the URL of an API server, and OtherCA a file with the CA certificates that verify it.
	OtherServer, OtherCA string

	drops   []droppedVersion
	release releases.Minor
}

// droppedVersion is a version that a person wants to drop.
type droppedVersion struct{ resource, version string }

// NewCommand returns the command.
func NewCommand(env *cli.Env) *cobra.Command {
	o := &Options{NamedOptions: cli.NamedOptions{Env: env}}
	cmd := cli.Command(env, o, &cobra.Command{
		Use:               "preflight",
		Short:             "Report what stands in the way of an upgrade or of a change of a definition",
		Long:              long,
		Example:           example,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	})
	flags := cmd.Flags()
	flags.StringSliceVarP(&o.Files, "file", "f", nil,
		"Files or directories with the CustomResourceDefinitions to apply; - is the standard input")
	flags.StringSliceVar(&o.DropVersions, "drop-version", nil,
		"Versions to remove from their CustomResourceDefinitions, for example widgets.example.com/v1alpha1")
	flags.StringVar(&o.KubernetesVersion, "kubernetes-version", "",
		"Release of Kubernetes to upgrade or downgrade to, for example 1.37")
	flags.StringVar(&o.OtherServer, "other-server", "",
		"URL of another API server that will read the stored objects. It receives the credentials of the kubeconfig")
	flags.StringVar(&o.OtherCA, "other-server-ca", "",
		"File with the CA certificates that verify --other-server; defaults to those of the kubeconfig")
	o.ManagerLease.AddTo(flags)
	o.Output.AddTo(cmd, cli.JSON, cli.YAML)
	return cmd
}

// Validate checks the options before any request is sent.
func (o *Options) Validate() error {
	for _, name := range o.DropVersions {
		resource, version, found := strings.Cut(name, "/")
		if !found || version == "" || strings.Contains(version, "/") || !strings.Contains(resource, ".") {
			return fmt.Errorf("--drop-version=%s names no version of a custom resource: write it as "+
				"widgets.example.com/v1alpha1", name)
		}
		o.drops = append(o.drops, droppedVersion{resource, version})
	}
	if o.OtherCA != "" && o.OtherServer == "" {
		return errors.New("--other-server-ca needs --other-server, which it verifies")
	}
	if o.KubernetesVersion != "" {
		release, err := releases.ParseMinor(o.KubernetesVersion)
		if err != nil {
			return fmt.Errorf("--kubernetes-version: %w", err)
		}
		o.release = release
	}
	return o.Output.Validate()
}

// Run prints what stands in the way.
func (o *Options) Run(ctx context.Context) error {
	_, found, err := o.Find(ctx)
	if err != nil {
		return err
	}
	return o.print(found)
}

// Find returns what was read, also after an error, and what stands in the way, the worst first.
func (o *Options) Find(ctx context.Context) (snapshot Snapshot, found Findings, err error) {
	if snapshot, err = o.gather(ctx); err != nil {
		return snapshot, nil, err
	}
	found, live, err := o.checkFiles(ctx, snapshot)
	if err != nil {
		return snapshot, nil, err
	}
	more, err := o.checkDrops(ctx, snapshot)
	if err != nil {
		return snapshot, nil, err
	}
	found = append(found, more...)
	live = live || len(o.drops) > 0 // These are live, or an error.
	found.aboutAPI(snapshot, live && o.onlyDefinitions())
	if o.KubernetesVersion != "" {
		found = append(found, decideTarget(snapshot, releaseTarget(o.release))...)
	}
	if o.OtherServer != "" {
		target, err := o.askServer(ctx, o.OtherServer)
		if err != nil {
			return snapshot, nil, err
		}
		found = append(found, decideTarget(snapshot, target)...)
	}
	if len(o.Files)+len(o.drops) == 0 && o.KubernetesVersion == "" && o.OtherServer == "" {
		found = append(found, decideSnapshot(snapshot)...)
		more, err := o.checkWebhooks(ctx, snapshot.Definitions)
		if err != nil {
			return snapshot, nil, err
		}
		found = append(found, more...)
	}
	return snapshot, found.sorted(), nil
}

// onlyDefinitions reports whether the person asked about nothing but changes of CustomResourceDefinitions.
func (o *Options) onlyDefinitions() bool {
	return len(o.Files)+len(o.drops) > 0 && o.KubernetesVersion == "" && o.OtherServer == ""
}
