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
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

func yes(reason, message string) metav1.Condition {
	return metav1.Condition{Status: metav1.ConditionTrue, Reason: reason, Message: message}
}

func no(reason, message string) metav1.Condition {
	return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

// setConditions sets the conditions by their rules.
func (e *evaluation) setConditions() {
	if e.problemMayPass() && !e.newEpoch { // The observation is incomplete for a moment only, and nothing new is known.
		return
	}
	e.next.Conditions = slices.Clone(e.old.Conditions)
	agreed, migrated := e.agreedCondition(), e.migratedCondition()
	e.set(migrationv1alpha1.StorageStateAgreed, agreed)
	e.set(migrationv1alpha1.StorageStateMigrated, migrated)
	e.set(migrationv1alpha1.StorageStateSafeToRemoveOldVersions, e.safeCondition(agreed, migrated))
	e.set(migrationv1alpha1.StorageStateServed, e.servedCondition())
	const managedFieldsServed = migrationv1alpha1.StorageStateManagedFieldsServed
	known := meta.FindStatusCondition(e.next.Conditions, managedFieldsServed) != nil
	if !e.cleansManagedFields() {
		meta.RemoveStatusCondition(&e.next.Conditions, managedFieldsServed)
	} else if known || e.next.Migrated() || e.cleaningDue() {
		e.set(managedFieldsServed, e.managedFieldsCondition())
	}
}

func (e *evaluation) set(conditionType string, c metav1.Condition) {
	c.Type, c.ObservedGeneration = conditionType, e.in.State.Generation
	c.Message = migrationv1alpha1.TruncateRunes(c.Message, migrationv1alpha1.MaxConditionMessageLength)
	c.LastTransitionTime = metav1.NewTime(e.in.Now.Truncate(time.Second))
	meta.SetStatusCondition(&e.next.Conditions, c)
}

func (e *evaluation) agreedCondition() metav1.Condition {
	o, current := &e.in.Observation, e.next.CurrentEncodingVersion
	switch {
	case o.Problem != nil:
		return no(o.Problem.Reason, controller.Sentence(o.Problem.Message))
	case o.Presence == storageversion.NotServed:
		return no(migrationv1alpha1.StateReasonNotServed, "No server writes the resource. "+e.endsNotServed())
	case len(e.last.Writing) == 0:
		return no(migrationv1alpha1.StateReasonServersUnseen, "No server was seen to write the resource yet.")
	case e.next.CurrentStorageVersionHash == storageversion.Unknown:
		return no(migrationv1alpha1.StateReasonServersDisagree, "The servers do not write one encoding: "+e.writers()+
			". Nothing is migrated meanwhile. Finish the upgrade, or give all servers the same release and flags.")
	case !e.agreed:
		return no(migrationv1alpha1.StateReasonSettling, fmt.Sprintf(
			"All servers write %s, but writes that began earlier may still store another encoding. The servers count as "+
				"agreed at %s at the earliest.",
			current, e.next.EpochStartTime.Add(e.in.Periods.Settle).UTC().Format(time.RFC3339)))
	default:
		return yes(migrationv1alpha1.StateReasonServersAgree, "All servers write "+current+".")
	}
}

// endsNotServed says what a person can do about a resource that no server serves.
func (e *evaluation) endsNotServed() string {
	if e.in.Observation.Class == storageversion.Custom { // If it serves no version, the StorageState would come back.
		return "Serve it again, or delete the CustomResourceDefinition, which deletes the objects."
	}
	return "Serve it again, or delete the StorageState if no objects are left."
}

// writers says which servers write what, where the evidence names servers.
func (e *evaluation) writers() string {
	who := map[string][]string{}
	add := func(hash, server string) {
		if hash != "" {
			who[hash] = append(who[hash], server)
		}
	}
	for _, server := range e.last.Evidence.Servers {
		add(server.StorageVersionHash, server.Identity)
	}
	for _, endpoint := range e.last.Evidence.Endpoints {
		add(endpoint.StorageVersionHash, endpoint.Address)
	}
	var parts []string
	for _, hash := range slices.Sorted(maps.Keys(who)) {
		parts = append(parts, e.versionOfHash(hash)+" by "+strings.Join(who[hash], ", "))
	}
	return strings.Join(parts, "; ")
}

func (e *evaluation) safeCondition(agreed, migrated metav1.Condition) metav1.Condition {
	stored := e.next.Evidence.StoredVersions()
	switch {
	case migrated.Status != metav1.ConditionTrue:
		return migrated
	case agreed.Status != metav1.ConditionTrue:
		return agreed
	case len(stored) > 1:
		return no(migrationv1alpha1.StateReasonStoredVersionsNotPruned, "Every object is stored in the current encoding, "+
			"but status.storedVersions of the CustomResourceDefinition still lists "+strings.Join(stored, ", ")+
			", so the API server refuses to remove any of these versions. Remove the old ones from that list, or create a "+
			"StorageVersionMigration: it prunes the list at its end unless the feature gate CRDStoredVersionsPruning is off.")
	default:
		migrated.Message += e.namedInManagedFields()
		return migrated
	}
}

// namedInManagedFields warns of dropping versions that managedFields name, if there are any.
func (e *evaluation) namedInManagedFields() string {
	var names []string
	for _, v := range e.next.ManagedFieldsVersions {
		if v.Objects > 0 && v.Version != path.Base(e.next.CurrentEncodingVersion) {
			names = append(names, v.Version)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return " But when the objects were migrated, metadata.managedFields of some objects named " +
		strings.Join(names, ", ") + ". If you remove such a version from the CustomResourceDefinition, the API server " +
		"refuses server-side apply of these objects. Before that, run kubectl svm preflight --drop-version=" +
		e.in.State.Name + "/" + names[0] + "."
}

func (e *evaluation) servedCondition() metav1.Condition {
	switch e.in.Observation.Presence {
	case storageversion.Served:
		return yes(migrationv1alpha1.StateReasonServed, "The resource is served.")
	case storageversion.NotServed:
		return no(migrationv1alpha1.StateReasonNotServed, "No server serves the resource. Its objects may still be stored.")
	}
	c := metav1.Condition{
		Status: metav1.ConditionUnknown, Reason: migrationv1alpha1.StateReasonDiscoveryFailed,
		Message: "It is not known whether the resource is served.",
	}
	if problem := e.in.Observation.Problem; problem != nil {
		c.Reason, c.Message = problem.Reason, controller.Sentence(problem.Message)
	}
	return c
}

// nameVersions fills the fields that give the versions of hashes.
func (e *evaluation) nameVersions() {
	o := &e.in.Observation
	names := map[string]string{}
	for _, encoding := range e.old.Encodings {
		names[encoding.StorageVersionHash] = encoding.EncodingVersion
	}
	for _, hash := range e.next.PersistedStorageVersionHashes {
		if name, ok := o.Versions[hash]; ok {
			names[hash] = name
		}
	}
	var encodings []migrationv1alpha1.StorageEncoding
	for _, hash := range slices.Sorted(maps.Keys(names)) {
		if len(encodings) < migrationv1alpha1.MaxEncodings {
			encodings = append(encodings,
				migrationv1alpha1.StorageEncoding{StorageVersionHash: hash, EncodingVersion: names[hash]})
		}
	}
	e.next.Encodings = encodings
	e.next.CurrentEncodingVersion = e.versionOfHash(e.next.CurrentStorageVersionHash)
	var persisted []string
	for _, hash := range e.next.PersistedStorageVersionHashes {
		persisted = append(persisted, e.versionOfHash(hash))
	}
	e.next.PersistedEncodingVersions = persisted
	var shared []string
	for _, other := range o.SharedWith[:min(len(o.SharedWith), migrationv1alpha1.MaxStorageSharedWith)] {
		shared = append(shared, other.String())
	}
	e.next.StorageSharedWith = shared
}

// versionOfHash returns the version that has a hash, or the hash where none is known.
func (e *evaluation) versionOfHash(hash string) string {
	if name, ok := e.in.Observation.Versions[hash]; ok {
		return name
	}
	for _, encoding := range e.next.Encodings {
		if encoding.StorageVersionHash == hash {
			return encoding.EncodingVersion
		}
	}
	return hash
}
