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

// Package rbac is the command that prints the ClusterRole that lets the manager migrate custom resources.
package rbac

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/discovery"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/install"
)

const (
	long = `Print a ClusterRole that lets the manager migrate the custom resources and the resources of aggregated API
servers that the cluster serves now. The role "svm-controller-manager:custom" of the manifests collects its rules.
The command changes nothing: apply its output, and run it again when there are new CustomResourceDefinitions.

With --admission it prints another ClusterRole, for webhook configurations and admission policies. A client that may
patch these can remove the fence, so the manifests do not give the manager this permission. Delete the role when the
migrations have ended.`
	example = `  # Allow everything that the cluster serves
  kubectl svm rbac | kubectl apply -f -

  # Migrate admission objects as well, and take the permission back, also if the migration has failed
  kubectl svm rbac --admission | kubectl apply -f -
  kubectl svm migrate '*.admissionregistration.k8s.io' --wait --timeout=1h
  kubectl svm rbac --admission | kubectl delete -f -`
)

// Options are what the command needs.
type Options struct {
	cli.NamedOptions
	Admission bool
}

// NewCommand returns the command.
func NewCommand(env *cli.Env) *cobra.Command {
	o := &Options{NamedOptions: cli.NamedOptions{Env: env, Output: cli.Output{Format: cli.YAML}}}
	cmd := cli.Command(env, o, &cobra.Command{
		Use:               "rbac",
		Short:             "Print a ClusterRole for the custom resources of the cluster",
		Long:              long,
		Example:           example,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
	})
	cmd.Flags().BoolVar(&o.Admission, "admission", false, "Print the ClusterRole for admission objects instead.")
	cmd.Flags().BoolVar(&o.AllowIncomplete, "allow-incomplete", false,
		"Print the role even if an aggregated API server does not answer. The role then lacks the resources of that "+
			"server. Applying it removes permissions for them that the role in the cluster has.")
	o.Output.AddTo(cmd, cli.YAML, cli.JSON)
	return cmd
}

// Run prints the role.
func (o *Options) Run(ctx context.Context) error {
	_, documents, err := o.Clients.Discovery.ServerGroupsAndResourcesWithContext(ctx)
	switch {
	case ctx.Err() != nil:
		return ctx.Err() // Groups that were interrupted count as failed.
	case discovery.IsGroupDiscoveryFailedError(err) && o.Admission: // The API server itself serves these.
	case discovery.IsGroupDiscoveryFailedError(err) && !o.AllowIncomplete:
		return fmt.Errorf("the API server could not list all its resources, so the role would lack the permissions "+
			"for the others: %w\nTo print it anyway: --allow-incomplete", err)
	case discovery.IsGroupDiscoveryFailedError(err):
		o.Notef("The role lacks the resources that the API server could not list. If the role in the cluster has them, "+
			"applying this one removes these permissions: %v", err)
	case err != nil:
		return fmt.Errorf("reading which resources the API server serves: %w", cli.Explain(err))
	}
	role := install.NewRole(install.Resources(documents))
	if o.Admission {
		role = install.NewAdmissionRole(install.Resources(documents))
		o.Notef("With this role the manager could remove its fence. To delete it when the migrations have ended: %s",
			cli.SVM+" rbac --admission | "+cli.Kubectl+" delete -f -")
	}
	o.Output.PrintData(o.Env, role)
	return nil
}
