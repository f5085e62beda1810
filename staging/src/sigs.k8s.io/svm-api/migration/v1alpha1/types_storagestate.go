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

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:resource:scope=Cluster,categories=storage-migration
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:metadata:annotations="api-approved.kubernetes.io=https://github.com/kubernetes/community/pull/2524"
// +kubebuilder:printcolumn:name="Current",type=string,JSONPath=".status.currentEncodingVersion",description="The version that objects are written in today."
// +kubebuilder:printcolumn:name="Persisted",type=string,JSONPath=".status.persistedEncodingVersions",description="The versions that stored objects may have."
// +kubebuilder:printcolumn:name="Agreed",type=string,JSONPath=".status.conditions[?(@.type==\"Agreed\")].status",description="Whether all servers write the same encoding."
// +kubebuilder:printcolumn:name="Migrated",type=string,JSONPath=".status.conditions[?(@.type==\"Migrated\")].status",description="Whether every object is stored in the current encoding."
// +kubebuilder:printcolumn:name="Safe",type=string,JSONPath=".status.conditions[?(@.type==\"SafeToRemoveOldVersions\")].status",description="Whether all versions but the current one may be dropped."
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=".status.conditions[?(@.type==\"SafeToRemoveOldVersions\")].reason",description="Why all versions but the current one may be dropped, or what stands in the way."
// +kubebuilder:printcolumn:name="Heartbeat",type=date,JSONPath=".status.lastHeartbeatTime",description="How long ago the state was last confirmed."
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Current-Hash",type=string,priority=1,JSONPath=".status.currentStorageVersionHash",description="The hash of the current encoding."
// +kubebuilder:printcolumn:name="Persisted-Hashes",type=string,priority=1,JSONPath=".status.persistedStorageVersionHashes",description="The hashes of the encodings that stored objects may have."
// +kubebuilder:printcolumn:name="Source",type=string,priority=1,JSONPath=".status.evidence.source",description="Where the evidence comes from."
// +kubebuilder:printcolumn:name="Epoch",type=integer,priority=1,JSONPath=".status.epoch",description="How often the evidence changed."
// +kubebuilder:printcolumn:name="Migration",type=string,priority=1,JSONPath=".status.migration.name",description="The latest migration of the current epoch."
// +kubebuilder:printcolumn:name="Failures",type=integer,priority=1,JSONPath=".status.backoff.failures",description="How many migrations failed in a row."
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=".status.conditions[?(@.type==\"SafeToRemoveOldVersions\")].message",description="What there is to say about the reason."
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule=`has(self.spec) || (oldSelf.hasValue() && (!has(oldSelf.value().spec) || !has(oldSelf.value().spec.resource) || !has(oldSelf.value().spec.resource.resource) || oldSelf.value().spec.resource.resource == ""))`,message="spec.resource is required: name the resource that this StorageState is about, for example group: apps, resource: deployments"
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule=`(oldSelf.hasValue() && has(oldSelf.value().spec)) || !has(self.spec) || !has(self.spec.resource) || self.metadata.name == (has(self.spec.resource.resource) ? self.spec.resource.resource : "") + (has(self.spec.resource.group) && self.spec.resource.group != "" ? "." + self.spec.resource.group : "")`,message="metadata.name must be <resource>.<group> of spec.resource, or <resource> alone for the core group"
// +kubebuilder:validation:XValidation:rule="has(self.status) || !has(oldSelf.status) || (!has(oldSelf.status.epoch) && (!has(oldSelf.status.persistedStorageVersionHashes) || oldSelf.status.persistedStorageVersionHashes.size() == 0))",message="status cannot be removed while it has persistedStorageVersionHashes or an epoch: to start over, delete the StorageState"

// StorageState tells, for one resource, which encodings its stored objects may have, and which one the API servers write
// today. While an old encoding is listed, no server may run that cannot read it.
type StorageState struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata. The name is <resource>.<group> of spec.resource, or <resource> alone for the core group.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec names the resource.
	// +optional
	Spec StorageStateSpec `json:"spec,omitempty,omitzero"`
	// status tells what is stored. Controllers write it.
	// +optional
	Status StorageStateStatus `json:"status,omitempty,omitzero"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// StorageStateList is a list of StorageStates.
type StorageStateList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items is the list of StorageStates.
	Items []StorageState `json:"items"`
}

// StorageStateSpec names the resource that a StorageState is about.
type StorageStateSpec struct {
	// resource is the resource that this StorageState is about. It cannot be changed.
	// +required
	Resource GroupResource `json:"resource,omitempty,omitzero"`
}

// GroupResource names a resource, whatever its versions. What it has to look like is checked at creation; after that it
// cannot be changed.
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule="oldSelf.hasValue() || (has(self.resource) && self.resource.size() > 0)",fieldPath=".resource",message="name the resource by its plural, for example deployments"
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule="oldSelf.hasValue() || !has(self.resource) || !self.resource.contains('/')",fieldPath=".resource",message="a subresource is stored with its resource: name the resource alone, without the slash and what follows it"
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule="oldSelf.hasValue() || !has(self.resource) || self.resource.contains('/') || self.resource.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$')",fieldPath=".resource",message="use the plural name in lower case, for example deployments, neither the kind nor a name with the group: the group has a field of its own"
// +kubebuilder:validation:XValidation:rule=`(has(self.group) ? self.group : "") == (has(oldSelf.group) ? oldSelf.group : "") && (has(self.resource) ? self.resource : "") == (has(oldSelf.resource) ? oldSelf.resource : "")`,message="the resource of a StorageState cannot be changed: delete this StorageState and create another one"
// +structType=atomic
type GroupResource struct {
	// group is the API group of the resource. Leave it out, or empty, for the core group.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group,omitempty"`
	// resource is the plural name of the resource in lower case, for example deployments. It has to be there, which a
	// rule demands at creation, and not the schema: old objects may lack it.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Resource string `json:"resource,omitempty"`
}

// StorageStateName is the name of the StorageState of the resource.
func (r GroupResource) StorageStateName() string {
	if r.Group == "" {
		return r.Resource
	}
	return r.Resource + "." + r.Group
}

// StorageStateStatus tells what is stored.
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule=`!has(self.currentStorageVersionHash) || self.currentStorageVersionHash in ["", "Unknown"] || (has(self.persistedStorageVersionHashes) && self.persistedStorageVersionHashes.exists(h, h == self.currentStorageVersionHash || h == "Unknown")) || (oldSelf.hasValue() && has(oldSelf.value().currentStorageVersionHash) && oldSelf.value().currentStorageVersionHash == self.currentStorageVersionHash && !(has(oldSelf.value().persistedStorageVersionHashes) && oldSelf.value().persistedStorageVersionHashes.exists(h, h == self.currentStorageVersionHash || h == "Unknown")))`,fieldPath=".persistedStorageVersionHashes",message="persistedStorageVersionHashes must contain currentStorageVersionHash, or Unknown: objects are written in that encoding now"
// +kubebuilder:validation:XValidation:rule=`!has(oldSelf.persistedStorageVersionHashes) || oldSelf.persistedStorageVersionHashes.size() == 0 || (has(self.persistedStorageVersionHashes) && self.persistedStorageVersionHashes.size() > 0 && (self.persistedStorageVersionHashes == oldSelf.persistedStorageVersionHashes || "Unknown" in self.persistedStorageVersionHashes || oldSelf.persistedStorageVersionHashes.all(h, h in self.persistedStorageVersionHashes) || (has(self.currentStorageVersionHash) && self.currentStorageVersionHash != "" && has(oldSelf.currentStorageVersionHash) && oldSelf.currentStorageVersionHash == self.currentStorageVersionHash && self.persistedStorageVersionHashes.all(h, h == self.currentStorageVersionHash))))`,fieldPath=".persistedStorageVersionHashes",message="an entry leaves persistedStorageVersionHashes only when currentStorageVersionHash alone remains, which was current before, after a complete migration; to start over, delete the StorageState"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.epoch) || (has(self.epoch) && self.epoch >= oldSelf.epoch)",fieldPath=".epoch",message="epoch never goes down: migrations of earlier epochs would count again"
type StorageStateStatus struct {
	// persistedStorageVersionHashes are the hashes of all encodings that objects of spec.resource may be stored in.
	// "Unknown" in the list means that there may be others; a list that is empty or missing means the same as ["Unknown"].
	// It is not safe to run an API server that cannot read all of them, or to drop any of their versions. The list shrinks
	// only when a migration is proven complete, and then to the current one alone. Lists of other controllers repeat
	// entries, without limit: a controller removes the repetitions in its first write, and what is too long even so becomes
	// ["Unknown", currentStorageVersionHash].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=64
	PersistedStorageVersionHashes []string `json:"persistedStorageVersionHashes,omitempty"`
	// currentStorageVersionHash is the hash of the encoding that objects are written in today, as the API servers'
	// discovery documents show it. It is "Unknown" while the servers do not agree on one.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	CurrentStorageVersionHash string `json:"currentStorageVersionHash,omitempty"`
	// lastHeartbeatTime is when a controller last looked at what the servers write, and recorded it here.
	// +optional
	LastHeartbeatTime metav1.Time `json:"lastHeartbeatTime,omitempty,omitzero"`
	// currentEncodingVersion is currentStorageVersionHash in words: the version that has the hash, for example apps/v1, or
	// v1 for the core group; the hash itself where no known version has it; "Unknown" where it says "Unknown".
	// +optional
	// +kubebuilder:validation:MaxLength=317
	CurrentEncodingVersion string `json:"currentEncodingVersion,omitempty"`
	// persistedEncodingVersions are persistedStorageVersionHashes in words, in the same order: for each the version that has
	// the hash, the hash itself where no known version has it, and "Unknown" where it says "Unknown". They are for people:
	// programs use the hashes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=317
	PersistedEncodingVersions []string `json:"persistedEncodingVersions,omitempty"`
	// encodings keeps the version behind every hash that was seen, so that a hash stays readable when its version is
	// served no longer.
	// +optional
	// +listType=map
	// +listMapKey=storageVersionHash
	// +kubebuilder:validation:MaxItems=100
	Encodings []StorageEncoding `json:"encodings,omitempty"`
	// epoch goes up whenever the evidence changed. It starts at 1. A migration proves something about what is stored only
	// in the epoch that it was made for. A state that has a currentStorageVersionHash but no epoch was written by another
	// controller, or while definitions without this field were installed, which removed it. The trigger deletes such a state
	// and creates it anew: counted from 1 in the same state, migrations of earlier epochs would count again.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch,omitempty"`
	// epochStartTime is when the epoch began. A migration proves something only if it began a settle period later, when
	// writes that began before have landed.
	// +optional
	EpochStartTime *metav1.Time `json:"epochStartTime,omitempty"`
	// evidence is what the current encoding was concluded from.
	// +optional
	Evidence *StorageEvidence `json:"evidence,omitempty"`
	// storageSharedWith names the StorageStates of other resources that are the same objects in the same storage, such as
	// events and events.events.k8s.io. One migration serves them all. This is information for people: what ties a shared
	// migration to each of the states is that state's own status.migration.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	StorageSharedWith []string `json:"storageSharedWith,omitempty"`
	// migration is the latest migration of the current epoch. Its name follows from this status, so that creating it
	// again before it is recorded here, after a crash or on an old cache, makes no second one.
	// +optional
	Migration *MigrationReference `json:"migration,omitempty"`
	// backoff says when a migration that failed is tried again. It goes when one succeeds and when a new epoch begins.
	// +optional
	Backoff *MigrationBackoff `json:"backoff,omitempty"`
	// lastHandledRetry is the value of the annotation migration.k8s.io/retry that was answered last, cut off after 253
	// characters. Any other value of the annotation asks for another attempt, whatever backoff says.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	LastHandledRetry string `json:"lastHandledRetry,omitempty"`
	// conditions are the latest observations of the state. Known types are Agreed, Migrated, SafeToRemoveOldVersions and
	// Served.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchMergeKey=type
	// +patchStrategy=merge
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
}

// StorageEncoding is an encoding: its hash and its version.
type StorageEncoding struct {
	// storageVersionHash is the hash of the encoding.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	StorageVersionHash string `json:"storageVersionHash"`
	// encodingVersion is the version of the encoding, for example apps/v1, or v1 for the core group.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	EncodingVersion string `json:"encodingVersion"`
}

// MigrationReference names a StorageVersionMigration.
// +structType=atomic
type MigrationReference struct {
	// name is the name of the migration.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid is the uid of the migration. It is left out until the migration was created.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=128
	UID types.UID `json:"uid,omitempty"`
}

// MigrationBackoff says when a migration that failed is tried again.
type MigrationBackoff struct {
	// failures is how many migrations failed in a row.
	// +required
	// +kubebuilder:validation:Minimum=1
	Failures int32 `json:"failures"`
	// lastFailureTime is when the last one failed.
	// +required
	LastFailureTime metav1.Time `json:"lastFailureTime"`
	// lastFailedMigration is the last one that failed.
	// +optional
	LastFailedMigration *MigrationReference `json:"lastFailedMigration,omitempty"`
	// nextAttemptTime is the earliest time at which another one is created. It is left out if waiting alone is no use, and
	// an administrator or a new epoch has to ask for another one.
	// +optional
	NextAttemptTime *metav1.Time `json:"nextAttemptTime,omitempty"`
}
