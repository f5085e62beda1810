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

package preflight

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// Change is a change of a definition, and what the cluster says about it.
type Change struct {
	// File is the definition of a file. It is nil if only a version is to be dropped.
	File *documents.Definition
	// Lost are the fields of each version of the file that API servers drop when they store an object.
	Lost map[string][]string
	// Narrowed are the fields of each version of the current definition that the same version of the file lacks.
	Narrowed map[string][]string
	// Refusal is the API server's answer to a dry run of the file. It is empty if the API server would take it.
	Refusal string
	// Webhook is what is wrong with the conversion webhook of the file, if anything.
	Webhook string
	// Live is the definition that the cluster has, or nil.
	Live *documents.Definition
	// State is the StorageState of the resource, or nil.
	State *migrationv1alpha1.StorageState
	// Manager is whether a manager runs.
	Manager assess.Manager
	// Unmanaged is whether nothing keeps StorageStates: no manager runs, and there are none.
	Unmanaged bool
	// Doubt says why the StorageState is no proof, or nothing.
	Doubt string
	// Denied is of how many objects the newest migration was denied the rewrite.
	Denied int64
	// Role is the ClusterRole with the permissions of the manager for custom resources, or nil if it is not known.
	Role *rbacv1.ClusterRole
	// ManagedFields counts the objects whose managedFields name a version.
	ManagedFields map[string]int64
	// Uncounted says why these could not be counted, or nothing.
	Uncounted string
}

// decideChange returns what stands in the way of a definition of a file.
func decideChange(in Change) Findings {
	var found Findings
	name := in.File.Resource().String()
	if in.Refusal != "" {
		found.add(Error, CodeDefinitionRefused, name, "the API server refuses the definition of the file: %s", in.Refusal)
	}
	if in.Role != nil && !permits(in.Role.Rules, in.File.Spec.Group, in.File.Spec.Names.Plural) {
		found.add(Warning, CodeManagerForbidden, name, "the ClusterRole %s does not let the manager migrate the resource. "+
			"If no other role does, its migrations fail. Once the definition is applied, run: "+
			cli.SVM+" rbac | "+cli.Kubectl+" apply -f -", in.Role.Name)
	}
	if in.Live == nil {
		return found // There are no objects.
	}
	found.aboutWebhook(name, in.Webhook, "Install the webhook first")
	was, will := in.Live.StorageVersion(), in.File.StorageVersion()
	switch {
	case !slices.Contains(in.File.ServedVersions(), will) && !in.File.ConvertedByWebhook():
		found.add(Warning, CodeStorageVersionNotServed, name, "the file does not serve the storage version %s, and no "+
			"webhook converts. So each migration will fail with VersionNotServed. Serve %s, or add a conversion webhook", will,
			will)
	case was != will && in.File.Has(was):
		found.add(Info, CodeStorageVersionChanges, name, "the storage version changes from %s to %s. The manager then "+
			"migrates all objects. Do not drop %s before that is done", was, will, was)
	}
	if in.Live.ConvertedByWebhook() && !in.File.ConvertedByWebhook() && len(in.File.Spec.Versions) > 1 {
		level, advice := Warning, "Objects that clients write at another version than "+will+" lose these fields"
		if !in.storedOnlyAs(will) {
			level = Error
			advice = "Objects may be stored in another version than " + will + ": migrate them while the webhook is there"
		}
		found.add(level, CodeConversionRemoved, name, "the file has no conversion webhook, and the current definition "+
			"has one. Without it the API server changes only apiVersion when it converts an object, and drops fields that the "+
			"other version does not have. %s", advice)
	}
	found.aboutLost(in)
	found.aboutNarrowed(in)
	for _, v := range in.Live.Spec.Versions {
		if !in.File.Has(v.Name) {
			found.aboutDrop(in, v.Name)
		}
	}
	found.aboutUncounted(name, in.Uncounted)
	for _, version := range in.unserved() {
		found.aboutUnserved(name, version, in.ManagedFields[version])
	}
	return found
}

// unserved returns the versions that the file removes, or stops to serve.
func (in *Change) unserved() (versions []string) {
	served := in.File.ServedVersions()
	for _, v := range in.Live.Spec.Versions {
		if !in.File.Has(v.Name) || v.Served && !slices.Contains(served, v.Name) {
			versions = append(versions, v.Name)
		}
	}
	return versions
}

// permits reports whether rules allow what a migration does with a resource.
func permits(rules []rbacv1.PolicyRule, group, resource string) bool {
	allows := func(names []string, name string) bool {
		return slices.Contains(names, name) || slices.Contains(names, rbacv1.ResourceAll)
	}
	for _, verb := range []string{"get", "list", "patch"} {
		if !slices.ContainsFunc(rules, func(rule rbacv1.PolicyRule) bool {
			return allows(rule.APIGroups, group) && allows(rule.Resources, resource) && allows(rule.Verbs, verb)
		}) {
			return false
		}
	}
	return true
}

// mostFields is how many lost fields a finding names.
const mostFields = 5

// aboutLost adds which fields objects lose when they are stored in the storage version of the file.
func (fs *Findings) aboutLost(in Change) {
	will := in.File.StorageVersion()
	for _, version := range slices.Sorted(maps.Keys(in.Lost)) {
		fields := in.Lost[version]
		if len(fields) == 0 {
			continue
		}
		level, when := Warning, "Clients that write at "+version+" lose them"
		if in.storedAs(version) && !in.storedOnlyAs(will) {
			level, when = Error, "Objects may be stored as "+version+": each write drops these fields of them for good. The "+
				"manager does not rewrite an object that has such fields while "+version+" is served"
		}
		fs.add(level, CodeFieldsDropped, in.File.Resource().String(), "the storage version %s lacks fields of %s, and no "+
			"webhook converts: %s. %s. Add the fields to %s, let its schema keep unknown fields, or convert by a webhook",
			will, version, namesOf(fields), when, will)
	}
}

// aboutNarrowed adds which fields objects lose because the version in which they are stored lacks them in the file. The
// manager writes all objects if the storage version changes, or if some may be stored in another one.
func (fs *Findings) aboutNarrowed(in Change) {
	was, will := in.Live.StorageVersion(), in.File.StorageVersion()
	for _, version := range slices.Sorted(maps.Keys(in.Narrowed)) {
		fields := in.Narrowed[version]
		if len(fields) == 0 || !in.storedAs(version) || version != was && in.storedOnlyAs(was) {
			continue
		}
		level, when := Warning, "Each write of an object drops them for good"
		if was != will || version != will {
			level, when = Error, "The migration to "+will+" drops them for good"
		}
		fs.add(level, CodeFieldsDropped, in.File.Resource().String(), "objects may be stored as %s, and the schema of %s in "+
			"the file lacks fields that it has now: %s. %s. Keep these fields in the schema, or copy their values first",
			version, version, namesOf(fields), when)
	}
}

// namesOf names the first fields.
func namesOf(fields []string) string {
	named := strings.Join(fields[:min(len(fields), mostFields)], ", ")
	if more := len(fields) - mostFields; more > 0 {
		named += fmt.Sprintf(" and %d more", more)
	}
	return named
}

// storedAs reports whether objects may be stored in a version, as far as the definition and the StorageState know.
func (in *Change) storedAs(version string) bool {
	return version == in.Live.StorageVersion() || slices.Contains(in.Live.Status.StoredVersions, version) ||
		in.Live.Has(version) && in.State != nil && in.mayBeStored(version)
}

// storedOnlyAs reports whether the StorageState proves that every object is stored in a version.
func (in *Change) storedOnlyAs(version string) bool {
	return in.State != nil && in.Doubt == "" && unproven(in.State) == "" &&
		slices.Equal(in.State.Status.PersistedStorageVersionHashes, []string{in.Live.HashAt(version)})
}

// decideDrop returns whether a version may leave its definition now.
func decideDrop(in Change, version string) Findings {
	var found Findings
	name, encoding := in.Live.Resource().String(), in.Live.Spec.Group+"/"+version
	if !in.Live.Has(version) && !slices.Contains(in.Live.Status.StoredVersions, version) {
		found.add(Error, CodeVersionNotDefined, name, "the CustomResourceDefinition has no version %s. Check the "+
			"spelling. If the version is already removed, nothing is left to do", version)
		return found
	}
	found.aboutDrop(in, version)
	found.aboutUnserved(name, version, in.ManagedFields[version])
	found.aboutUncounted(name, in.Uncounted)
	if found.Count(Error) == 0 && in.State != nil {
		found.add(Info, CodeVersionSafeToDrop, name, "no object is stored as %s. You may remove it from the "+
			"CustomResourceDefinition when no client requests it any more", encoding)
	}
	return found
}

// aboutDrop adds why a version must not leave its definition.
func (fs *Findings) aboutDrop(in Change, version string) {
	name, encoding := in.Live.Resource().String(), in.Live.Spec.Group+"/"+version
	switch isWritten := in.Live.StorageVersion() == version; {
	case isWritten && in.File == nil:
		fs.add(Error, CodeVersionIsStorageVersion, name, "%s is the storage version: API servers write it. Make another "+
			"version the storage version, keep this one, and wait for the migration", version)
		return
	case isWritten:
		fs.add(Error, CodeVersionIsStorageVersion, name, "the file drops %s, which is the current storage version. First "+
			"apply a definition that has both versions and %s as the storage version, and wait for the migration",
			version, in.File.StorageVersion())
		return
	}
	stored := slices.Contains(in.Live.Status.StoredVersions, version)
	switch {
	case in.Doubt != "":
		fs.add(Error, CodeStorageStateOutdated, name, "%s It is not known whether objects are stored as %s", in.Doubt,
			encoding)
	case in.State == nil && stored:
		fs.add(Error, CodeVersionMayBeStored, name, "status.storedVersions of the CustomResourceDefinition names %s, and "+
			"there is no StorageState that says whether objects are still stored in it. Run svm-controller-manager, or migrate "+
			"with "+cli.SVM+" run %s", version, name)
	case in.State == nil && !in.Unmanaged:
		fs.add(Error, CodeNoStorageState, name, "it is not known whether objects are stored as %s, because there is no "+
			"StorageState. %s", encoding, adviceOnMissing(in.Manager))
	case in.State == nil:
		fs.add(Warning, CodeNoStorageState, name, "status.storedVersions of the CustomResourceDefinition does not name %s, "+
			"and there is no StorageState that confirms it. Other programs remove versions from storedVersions without a "+
			"proof: count the objects with "+cli.SVM+" verify", version)
	case in.mayBeStored(version) && in.Denied > 0:
		fs.add(Error, CodeVersionMayBeStored, name, "objects may be stored as %s. The newest migration could not "+
			"rewrite %s: "+cli.SVM+" denied %s tells which, and what to do. Then migrate again: %s", encoding,
			assess.FormatObjects(in.Denied), name, howToMigrate(in.Manager, name))
	case in.mayBeStored(version):
		fs.add(Error, CodeVersionMayBeStored, name, "objects may be stored as %s. %s", encoding,
			adviceToMigrate(in.Manager, in.State))
	case unproven(in.State) != "":
		fs.add(Error, CodeVersionMayBeStored, name, "it is not known whether objects are stored as %s, because the "+
			"StorageState is not reliable now: %s", encoding, unproven(in.State))
	case stored:
		fs.add(Error, CodeStoredVersionsNotPruned, name, "no object is stored as %s, but status.storedVersions of the "+
			"CustomResourceDefinition still names it, so the API server refuses a definition without it. "+pruneAdvice,
			encoding, howToMigrate(in.Manager, name))
	}
}

// withoutTrigger is for a manager that leads, and writes no StorageStates. Its lease does not tell.
const withoutTrigger = "If its --controllers lack the trigger, it never writes a StorageState: add svmtrigger to them"

// adviceOnMissing says what helps if one StorageState is missing.
func adviceOnMissing(manager assess.Manager) string {
	switch {
	case manager.Running:
		return "A manager runs, and writes it within a minute after the definition was created: run the command again, and " +
			"look at the log of the manager if this stays. " + withoutTrigger
	case manager.Help != "":
		return manager.Message
	}
	return "Start svm-controller-manager, which writes it, or look at its log"
}

// unproven says why a StorageState does not prove that nothing but the current version is stored, or nothing. The proof
// does not need storedVersions to be pruned.
func unproven(state *migrationv1alpha1.StorageState) string {
	safe := meta.FindStatusCondition(state.Status.Conditions, migrationv1alpha1.StorageStateSafeToRemoveOldVersions)
	switch {
	case safe == nil:
		return "the trigger has not recorded yet whether old versions are needed"
	case safe.Status == metav1.ConditionTrue, safe.Reason == migrationv1alpha1.StateReasonStoredVersionsNotPruned:
		return ""
	}
	return safe.Message
}

// mayBeStored reports whether the StorageState claims a version.
func (in *Change) mayBeStored(version string) bool {
	persisted := in.State.Status.PersistedStorageVersionHashes
	return len(persisted) == 0 || slices.Contains(persisted, in.Live.HashAt(version)) ||
		slices.Contains(persisted, migrationv1alpha1.Unknown)
}

// aboutUncounted is about managedFields that could not be read.
func (fs *Findings) aboutUncounted(name, why string) {
	if why != "" {
		fs.add(Warning, CodeManagedFieldsNotServed, name, "it is not known whether managedFields name a version that will "+
			"not be served, because the objects could not be listed: %s", why)
	}
}

// aboutUnserved is about managedFields that name a version which will not be served.
func (fs *Findings) aboutUnserved(name, version string, objects int64) {
	if objects == 0 {
		return
	}
	fs.add(Warning, CodeManagedFieldsNotServed, name, "managedFields of %d objects name %s. The API server refuses "+
		"server-side apply of these objects once that version has left the definition. Apply them at another version "+
		"first, or let the manager clean them: docs/tasks.md, Clean managedFields", objects, version)
}

// aboutWebhook is about a conversion webhook of which the problem is known, if it has one.
func (fs *Findings) aboutWebhook(name, problem, advice string) {
	if problem != "" {
		fs.add(Error, CodeConversionWebhookMissing, name, "%s. While the webhook does not answer, the API server cannot "+
			"read objects that are stored in another version than the requested one. %s", problem, advice)
	}
}
