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
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// CompleteResources completes names of resources that are not on the command line yet. It suggests nothing if the
// cluster does not answer.
func CompleteResources(env *Env) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begin string) ([]cobra.Completion, cobra.ShellCompDirective) {
		clients, err := env.Connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		catalog, err := Discover(cmd.Context(), clients.Discovery)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := []cobra.Completion{All}
		for _, resource := range catalog.Resources() {
			names = append(names, resource.String())
		}
		return fitting(names, begin, args), cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteMigrations completes the names of migrations for which about returns true, and of their resources. Unless
// aboutState is nil, it also completes the names of StorageStates for which that returns true.
func CompleteMigrations(
	env *Env, about func(*migrationv1alpha1.StorageVersionMigration) bool,
	aboutState func(*migrationv1alpha1.StorageState) bool,
) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begin string) ([]cobra.Completion, cobra.ShellCompDirective) {
		clients, err := env.Connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		migrations, err := clients.Migration.StorageVersionMigrations().List(cmd.Context(), metav1.ListOptions{})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []cobra.Completion
		for i := range migrations.Items {
			if m := &migrations.Items[i]; about(m) {
				names = append(names, m.Name, m.GroupResource().String())
			}
		}
		if aboutState != nil {
			states, err := clients.Migration.StorageStates().List(cmd.Context(), metav1.ListOptions{})
			if err != nil {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			for i := range states.Items {
				if s := &states.Items[i]; aboutState(s) {
					names = append(names, s.Name)
				}
			}
		}
		slices.Sort(names)
		return fitting(slices.Compact(names), begin, args), cobra.ShellCompDirectiveNoFileComp
	}
}

// fitting returns the names that begin with the text and are not taken.
func fitting(names []string, begin string, taken []string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, begin) || slices.Contains(taken, name)
	})
}
