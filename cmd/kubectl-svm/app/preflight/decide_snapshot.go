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
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/assess"
	"sigs.k8s.io/svm-controller-manager/cmd/kubectl-svm/app/cli"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/documents"
)

// Snapshot is the state of a cluster at one moment.
type Snapshot struct {
	Now time.Time
	// APIProblem says what is wrong with the definitions of migration.k8s.io. Then there are no states and migrations.
	APIProblem string
	// StatesUnread is whether there may be StorageStates all the same.
	StatesUnread bool
	States       []migrationv1alpha1.StorageState
	Migrations   []migrationv1alpha1.StorageVersionMigration
	// Definitions are all CustomResourceDefinitions.
	Definitions []documents.Definition
	// Manager is whether a manager runs.
	Manager assess.Manager
	// Missing are the resources that are served and have no StorageState.
	Missing []string
	// Unknown says that the API server could not list all its resources, and which, or nothing.
	Unknown string
}

// decideSnapshot returns everything that is wrong.
func decideSnapshot(in Snapshot) Findings {
	var found Findings
	found.aboutManager(in)
	found.aboutMissing(in)
	for i := range in.States {
		found.aboutDoubt(in, &in.States[i])
		found.aboutAgreement(&in.States[i])
		found.aboutState(&in.States[i], in.Migrations)
	}
	for _, definition := range in.Definitions {
		state := in.state(definition.Resource().String())
		if state != nil && in.doubt(state) != "" {
			state = nil
		}
		found.aboutStoredVersions(definition, state, in.Manager)
	}
	return found
}

// state returns the StorageState of a name, or nil.
func (s *Snapshot) state(name string) *migrationv1alpha1.StorageState {
	i := slices.IndexFunc(s.States, func(s migrationv1alpha1.StorageState) bool { return s.Name == name })
	if i < 0 {
		return nil
	}
	return &s.States[i]
}

// doubt says why a StorageState is no proof of what is stored now, or nothing.
func (s *Snapshot) doubt(state *migrationv1alpha1.StorageState) string {
	if !assess.Observed(state) {
		return "The trigger has not written the StorageState yet. If that does not change within a minute, a person or " +
			"another controller made it: run a manager whose --controllers include the trigger."
	}
	if definition := s.definition(state.Name); definition != nil {
		if doubt := assess.DoubtByDefinition(state, &definition.Metadata.ObjectMeta); doubt != "" {
			return doubt
		}
	}
	if agreed := meta.FindStatusCondition(
		state.Status.Conditions, migrationv1alpha1.StorageStateAgreed); agreed == nil || slices.Contains([]string{
		migrationv1alpha1.StateReasonServersUnseen, migrationv1alpha1.StateReasonDiscoveryFailed,
		migrationv1alpha1.StateReasonNotServed,
	}, agreed.Reason) {
		return "" // The trigger cannot confirm it, and the condition says why.
	}
	return assess.Doubt(state, s.Now)
}

// aboutDoubt is about a StorageState that is no proof.
func (fs *Findings) aboutDoubt(in Snapshot, state *migrationv1alpha1.StorageState) {
	if doubt := in.doubt(state); doubt != "" {
		fs.add(Error, CodeStorageStateOutdated, state.Name, "%s", doubt)
	}
}

// aboutAPI is about definitions of migration.k8s.io that are missing. onlyDefinitions is whether the person asked about
// nothing but changes of CustomResourceDefinitions, and the cluster has at least one of them: then the findings about
// each of them say what is not known. A cluster that has none may be the wrong one.
func (fs *Findings) aboutAPI(in Snapshot, onlyDefinitions bool) {
	level := Error
	if onlyDefinitions && in.unmanaged() {
		level = Warning
	}
	if in.APIProblem != "" {
		fs.add(level, CodeMigrationAPIMissing, "", "%s", in.APIProblem)
	}
}

// mostNames is how many resources a message names.
const mostNames = 5

// aboutMissing is about resources without a StorageState.
func (fs *Findings) aboutMissing(in Snapshot) {
	if in.Unknown != "" {
		fs.add(Warning, CodeNoStorageState, "", "it is not known whether each resource has a StorageState: %s", in.Unknown)
	}
	help := "so it is not known what is stored. Run svm-controller-manager, or count the objects with " + cli.SVM +
		" verify"
	switch {
	case in.Manager.Established:
		help = "so it is not known what is stored. The manager that leads has not written them. If a definition is new, " +
			"run the command again in a minute. " + assess.WhyNotWritten
	case in.Manager.Running:
		help = "so it is not known what is stored. A manager runs, and writes them within two minutes after its start: " +
			"run the command again, and look at its log if this stays. " + withoutTrigger
	}
	switch n := len(in.Missing); {
	case in.APIProblem != "":
	case len(in.States) == 0:
		fs.add(Error, CodeNoStorageState, "", "there are no StorageStates, %s", help)
	case n > 0:
		names := strings.Join(in.Missing[:min(n, mostNames)], ", ")
		if n > mostNames {
			names += fmt.Sprintf(" and %d more", n-mostNames)
		}
		fs.add(Error, CodeNoStorageState, "", "there is no StorageState of %s, %s", names, help)
	}
}

func (fs *Findings) aboutManager(in Snapshot) {
	if problem := in.managerProblem(); problem != "" {
		fs.add(Error, CodeNoManager, "", "%s", problem)
	}
}

// managerProblem says that no manager runs, or that this is not known, and what to do. It is empty if one runs, or if
// the definitions are the problem.
func (s *Snapshot) managerProblem() string {
	switch {
	case s.APIProblem != "" || s.Manager.Running:
		return ""
	case s.Manager.Help != "":
		return s.Manager.Message
	default:
		return s.Manager.Message + " Nothing is migrated, and StorageStates may be out of date. Start " +
			"svm-controller-manager, or look at its log."
	}
}

// unmanaged reports whether nothing keeps StorageStates: no manager runs, and there are none.
func (s *Snapshot) unmanaged() bool {
	return !s.Manager.Running && s.Manager.Help == "" && len(s.States) == 0 && !s.StatesUnread
}

// aboutAgreement adds why the servers do not agree. The conditions have messages that say why and what to do.
func (fs *Findings) aboutAgreement(state *migrationv1alpha1.StorageState) {
	agreed := meta.FindStatusCondition(state.Status.Conditions, migrationv1alpha1.StorageStateAgreed)
	if agreed != nil && agreed.Status != metav1.ConditionTrue {
		switch agreed.Reason {
		case migrationv1alpha1.StateReasonServersDisagree:
			fs.add(Error, CodeServersDisagree, state.Name, "%s", agreed.Message)
		case migrationv1alpha1.StateReasonServersUnseen, migrationv1alpha1.StateReasonDiscoveryFailed:
			fs.add(Error, CodeServersUnseen, state.Name, "%s", agreed.Message)
		case migrationv1alpha1.StateReasonNotServed:
			fs.add(Error, CodeNotServed, state.Name, "%s", agreed.Message)
		}
	}
}

// aboutState adds why a resource is not migrated.
func (fs *Findings) aboutState(
	state *migrationv1alpha1.StorageState, migrations []migrationv1alpha1.StorageVersionMigration,
) {
	migrated := meta.FindStatusCondition(state.Status.Conditions, migrationv1alpha1.StorageStateMigrated)
	if migrated != nil && migrated.Status == metav1.ConditionTrue {
		return
	}
	reason, message := "", "the trigger has not recorded yet in which versions objects may be stored"
	if migrated != nil {
		reason, message = migrated.Reason, migrated.Message
	}
	message = whatFails(state, message, migrations)
	persisted := state.Status.PersistedStorageVersionHashes
	unknown := len(persisted) == 0 || slices.Contains(persisted, migrationv1alpha1.Unknown)
	switch reason {
	case migrationv1alpha1.StateReasonNotServed, migrationv1alpha1.StateReasonAwaitingAgreement:
		// The condition Agreed says more.
	case migrationv1alpha1.StateReasonMigrationFailed:
		fs.aboutFailure(state, message, migrations)
		return
	case migrationv1alpha1.StateReasonPaused, migrationv1alpha1.StateReasonNotSelected,
		migrationv1alpha1.StateReasonMigrationSuspended:
		if !unknown {
			fs.add(Warning, CodeMigrationHeldBack, state.Name, "%s", message)
		}
	}
	switch {
	case unknown:
		fs.add(Error, CodeEncodingsUnknown, state.Name, "objects may be stored in versions that were not recorded: %s",
			message)
	case len(persisted) > 1:
		fs.add(Warning, CodeOldEncodings, state.Name, "objects may be stored as %s: %s",
			strings.Join(state.Status.PersistedEncodingVersions, " and "), message)
	}
}

// whatFails replaces a message by what is wrong with the migration of a resource, if its requests fail.
func whatFails(
	state *migrationv1alpha1.StorageState, message string, migrations []migrationv1alpha1.StorageVersionMigration,
) string {
	for i := range migrations {
		m := &migrations[i]
		if now := cli.CurrentCondition(m); m.GroupResource() == state.GroupResource() && cli.Failing(now) {
			return fmt.Sprintf("requests of the migration %s fail, and are repeated (%s): %s", m.Name, now.Reason,
				now.Message)
		}
	}
	return message
}

// aboutFailure is about the last migration that failed. If it still exists, its own condition says why.
func (fs *Findings) aboutFailure(
	state *migrationv1alpha1.StorageState, message string, migrations []migrationv1alpha1.StorageVersionMigration,
) {
	if backoff := state.Status.Backoff; backoff != nil && backoff.LastFailedMigration != nil {
		for i := range migrations {
			m := &migrations[i]
			if m.UID != backoff.LastFailedMigration.UID {
				continue
			}
			failed := assess.Describe(m)
			if failed.Denied > 0 && !failed.LacksPermission() {
				fs.add(Error, CodeObjectsDenied, state.Name, "the API server refuses to rewrite %s. See them with "+
					cli.SVM+" denied %s", assess.FormatObjects(failed.Denied), state.Name)
				return
			}
			if failed.State == migrationv1alpha1.MigrationFailed {
				message += " Its status says: " + failed.Message
			}
		}
	}
	fs.add(Error, CodeMigrationFailed, state.Name, "%s", message)
}

// pruneAdvice says how to prune storedVersions: a migration proves that every object is stored in the storage version,
// and then the manager removes the other versions.
const pruneAdvice = "The manager prunes status.storedVersions after a migration if it has the permission, and if its " +
	"feature gate CRDStoredVersionsPruning is enabled. If so: %s"

// aboutStoredVersions is about a definition whose status names more than its storage version.
func (fs *Findings) aboutStoredVersions(
	d documents.Definition, state *migrationv1alpha1.StorageState, manager assess.Manager,
) {
	if state != nil {
		fs.aboutManagedFields(d, state)
	}
	name, current := d.Resource().String(), d.StorageVersion()
	old := slices.DeleteFunc(slices.Clone(d.Status.StoredVersions), func(v string) bool { return v == current })
	if len(old) == 0 {
		return
	}
	migrated := state != nil &&
		meta.IsStatusConditionTrue(state.Status.Conditions, migrationv1alpha1.StorageStateMigrated)
	if migrated {
		fs.add(Warning, CodeStoredVersionsNotPruned, name, "every object is stored as %s, but status.storedVersions of "+
			"the CustomResourceDefinition still names %s. The API server refuses a definition without them. "+pruneAdvice,
			current, strings.Join(old, ", "), howToMigrate(manager, name))
		return
	}
	fs.add(Warning, CodeStoredVersionsNotPruned, name, "status.storedVersions of the CustomResourceDefinition names "+
		"%s. The API server refuses a definition without them until a migration has succeeded",
		strings.Join(old, ", "))
}

// aboutManagedFields is about objects that cannot be applied on the server any more.
func (fs *Findings) aboutManagedFields(d documents.Definition, state *migrationv1alpha1.StorageState) {
	for _, counted := range state.Status.ManagedFieldsVersions {
		if counted.Objects > 0 && !d.Has(counted.Version) {
			fs.add(Warning, CodeManagedFieldsNotServed, state.Name, "managedFields of %d objects name %s, which has left the "+
				"definition. The API server refuses server-side apply of them. Let the manager clean them: docs/tasks.md, "+
				"Clean managedFields", counted.Objects, counted.Version)
		}
	}
}
