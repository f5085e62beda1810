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
// +kubebuilder:metadata:annotations="api-approved.kubernetes.io=unapproved, experimental-only"
// +kubebuilder:printcolumn:name="Current",type=string,JSONPath=".status.currentEncodingVersion",description="The version in which objects are written now."
// +kubebuilder:printcolumn:name="Persisted",type=string,JSONPath=".status.persistedEncodingVersions",description="The versions in which objects may be stored."
// +kubebuilder:printcolumn:name="Agreed",type=string,JSONPath=".status.conditions[?(@.type==\"Agreed\")].status",description="Whether all servers write the same encoding."
// +kubebuilder:printcolumn:name="Migrated",type=string,JSONPath=".status.conditions[?(@.type==\"Migrated\")].status",description="Whether every object is stored in the current encoding."
// +kubebuilder:printcolumn:name="Safe",type=string,JSONPath=".status.conditions[?(@.type==\"SafeToRemoveOldVersions\")].status",description="Whether servers need only the current version to read what is stored."
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=".status.conditions[?(@.type==\"SafeToRemoveOldVersions\")].reason",description="Why servers need only the current version, or why they need others."
// +kubebuilder:printcolumn:name="Heartbeat",type=date,JSONPath=".status.lastHeartbeatTime",description="How long ago the state was last confirmed."
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Current-Hash",type=string,priority=1,JSONPath=".status.currentStorageVersionHash",description="The hash of the current encoding."
// +kubebuilder:printcolumn:name="Persisted-Hashes",type=string,priority=1,JSONPath=".status.persistedStorageVersionHashes",description="The hashes of the encodings in which objects may be stored."
// +kubebuilder:printcolumn:name="Source",type=string,priority=1,JSONPath=".status.evidence.source",description="Where the evidence comes from."
// +kubebuilder:printcolumn:name="Epoch",type=integer,priority=1,JSONPath=".status.epoch",description="Counts the times at which servers may have begun to write another encoding."
// +kubebuilder:printcolumn:name="Migration",type=string,priority=1,JSONPath=".status.migration.name",description="The latest migration that the trigger created in the current epoch."
// +kubebuilder:printcolumn:name="Failures",type=integer,priority=1,JSONPath=".status.backoff.failures",description="How many migrations failed in a row."
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=".status.conditions[?(@.type==\"SafeToRemoveOldVersions\")].message",description="Details about the reason."
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule=`has(self.spec) || (oldSelf.hasValue() && (!has(oldSelf.value().spec) || !has(oldSelf.value().spec.resource) || !has(oldSelf.value().spec.resource.resource) || oldSelf.value().spec.resource.resource == ""))`,message="spec.resource is required: name the resource that this StorageState is about, for example group: apps, resource: deployments"
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule=`(oldSelf.hasValue() && has(oldSelf.value().spec)) || !has(self.spec) || !has(self.spec.resource) || self.metadata.name == (has(self.spec.resource.resource) ? self.spec.resource.resource : "") + (has(self.spec.resource.group) && self.spec.resource.group != "" ? "." + self.spec.resource.group : "")`,message="metadata.name must be <resource>.<group> of spec.resource, or <resource> alone for the core group"
// +kubebuilder:validation:XValidation:rule="has(self.status) || !has(oldSelf.status) || (!has(oldSelf.status.epoch) && (!has(oldSelf.status.persistedStorageVersionHashes) || oldSelf.status.persistedStorageVersionHashes.size() == 0))",message="status cannot be removed while it has persistedStorageVersionHashes or an epoch: to start over, delete the StorageState"

// StorageState says, for one resource, in which encodings its objects may be stored and which encoding the API servers
// write now. As long as it lists an old encoding, every server must be able to read that encoding.
type StorageState struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata. The name is <resource>.<group> of spec.resource, or <resource> alone for the core group.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec names the resource, and says what administrators want of its migrations.
	// +optional
	Spec StorageStateSpec `json:"spec,omitempty,omitzero"`
	// status says what may be stored. Controllers write it.
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

// StorageStateSpec names the resource of a StorageState, and says what administrators want of its migrations.
type StorageStateSpec struct {
	// resource is the resource that this StorageState is about. It cannot be changed.
	// +required
	Resource GroupResource `json:"resource,omitempty,omitzero"`
	// paused keeps the trigger from creating migrations of the resource. The trigger still observes the resource, and a
	// migration that exists goes on. The annotation migration.k8s.io/paused does the same.
	// +optional
	Paused bool `json:"paused,omitempty"`
	// retryToken requests another attempt after a failed migration at once, whatever status.backoff says. Any value other
	// than status.lastHandledRetry is a new request, for example the present time. Nobody needs to remove it. It starts
	// nothing if no migration has failed, and while something else holds migrations back, such as paused. The annotation
	// migration.k8s.io/retry does the same. If both are set, this field counts.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	RetryToken string `json:"retryToken,omitempty"`
	// soakSeconds is how long the servers must have written the current encoding before the trigger creates a migration to
	// it. A storage version can be rolled back during this time without a second migration. If it is not set, the flag
	// --soak-period of the manager counts; 0 means no wait. A migration that a person creates does not wait for it.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=31536000
	SoakSeconds *int64 `json:"soakSeconds,omitempty"`
}

// GroupResource names a resource, in all its versions. The API server checks the names at creation. After that they
// cannot be changed.
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule="oldSelf.hasValue() || (has(self.resource) && self.resource.size() > 0)",fieldPath=".resource",message="name the resource by its plural, for example deployments"
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule="oldSelf.hasValue() || !has(self.resource) || !self.resource.contains('/')",fieldPath=".resource",message="a subresource is stored with its resource: name the resource alone, without the slash and what follows it"
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule="oldSelf.hasValue() || !has(self.resource) || self.resource.contains('/') || self.resource.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$')",fieldPath=".resource",message="use the plural name in lower case, for example deployments, neither the kind nor a name with the group: the group has a field of its own"
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule="oldSelf.hasValue() || !has(self.group) || self.group.size() == 0 || self.group.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",fieldPath=".group",message="use the name of the API group alone and in lower case, for example apps, or leave it empty for the core group"
// +kubebuilder:validation:XValidation:rule=`(has(self.group) ? self.group : "") == (has(oldSelf.group) ? oldSelf.group : "") && (has(self.resource) ? self.resource : "") == (has(oldSelf.resource) ? oldSelf.resource : "")`,message="the resource of a StorageState cannot be changed: delete this StorageState and create another one"
// +structType=atomic
type GroupResource struct {
	// group is the API group of the resource. Leave it out, or empty, for the core group.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group,omitempty"`
	// resource is the plural name of the resource in lower case, for example deployments. A rule requires it at creation.
	// The schema does not require it, because old objects may lack it.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Resource string `json:"resource,omitempty"`
}

// StorageStateName returns the name of the StorageState of the resource.
func (r GroupResource) StorageStateName() string {
	if r.Group == "" {
		return r.Resource
	}
	return r.Resource + "." + r.Group
}

// StorageStateStatus says what may be stored.
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule=`!has(self.currentStorageVersionHash) || self.currentStorageVersionHash in ["", "Unknown"] || (has(self.persistedStorageVersionHashes) && self.persistedStorageVersionHashes.exists(h, h == self.currentStorageVersionHash || h == "Unknown")) || (oldSelf.hasValue() && has(oldSelf.value().currentStorageVersionHash) && oldSelf.value().currentStorageVersionHash == self.currentStorageVersionHash && !(has(oldSelf.value().persistedStorageVersionHashes) && oldSelf.value().persistedStorageVersionHashes.exists(h, h == self.currentStorageVersionHash || h == "Unknown")))`,fieldPath=".persistedStorageVersionHashes",message="persistedStorageVersionHashes must contain currentStorageVersionHash, or Unknown: objects are written in that encoding now"
// +kubebuilder:validation:XValidation:rule=`!has(oldSelf.persistedStorageVersionHashes) || oldSelf.persistedStorageVersionHashes.size() == 0 || (has(self.persistedStorageVersionHashes) && self.persistedStorageVersionHashes.size() > 0 && (self.persistedStorageVersionHashes == oldSelf.persistedStorageVersionHashes || "Unknown" in self.persistedStorageVersionHashes || oldSelf.persistedStorageVersionHashes.all(h, h in self.persistedStorageVersionHashes) || (has(self.currentStorageVersionHash) && self.currentStorageVersionHash != "" && has(oldSelf.currentStorageVersionHash) && oldSelf.currentStorageVersionHash == self.currentStorageVersionHash && self.persistedStorageVersionHashes.all(h, h == self.currentStorageVersionHash))))`,fieldPath=".persistedStorageVersionHashes",message="an entry leaves persistedStorageVersionHashes only when currentStorageVersionHash alone remains, which was current before, after a complete migration; to start over, delete the StorageState"
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.epoch) || (has(self.epoch) && self.epoch >= oldSelf.epoch)",fieldPath=".epoch",message="epoch never goes down: migrations of earlier epochs would count again"
type StorageStateStatus struct {
	// persistedStorageVersionHashes are the hashes of all encodings in which objects of spec.resource may be stored.
	// "Unknown" in the list means that there may be others. A list that is empty or missing means the same as ["Unknown"].
	// Do not run an API server that cannot read all of them, and do not drop any of their versions. The list shrinks only
	// after a migration that is proven complete, and then only the current hash remains. Other controllers may have
	// repeated entries before this limit was there. The trigger removes the repetitions in its first write. It replaces a
	// list that is still too long by ["Unknown", currentStorageVersionHash].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=64
	PersistedStorageVersionHashes []string `json:"persistedStorageVersionHashes,omitempty"`
	// currentStorageVersionHash is the hash of the encoding in which objects are written now, as in the discovery
	// documents of the API servers. It is "Unknown" while the servers do not agree on one.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	CurrentStorageVersionHash string `json:"currentStorageVersionHash,omitempty"`
	// lastHeartbeatTime is when the trigger last observed what the servers write and recorded it here. The trigger updates
	// it once an hour, and more often where only the age of an observation shows whether to trust it. It does not while
	// something cannot be observed: the condition Agreed says what.
	// +optional
	LastHeartbeatTime metav1.Time `json:"lastHeartbeatTime,omitempty,omitzero"`
	// currentSinceTime is when all servers were first seen to write the current encoding. It is empty while
	// currentStorageVersionHash is "Unknown". A rollback and a new change of the storage version set it anew.
	// +optional
	CurrentSinceTime *metav1.Time `json:"currentSinceTime,omitempty"`
	// currentEncodingVersion is the version that has currentStorageVersionHash, for example apps/v1, or v1 for the core
	// group. It is the hash itself if no known version has it, and "Unknown" if the hash is "Unknown".
	// +optional
	// +kubebuilder:validation:MaxLength=317
	CurrentEncodingVersion string `json:"currentEncodingVersion,omitempty"`
	// persistedEncodingVersions has the version of each entry of persistedStorageVersionHashes, in the same order. It has
	// the hash itself if no known version has it, and "Unknown" for "Unknown". It is for people, and for programs that
	// have to know the version. To compare encodings use the hashes.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=317
	PersistedEncodingVersions []string `json:"persistedEncodingVersions,omitempty"`
	// encodings has the versions of the hashes that were observed, at most 100. So people can still read a hash after its
	// version is not served any more.
	// +optional
	// +listType=map
	// +listMapKey=storageVersionHash
	// +kubebuilder:validation:MaxItems=100
	Encodings []StorageEncoding `json:"encodings,omitempty"`
	// epoch goes up when a server may have written another encoding, or nobody can exclude that. It starts at 1. A
	// migration proves something about what is stored only in the epoch for which it was created. If a state has a
	// currentStorageVersionHash but no epoch, another controller wrote it, or an older CustomResourceDefinition without
	// this field was installed and removed it. The trigger then continues with the time in seconds. If it counted from 1,
	// migrations of earlier epochs would count again.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch,omitempty"`
	// epochStartTime is when the epoch started. A migration proves something only if it started at least one settle period
	// later. By then, all writes that started before the epoch have ended.
	// +optional
	EpochStartTime *metav1.Time `json:"epochStartTime,omitempty"`
	// evidence is what the trigger read when it found the current encoding. After a restart it compares that with what it
	// reads then.
	// +optional
	Evidence *StorageEvidence `json:"evidence,omitempty"`
	// storageSharedWith names the StorageStates of other resources with the same objects in the same storage, for example
	// events and events.events.k8s.io. Each of them has migrations of its own. This field is for people.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=253
	StorageSharedWith []string `json:"storageSharedWith,omitempty"`
	// managedFieldsVersions counts the objects of a custom resource whose metadata.managedFields name a version of it, as
	// the last complete migration found them. Objects may have been applied at any served version since.
	// The API server refuses server-side apply of an object whose managedFields name a version that has left the
	// definition. At most 32 versions are listed.
	// +optional
	// +listType=map
	// +listMapKey=version
	// +kubebuilder:validation:MaxItems=32
	ManagedFieldsVersions []ManagedFieldsVersion `json:"managedFieldsVersions,omitempty"`
	// migration is the latest migration that the trigger created in the current epoch. The name of the next one follows
	// from this status. So after a crash, or with an old cache, the trigger does not create a second one.
	// +optional
	Migration *MigrationReference `json:"migration,omitempty"`
	// backoff says when to try again after a failed migration. It is removed when one succeeds and when a new epoch
	// starts.
	// +optional
	Backoff *MigrationBackoff `json:"backoff,omitempty"`
	// lastHandledRetry is the value of spec.retryToken, or of the annotation migration.k8s.io/retry, that the trigger has
	// handled last, truncated to 253 characters. Any other value requests another attempt at once, whatever backoff says.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	LastHandledRetry string `json:"lastHandledRetry,omitempty"`
	// conditions are the current conditions of the state. Known types are Agreed, Migrated, SafeToRemoveOldVersions,
	// Served and, for custom resources, ManagedFieldsServed. observedGeneration says which spec a condition takes into
	// account.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchMergeKey=type
	// +patchStrategy=merge
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
}

// ManagedFieldsVersion counts the objects whose metadata.managedFields name a version.
type ManagedFieldsVersion struct {
	// version is the name of the version, without the group.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Version string `json:"version"`
	// objects is how many objects name the version. It is zero for a served version that none names.
	// +required
	// +kubebuilder:validation:Minimum=0
	Objects int64 `json:"objects"`
}

// StorageEncoding is an encoding with its hash and its version.
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
	// uid is the uid of the migration.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=128
	UID types.UID `json:"uid,omitempty"`
}

// MigrationBackoff says when to try again after a failed migration.
type MigrationBackoff struct {
	// failures is how many migrations have failed in a row.
	// +required
	// +kubebuilder:validation:Minimum=1
	Failures int32 `json:"failures"`
	// lastFailureTime is when the last of them failed.
	// +required
	LastFailureTime metav1.Time `json:"lastFailureTime"`
	// lastFailedMigration is the last of them.
	// +optional
	LastFailedMigration *MigrationReference `json:"lastFailedMigration,omitempty"`
	// nextAttemptTime is the earliest time at which the trigger creates another migration. It is empty if waiting does not
	// help. Then the trigger creates one in a new epoch, or when an administrator requests it.
	// +optional
	NextAttemptTime *metav1.Time `json:"nextAttemptTime,omitempty"`
}
