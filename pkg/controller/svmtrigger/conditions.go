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
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// standing is what is being done about objects in old encodings: a reason of the Migrated condition, and what its
// message has to name.
type standing struct {
	reason    string
	migration string
	shared    string
}

// describe puts into words and conditions what the decision found. While something is unknown for a moment only, the
// conditions stay what they were, unless the facts did not.
func (d *deciding) describe() {
	d.putIntoWords()
	if d.held() && !d.newEpoch {
		return
	}
	d.setCondition(migrationv1alpha1.StorageStateAgreed, d.agreement())
	migrated := d.migratedCondition()
	d.setCondition(migrationv1alpha1.StorageStateMigrated, migrated)
	d.setCondition(migrationv1alpha1.StorageStateSafeToRemoveOldVersions, d.safety(migrated))
	d.setCondition(migrationv1alpha1.StorageStateServed, d.service())
}

func (d *deciding) agreement() metav1.Condition {
	o := &d.in.Observation
	current := d.words(d.next.CurrentStorageVersionHash)
	switch {
	case o.Problem != nil:
		return no(o.Problem.Reason, sentence(o.Problem.Message))
	case o.Presence == storageversion.NotServed:
		return no(migrationv1alpha1.StateReasonNotServed, "No server writes the resource.")
	case len(d.last.Writing) == 0:
		return no(migrationv1alpha1.StateReasonServersUnseen, "No server was seen to write the resource yet.")
	case d.next.CurrentStorageVersionHash == storageversion.Unknown:
		return no(migrationv1alpha1.StateReasonServersDisagree, "The servers write different encodings: "+d.whoWritesWhat()+".")
	case !d.agreed:
		return no(migrationv1alpha1.StateReasonSettling, fmt.Sprintf("All servers write %s. That counts from %s on, when writes that began before have landed.",
			current, d.settledAt().UTC().Format(time.RFC3339)))
	default:
		return yes(migrationv1alpha1.StateReasonServersAgree, fmt.Sprintf("All servers write %s.", current))
	}
}

// whoWritesWhat names servers where the evidence does.
func (d *deciding) whoWritesWhat() string {
	who := map[string][]string{}
	for _, server := range d.last.Evidence.Servers {
		if server.StorageVersionHash != "" {
			who[server.StorageVersionHash] = append(who[server.StorageVersionHash], server.Identity)
		}
	}
	for _, endpoint := range d.last.Evidence.Endpoints {
		if endpoint.StorageVersionHash != "" {
			who[endpoint.StorageVersionHash] = append(who[endpoint.StorageVersionHash], endpoint.Address)
		}
	}
	var parts []string
	for _, hash := range slices.Sorted(maps.Keys(who)) {
		parts = append(parts, d.words(hash)+" by "+strings.Join(who[hash], ", "))
	}
	return strings.Join(parts, "; ")
}

func (d *deciding) migratedCondition() metav1.Condition {
	persisted := strings.Join(d.next.PersistedEncodingVersions, ", ")
	stored := "Objects may be stored in " + persisted + ". "
	if slices.Contains(d.next.PersistedStorageVersionHashes, storageversion.Unknown) {
		stored = "Objects may be stored in encodings that nobody has a record of. "
	}
	switch d.standing.reason {
	case migrationv1alpha1.StateReasonOnlyCurrentEncoding:
		return yes(d.standing.reason, "Every object is stored in "+persisted+".")
	case migrationv1alpha1.StateReasonMigrationRunning:
		if d.standing.shared != "" {
			return no(d.standing.reason, stored+"They share their storage with "+d.standing.shared+" and are migrated with it.")
		}
		return no(d.standing.reason, stored+"The migration "+d.standing.migration+" brings them to the current encoding.")
	case migrationv1alpha1.StateReasonMigrationQueued:
		return no(d.standing.reason, stored+"A migration is due, and waits until others have ended.")
	case migrationv1alpha1.StateReasonMigrationFailed:
		return no(d.standing.reason, stored+d.failure())
	case migrationv1alpha1.StateReasonPaused:
		return no(d.standing.reason, stored+"A migration is due; remove the annotation "+migrationv1alpha1.PausedAnnotation+" to let it start.")
	case migrationv1alpha1.StateReasonNotSelected:
		return no(d.standing.reason, stored+"A migration is due; --auto-migrate leaves the resource alone. Create a StorageVersionMigration to migrate it.")
	case migrationv1alpha1.StateReasonObjectsExpire:
		return no(d.standing.reason, stored+"They are never migrated, because a rewrite would prolong their life: they are gone by themselves once the API servers' --event-ttl has passed.")
	case migrationv1alpha1.StateReasonNotServed:
		return no(d.standing.reason, stored+"They cannot be migrated while no server serves the resource.")
	default:
		if d.standing.migration != "" {
			return no(d.standing.reason, stored+"The migration "+d.standing.migration+" succeeded, which counts when the servers are next seen to agree.")
		}
		return no(d.standing.reason, stored+"A migration starts when the servers agree.")
	}
}

func (d *deciding) failure() string {
	backoff := d.next.Backoff
	message := fmt.Sprintf("The migration %s ended without a proof, %d in a row; its status tells why.", d.standing.migration, backoff.Failures)
	if backoff.NextAttemptTime == nil {
		return message + " Another is only made on request: set the annotation " + migrationv1alpha1.RetryAnnotation + " to a new value."
	}
	return message + " The next one is due at " + backoff.NextAttemptTime.UTC().Format(time.RFC3339) +
		", or when the annotation " + migrationv1alpha1.RetryAnnotation + " gets a new value."
}

func (d *deciding) safety(migrated metav1.Condition) metav1.Condition {
	agreed := meta.FindStatusCondition(d.next.Conditions, migrationv1alpha1.StorageStateAgreed)
	switch {
	case migrated.Status != metav1.ConditionTrue:
		return migrated
	case agreed.Status != metav1.ConditionTrue:
		return no(agreed.Reason, agreed.Message)
	case len(storedVersions(d.next.Evidence)) > 1:
		return no(migrationv1alpha1.StateReasonStoredVersionsNotPruned,
			"Every object is stored in the current encoding, but status.storedVersions of the CustomResourceDefinition still lists "+
				strings.Join(storedVersions(d.next.Evidence), ", ")+", so that the API server refuses to drop any of these.")
	default:
		return yes(migrated.Reason, migrated.Message)
	}
}

func (d *deciding) service() metav1.Condition {
	switch d.in.Observation.Presence {
	case storageversion.Served:
		return yes(migrationv1alpha1.StateReasonServed, "The resource is served.")
	case storageversion.NotServed:
		return no(migrationv1alpha1.StateReasonNotServed, "No server serves the resource. Its objects may be stored all the same.")
	default:
		reason, message := migrationv1alpha1.StateReasonDiscoveryFailed, "It is not known whether the resource is served."
		if problem := d.in.Observation.Problem; problem != nil {
			reason, message = problem.Reason, sentence(problem.Message)
		}
		return metav1.Condition{Status: metav1.ConditionUnknown, Reason: reason, Message: message}
	}
}

// putIntoWords fills the fields that repeat hashes as versions.
func (d *deciding) putIntoWords() {
	o := &d.in.Observation
	known := map[string]string{}
	for _, encoding := range d.old.Encodings {
		known[encoding.StorageVersionHash] = encoding.EncodingVersion
	}
	for _, hash := range d.next.PersistedStorageVersionHashes {
		if words, ok := o.Versions[hash]; ok {
			known[hash] = words
		}
	}
	d.next.Encodings = nil
	for _, hash := range slices.Sorted(maps.Keys(known)) {
		if len(d.next.Encodings) == migrationv1alpha1.MaxEncodings {
			break
		}
		d.next.Encodings = append(d.next.Encodings, migrationv1alpha1.StorageEncoding{StorageVersionHash: hash, EncodingVersion: known[hash]})
	}
	d.next.CurrentEncodingVersion = d.words(d.next.CurrentStorageVersionHash)
	d.next.PersistedEncodingVersions = nil
	for _, hash := range d.next.PersistedStorageVersionHashes {
		d.next.PersistedEncodingVersions = append(d.next.PersistedEncodingVersions, d.words(hash))
	}
	d.next.StorageSharedWith = nil
	for _, other := range o.SharedWith[:min(len(o.SharedWith), migrationv1alpha1.MaxStorageSharedWith)] {
		d.next.StorageSharedWith = append(d.next.StorageSharedWith, stateName(other))
	}
}

// words is the version behind a hash, or the hash where none is known.
func (d *deciding) words(hash string) string {
	if words, ok := d.in.Observation.Versions[hash]; ok {
		return words
	}
	for _, encoding := range d.next.Encodings {
		if encoding.StorageVersionHash == hash {
			return encoding.EncodingVersion
		}
	}
	return hash
}

func (d *deciding) setCondition(conditionType string, condition metav1.Condition) {
	condition.Type = conditionType
	condition.Message = firstRunes(condition.Message, migrationv1alpha1.MaxStateConditionMessageLength)
	condition.LastTransitionTime = metav1.NewTime(d.in.Now.Truncate(time.Second))
	meta.SetStatusCondition(&d.next.Conditions, condition)
}

func stateName(resource schema.GroupResource) string {
	return migrationv1alpha1.GroupResource{Group: resource.Group, Resource: resource.Resource}.StorageStateName()
}

func yes(reason, message string) metav1.Condition {
	return metav1.Condition{Status: metav1.ConditionTrue, Reason: reason, Message: message}
}

func no(reason, message string) metav1.Condition {
	return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

func sentence(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:] + "."
}
