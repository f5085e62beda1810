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

package svmtrigger

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// When a version leaves the definition of a custom resource, the API server refuses server-side apply of objects whose
// managedFields name it. A migration drops entries of versions that are not served any more, if the feature gate is on:
// nobody can write such an entry anew. This file says when one is due.

// cleansManagedFields reports whether migrations of the resource clean managedFields.
func (e *evaluation) cleansManagedFields() bool {
	o := &e.in.Observation
	return e.in.CleanManagedFields && o.Class == storageversion.Custom && o.Presence == storageversion.Served
}

// recordManagedFields records which versions managedFields may name after a migration: those that it has counted. If
// the definition changed after the migration began, the versions recorded before stay too: clients may have applied
// objects at these after the migration had rewritten them.
func (e *evaluation) recordManagedFields(m *migrationv1alpha1.StorageVersionMigration) {
	if e.in.Observation.Class != storageversion.Custom {
		return
	}
	before := e.next.ManagedFieldsVersions
	e.next.ManagedFieldsVersions = slices.Clone(m.Status.ManagedFieldsVersions)
	if now := e.last.Evidence.CustomResourceDefinition; now != nil && e.generationOf(m) == now.Generation {
		return
	}
	for _, v := range before {
		e.addVersion(v.Version)
	}
}

// recordServedVersions adds the versions that are served to those that managedFields may name, because clients may
// apply objects at these. Before the first migration nobody knows what managedFields name.
func (e *evaluation) recordServedVersions() {
	if e.in.Observation.Class != storageversion.Custom || !e.next.Migrated() && len(e.next.ManagedFieldsVersions) == 0 {
		return
	}
	for _, version := range e.in.Observation.ServedVersions {
		e.addVersion(version)
	}
}

// addVersion adds a version to those that managedFields may name.
func (e *evaluation) addVersion(version string) {
	versions := e.next.ManagedFieldsVersions
	if len(versions) >= migrationv1alpha1.MaxManagedFieldsVersions ||
		slices.ContainsFunc(versions, func(v migrationv1alpha1.ManagedFieldsVersion) bool { return v.Version == version }) {
		return
	}
	versions = append(slices.Clone(versions), migrationv1alpha1.ManagedFieldsVersion{Version: version})
	slices.SortFunc(versions, func(a, b migrationv1alpha1.ManagedFieldsVersion) int {
		return strings.Compare(a.Version, b.Version)
	})
	e.next.ManagedFieldsVersions = versions
}

func (e *evaluation) unserved(v migrationv1alpha1.ManagedFieldsVersion) bool {
	return !slices.Contains(e.in.Observation.ServedVersions, v.Version)
}

// unservedVersions returns the versions that managedFields may name and that are not served.
func (e *evaluation) unservedVersions() []string {
	var unserved []string
	for _, v := range e.next.ManagedFieldsVersions {
		if e.unserved(v) {
			unserved = append(unserved, v.Version)
		}
	}
	return unserved
}

func (e *evaluation) cleaningDue() bool {
	return e.cleansManagedFields() && len(e.unservedVersions()) > 0
}

// cleaningDueSince returns since when the stored state says that managedFields have to be cleaned, in seconds. It is
// zero if the state does not say so yet. If a version is served again, and goes again, the time is another one. So
// attempts from before that do not count again.
func (e *evaluation) cleaningDueSince() int64 {
	c := meta.FindStatusCondition(e.old.Conditions, migrationv1alpha1.StorageStateManagedFieldsServed)
	if c == nil || c.Status != metav1.ConditionFalse {
		return 0
	}
	return c.LastTransitionTime.Unix()
}

// acceptCleaning accepts a migration that began at the current generation of the definition and has left no entry of a
// version that is not served. Then no other one is due.
func (e *evaluation) acceptCleaning() {
	if !e.cleaningDue() || e.last.Evidence.CustomResourceDefinition == nil {
		return
	}
	for _, m := range e.in.Migrations {
		if e.proves(m) && e.cleaned(m) && e.generationOf(m) == e.last.Evidence.CustomResourceDefinition.Generation {
			e.recordManagedFields(m)
			e.next.ManagedFieldsVersions = slices.DeleteFunc(e.next.ManagedFieldsVersions, e.unserved)
			e.next.Backoff = nil
			return
		}
	}
}

// cleaned reports whether a migration has left no entry of a version that is not served. One that does not clean counts
// the objects that have such entries.
func (e *evaluation) cleaned(m *migrationv1alpha1.StorageVersionMigration) bool {
	return !slices.ContainsFunc(m.Status.ManagedFieldsVersions, func(v migrationv1alpha1.ManagedFieldsVersion) bool {
		return v.Objects > 0 && e.unserved(v)
	})
}

// generationOf returns the generation of the definition at which a migration began, zero if it is not known.
func (*evaluation) generationOf(m *migrationv1alpha1.StorageVersionMigration) int64 {
	if began := m.Status.Evidence; began != nil && began.CustomResourceDefinition != nil {
		return began.CustomResourceDefinition.Generation
	}
	return 0
}

// managedFieldsCondition makes the ManagedFieldsServed condition.
func (e *evaluation) managedFieldsCondition() metav1.Condition {
	if e.cleaningDue() {
		return no(e.step.Reason, "Objects may name "+strings.Join(e.unservedVersions(), ", ")+" in metadata.managedFields. "+
			"If such a version leaves the CustomResourceDefinition, the API server refuses server-side apply of these "+
			"objects. "+e.step.Message)
	}
	return yes(migrationv1alpha1.StateReasonOnlyServedVersions,
		"After the last migration, metadata.managedFields names only versions that are served.")
}
