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

package assess

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator/rewrite"
	"sigs.k8s.io/svm-controller-manager/pkg/install"
	"sigs.k8s.io/svm-controller-manager/pkg/releases"
)

// allowAdmission is the command that gives the manager the permission to migrate admission objects.
var allowAdmission = cli.SVM + " rbac --admission | " + cli.Kubectl + " apply -f -"

// removeAdmission takes that permission away.
var removeAdmission = cli.SVM + " rbac --admission | " + cli.Kubectl + " delete -f -"

// migrateAndWait is the verb, with its flag, for admission objects.
const migrateAndWait = "migrate --wait"

// permission is the command that gives the manager the permission to migrate a resource, where the manifests leave that
// to a person. It is empty for resources that the manifests allow.
func permission(resource schema.GroupResource) string {
	switch {
	case resource.Group == install.AdmissionGroup:
		return allowAdmission
	case releases.BuiltIn(resource.Group):
		return ""
	default:
		return cli.SVM + " rbac | " + cli.Kubectl + " apply -f -"
	}
}

// LacksPermission reports whether a migration failed because the manager lacks a permission.
func (m *Migration) LacksPermission() bool {
	return m != nil && m.State == migrationv1alpha1.MigrationFailed &&
		strings.Contains(m.Message, rewrite.PermissionRemedy)
}

// AfterFailure says what helps when a migration that a person created has failed.
func AfterFailure(m *migrationv1alpha1.StorageVersionMigration) string {
	if m.GroupResource().Group == install.AdmissionGroup {
		return adviceAfter(m) + "\n  At the end, take the permission away: " + removeAdmission
	}
	return adviceAfter(m)
}

func adviceAfter(m *migrationv1alpha1.StorageVersionMigration) string {
	resource, failed := m.GroupResource(), Describe(m)
	again := cli.SVM + " migrate " + resource.String() + " --wait"
	if resource.Group == install.AdmissionGroup {
		again = allowAdmission + "\n  Then: " + again
	}
	switch {
	case migrationv1alpha1.RetryIsVain(failed.Reason):
		return "Another migration would fail as well, until the resource or its server changes"
	case strings.Contains(failed.Message, rewrite.WouldDrop):
		return "Keep the fields as the message says. Then: " + again
	case failed.Reason == migrationv1alpha1.MigrationReasonRewritesChangeObjects:
		return "Change the rule so that it skips the manager (docs/tasks.md says how), or skips updates that change " +
			"nothing. Then: " + again
	case failed.Denied > 0 && !failed.LacksPermission():
		return "To see the objects: " + cli.SVM + " denied " + m.Name
	case !failed.LacksPermission(), resource.Group == install.AdmissionGroup:
		return "To try again: " + again
	case permission(resource) != "":
		return "To allow it: " + permission(resource) + "\n  Then: " + again
	default:
		return "Apply the manifests of the manager again, which allow built-in resources. Then: " + again
	}
}

// Retry is a resource to be tried again when its denied objects are repaired, for Commands.
func Retry(resource schema.GroupResource) *Resource {
	r := &Resource{GroupResource: resource, Name: resource.String(), Verb: "retry"}
	if resource.Group == install.AdmissionGroup { // The role is there for a migration that somebody awaits, and no longer.
		r.Verb, r.Permission = "migrate", allowAdmission
	}
	return r
}

// Commands are the command lines that help with resources: first those that give the manager a permission. known are
// all resources, if the person has not named some; then a command names a group instead of all that the group has.
func Commands(resources []*Resource, known []Resource) []string {
	var lines, verbs []string
	arguments := map[string][]*Resource{}
	for _, r := range resources {
		if r.Permission != "" && !slices.Contains(lines, r.Permission) {
			lines = append(lines, r.Permission)
		}
		for _, verb := range r.verbs() {
			if r.Permission == allowAdmission { // The role has to stay until the migration has ended.
				verb = migrateAndWait
			}
			if arguments[verb] == nil {
				verbs = append(verbs, verb)
			}
			arguments[verb] = append(arguments[verb], r)
		}
	}
	for _, verb := range verbs {
		lines = append(lines, cli.SVM+" "+verb+" "+strings.Join(brief(arguments[verb], known), " "))
	}
	if slices.Contains(lines, allowAdmission) { // Whoever has that role can remove the fence.
		lines = append(lines, removeAdmission)
	}
	return lines
}

// verbs are the subcommands that help with a resource, in order. Nothing starts while a resource is paused, whatever a
// person does about its denied objects.
func (r *Resource) verbs() []string {
	switch {
	case r.Verb == "":
		return nil
	case r.Verb == "denied" && r.State != nil && Paused(r.State):
		return []string{r.Verb, "resume"}
	}
	return []string{r.Verb}
}

// brief returns the names of resources. If a group has several, and all of them are given, it names the group instead.
func brief(resources []*Resource, known []Resource) (names []string) {
	missing := map[string]int{}
	for i := range known {
		missing[known[i].Group]++
	}
	members := map[string]int{}
	for _, r := range resources {
		missing[r.Group]--
		members[r.Group]++
	}
	for _, r := range resources {
		name := r.Name
		if r.Group != "" && members[r.Group] > 1 && missing[r.Group] == 0 {
			name = "'*." + r.Group + "'"
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}
