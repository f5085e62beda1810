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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// +genclient
// +genclient:nonNamespaced
// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object
// +kubebuilder:resource:scope=Cluster,shortName=svm,categories=storage-migration
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=".spec.resource.group"
// +kubebuilder:selectablefield:JSONPath=".spec.resource.resource"
// +kubebuilder:storageversion
// +kubebuilder:metadata:annotations="api-approved.kubernetes.io=unapproved, experimental-only"
// +kubebuilder:printcolumn:name="Resource",type=string,JSONPath=".spec.resource.resource",description="The resource to migrate."
// +kubebuilder:printcolumn:name="Group",type=string,JSONPath=".spec.resource.group",description="The API group of the resource; empty for the core group."
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=".status.target.encodingVersion",description="The version in which every object will be stored."
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=".status.conditions[?(@.status==\"True\")].type",description="Waiting, Running, Succeeded or Failed. It is empty until the migrator has seen the migration."
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=".status.conditions[?(@.status==\"True\")].reason",description="Why the migration is in that state."
// +kubebuilder:printcolumn:name="Done%",type=integer,JSONPath=".status.progress.percentComplete",description="How many of the objects have an outcome, in percent of the estimated total."
// +kubebuilder:printcolumn:name="Denied",type=integer,JSONPath=".status.progress.denied",description="How many objects cannot be rewritten. status.deniedObjects names them."
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp"
// +kubebuilder:printcolumn:name="Processed",type=integer,priority=1,JSONPath=".status.progress.processed",description="How many objects have an outcome."
// +kubebuilder:printcolumn:name="Total",type=integer,priority=1,JSONPath=".status.progress.estimatedTotal",description="The estimated number of objects to migrate."
// +kubebuilder:printcolumn:name="Rewritten",type=integer,priority=1,JSONPath=".status.progress.rewritten",description="How many objects the migration wrote."
// +kubebuilder:printcolumn:name="Per-Minute",type=integer,priority=1,JSONPath=".status.progress.objectsPerMinute",description="How many objects got an outcome per minute, recently."
// +kubebuilder:printcolumn:name="Estimated-End",type=string,priority=1,JSONPath=".status.estimatedCompletionTime",description="When the migration will end if it continues at this rate."
// +kubebuilder:printcolumn:name="Epoch",type=integer,priority=1,JSONPath=".status.target.epoch",description="The epoch of the StorageState that the migration belongs to."
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=".status.conditions[?(@.status==\"True\")].message",description="Details about the state."
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule=`has(self.spec) || (oldSelf.hasValue() && (!has(oldSelf.value().spec) || !has(oldSelf.value().spec.resource) || !has(oldSelf.value().spec.resource.resource) || oldSelf.value().spec.resource.resource == ""))`,message="spec.resource is required: name the resource whose stored objects to migrate, for example group: apps, resource: deployments"

// StorageVersionMigration requests that every stored object of one resource is rewritten in the encoding that the API
// servers write now, and shows the progress. It runs once. To migrate again, create another one. The migrator deletes
// it some days after its end: --finished-migration-ttl says when.
type StorageVersionMigration struct {
	metav1.TypeMeta `json:",inline"`
	// Standard object metadata. The name has no meaning. The trigger uses names that start with the resource and its
	// group. People may use generateName.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// spec says what to migrate.
	// +optional
	Spec StorageVersionMigrationSpec `json:"spec,omitempty,omitzero"`
	// status says how far the migration is. Controllers write it.
	// +optional
	Status StorageVersionMigrationStatus `json:"status,omitempty,omitzero"`
}

// +k8s:deepcopy-gen:interfaces=k8s.io/apimachinery/pkg/runtime.Object

// StorageVersionMigrationList is a list of StorageVersionMigrations.
type StorageVersionMigrationList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	// items is the list of StorageVersionMigrations.
	Items []StorageVersionMigration `json:"items"`
}

// StorageVersionMigrationSpec says what to migrate.
// +kubebuilder:validation:XValidation:rule="has(self.target) == has(oldSelf.target) && (!has(self.target) || self.target == oldSelf.target)",fieldPath=".target",message="the target of a migration cannot be changed: create another StorageVersionMigration"
type StorageVersionMigrationSpec struct {
	// resource is the resource to migrate. It cannot be changed: to migrate another resource, create another
	// StorageVersionMigration.
	// +required
	Resource GroupVersionResource `json:"resource"`
	// continueToken is ignored. It exists for compatibility. A token of unknown origin proves nothing about the objects
	// before it, so a migration always starts with the first object. The progress is in status.progress.
	// +optional
	ContinueToken string `json:"continueToken,omitempty"`
	// target is the encoding in which the objects are to be stored. The trigger sets it. Leave it out when you create a
	// migration yourself; the migrator then uses the encoding that is current when the migration starts. A migration
	// fails if the servers do not write its target, or stop writing it. The target cannot be changed. It is only a
	// request: a success proves something only if status.target is set.
	// +optional
	Target *MigrationTarget `json:"target,omitempty"`
	// suspend stops the migration. It keeps its progress, and goes on from there when suspend is false again. If a new
	// epoch has begun by then, the trigger replaces a migration that it created, and one that a person created fails. The
	// trigger creates no other migration of the resource while its own is suspended. To keep it from creating any, set
	// spec.paused of the StorageState.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// GroupVersionResource names a resource and the version for requests. The API server checks the names at creation.
// After that they cannot be changed.
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule="oldSelf.hasValue() || (has(self.resource) && self.resource.size() > 0)",fieldPath=".resource",message="name the resource to migrate by its plural, for example deployments"
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule="oldSelf.hasValue() || !has(self.resource) || !self.resource.contains('/')",fieldPath=".resource",message="a subresource is stored with its resource: name the resource alone, without the slash and what follows it"
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule="oldSelf.hasValue() || !has(self.resource) || self.resource.contains('/') || self.resource.matches('^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$')",fieldPath=".resource",message="use the plural name in lower case, for example deployments, neither the kind nor a name with the group: the group has a field of its own"
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule="oldSelf.hasValue() || ((!has(self.group) || !self.group.contains('/')) && (!has(self.version) || !self.version.contains('/')))",message="give group and version each in its own field, for example group: apps, version: v1"
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule="oldSelf.hasValue() || !has(self.group) || self.group.size() == 0 || self.group.contains('/') || self.group.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",fieldPath=".group",message="use the name of the API group alone and in lower case, for example apps, or leave it empty for the core group"
// +kubebuilder:validation:XValidation:optionalOldSelf=true,rule="oldSelf.hasValue() || !has(self.version) || self.version.size() == 0 || self.version.contains('/') || self.version.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",fieldPath=".version",message="use the name of a version, for example v1, or leave it empty"
// +kubebuilder:validation:XValidation:rule=`(has(self.group) ? self.group : "") == (has(oldSelf.group) ? oldSelf.group : "") && (has(self.version) ? self.version : "") == (has(oldSelf.version) ? oldSelf.version : "") && (has(self.resource) ? self.resource : "") == (has(oldSelf.resource) ? oldSelf.resource : "")`,message="the resource of a migration cannot be changed: create another StorageVersionMigration"
// +structType=atomic
type GroupVersionResource struct {
	// group is the API group of the resource. Leave it out, or empty, for the core group.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group,omitempty"`
	// version is the version that the migrator uses to list and to write the objects. If it is empty, the migrator chooses
	// a served one, preferably that of the target. It has no influence on the encoding in which objects are stored.
	// Resources that are not built-in are written at their storage version, because at another one objects could lose
	// fields. If the storage version of a custom resource is not served, and a webhook converts the objects, they are
	// written at another served version.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Version string `json:"version,omitempty"`
	// resource is the plural name of the resource in lower case, for example deployments. It cannot be a subresource,
	// because subresources have no storage of their own. A rule requires it at creation. The schema does not require it,
	// because old objects may lack it.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Resource string `json:"resource,omitempty"`
}

// MigrationTarget is the encoding in which a migration stores every object, and the epoch for which it was chosen.
// +kubebuilder:validation:XValidation:rule="has(self.epoch) == has(self.storageStateUID)",message="set epoch and storageStateUID together or leave both out: an epoch counts within one StorageState object only"
// +structType=atomic
type MigrationTarget struct {
	// storageVersionHash is the hash of the encoding, as in status.currentStorageVersionHash of the StorageState.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="!self.matches('^([-a-z0-9.]+/)?v[0-9][a-z0-9]*$')",message="this is a version: give its hash, as in status.currentStorageVersionHash of the StorageState, or leave target out"
	// +kubebuilder:validation:XValidation:rule="self != 'Unknown'",message="a migration needs one encoding as its target: wait until the servers agree, or leave target out"
	StorageVersionHash string `json:"storageVersionHash"`
	// encodingVersion is the version that has storageVersionHash, for example apps/v1, or v1 for the core group. It is the
	// hash itself if no known version has it.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	EncodingVersion string `json:"encodingVersion,omitempty"`
	// epoch is status.epoch of the StorageState when the target was chosen. Only a migration of the current epoch proves
	// anything about what is stored.
	// +optional
	// +kubebuilder:validation:Minimum=1
	Epoch *int64 `json:"epoch,omitempty"`
	// storageStateUID is the uid of the StorageState that has the epoch. Without it the epoch would be ambiguous, because
	// a StorageState that was deleted and created again counts its epochs from 1.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	StorageStateUID types.UID `json:"storageStateUID,omitempty"`
}

// StorageVersionMigrationStatus says how far a migration is.
type StorageVersionMigrationStatus struct {
	// conditions are the current conditions of the migration. Known types are Waiting, Running, Succeeded and Failed. The
	// migrator keeps at most one of them True. The API server does not enforce that.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +patchMergeKey=type
	// +patchStrategy=merge
	Conditions []MigrationCondition `json:"conditions,omitempty" patchStrategy:"merge" patchMergeKey:"type"`
	// target is the encoding in which this migration stores every object: spec.target, or the encoding that was current at
	// the start. The migrator sets it once, before it rewrites the first object. A success proves something about what is
	// stored only if this is set: a migrator that does not set it has not checked what the servers write.
	// +optional
	Target *MigrationTarget `json:"target,omitempty"`
	// evidence is what showed, at the start, that the servers agree on the target. The migration succeeds only if
	// everything that was observed from then to its end shows this encoding alone.
	// +optional
	Evidence *StorageEvidence `json:"evidence,omitempty"`
	// baselineResourceVersion is the resource version of the first list of the migration. Whatever was written after it
	// was written in the target encoding. It is opaque: not all servers have resource versions that can be compared.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	BaselineResourceVersion string `json:"baselineResourceVersion,omitempty"`
	// progress counts the objects by outcome, and says where to continue.
	// +optional
	Progress *MigrationProgress `json:"progress,omitempty"`
	// managedFieldsVersions counts, by version of a custom resource, the objects whose metadata.managedFields still name
	// that version after this migration. It counts an object when it is listed.
	// The API server refuses server-side apply of an object whose managedFields name a version that has left the
	// definition. At most 32 versions are listed.
	// +optional
	// +listType=map
	// +listMapKey=version
	// +kubebuilder:validation:MaxItems=32
	ManagedFieldsVersions []ManagedFieldsVersion `json:"managedFieldsVersions,omitempty"`
	// deniedObjects names objects that the API server refuses to rewrite, or has failed to rewrite for long, and custom
	// resources that a rewrite would change, at most 100 of them. progress.denied has the number of all.
	// +optional
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=100
	DeniedObjects []DeniedObject `json:"deniedObjects,omitempty"`
	// startTime is when the migrator first started to work on the migration.
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`
	// sweepCompletionTime is when every listed object had an outcome. The work that remains then, such as the second try
	// of denied objects, does not list all objects again, not even after a restart of the migrator. The exception is a
	// migration whose progress.denied is greater than the number of deniedObjects: its second try lists them again.
	// +optional
	SweepCompletionTime *metav1.Time `json:"sweepCompletionTime,omitempty"`
	// estimatedCompletionTime is when the migration will end if it continues at the present rate.
	// +optional
	EstimatedCompletionTime *metav1.Time `json:"estimatedCompletionTime,omitempty"`
	// completionTime is when the migration succeeded or failed.
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`
}

// MigrationConditionType is the type of a condition of a StorageVersionMigration.
type MigrationConditionType string

// MigrationCondition is one condition of a migration.
type MigrationCondition struct {
	// type is the type of the condition: Waiting, Running, Succeeded or Failed.
	// +required
	Type MigrationConditionType `json:"type"`
	// status is True, False or Unknown.
	// +required
	Status corev1.ConditionStatus `json:"status"`
	// lastUpdateTime is when the status, the reason or the message last changed.
	// +optional
	LastUpdateTime metav1.Time `json:"lastUpdateTime,omitempty,omitzero"`
	// reason says in one word why the condition has its status now. It may change while the status stays.
	// +optional
	Reason string `json:"reason,omitempty"`
	// message is a text for people with details about the reason.
	// +optional
	Message string `json:"message,omitempty"`
}

// MigrationProgress counts the objects of a migration by outcome. Each processed object has exactly one outcome, so
// processed is the sum of rewritten, alreadyCurrent, writtenByOthers, gone and denied. The migrator saves the counters
// together with the continue token, after a chunk and at most twice a second.
type MigrationProgress struct {
	// continueToken is the list token of the next chunk. It is empty before the first chunk and after the last one. After
	// the last one, status.sweepCompletionTime is set.
	// +optional
	ContinueToken string `json:"continueToken,omitempty"`
	// estimatedTotal is about how many objects there are to migrate. It is empty if the API server does not say. If an
	// earlier migration has migrated all objects but the denied ones, only these are counted.
	// +optional
	// +kubebuilder:validation:Minimum=0
	EstimatedTotal *int64 `json:"estimatedTotal,omitempty"`
	// percentComplete is how many of the estimated total have an outcome, in percent, rounded down. It is 100 only if
	// every listed object has one. It is empty while the total is not known.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	PercentComplete *int32 `json:"percentComplete,omitempty"`
	// objectsPerMinute is how many objects got their outcome per minute, recently.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ObjectsPerMinute *int64 `json:"objectsPerMinute,omitempty"`
	// processed is how many objects have an outcome.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Processed int64 `json:"processed"`
	// rewritten is how many objects this migration wrote.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Rewritten int64 `json:"rewritten"`
	// alreadyCurrent is how many objects were already stored in the target encoding. They were not written.
	// +optional
	// +kubebuilder:validation:Minimum=0
	AlreadyCurrent int64 `json:"alreadyCurrent"`
	// writtenByOthers is how many objects somebody else wrote during the migration. Such a write uses the target encoding
	// too. It also counts objects that this migration wrote in a request whose answer it lost, for example because its
	// process was killed.
	// +optional
	// +kubebuilder:validation:Minimum=0
	WrittenByOthers int64 `json:"writtenByOthers"`
	// gone is how many objects were deleted during the migration.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Gone int64 `json:"gone"`
	// denied is how many objects the API server refuses to rewrite, or has failed to rewrite for long, and how many a
	// rewrite would change. status.deniedObjects names them.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Denied int64 `json:"denied"`
	// retried is how many requests were sent again after a transient error. It counts requests, not objects, and is not an
	// outcome.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Retried int64 `json:"retried"`
}

// DeniedObject names an object that cannot be rewritten, and says why.
type DeniedObject struct {
	// namespace is the namespace of the object. It is empty if the object has none.
	// +optional
	// +default=""
	// +kubebuilder:validation:MaxLength=253
	Namespace string `json:"namespace,omitempty"`
	// name is the name of the object.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Name string `json:"name"`
	// uid is the uid of the object.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=128
	UID types.UID `json:"uid,omitempty"`
	// reason is the reason of the API server's answer, for example Forbidden or Invalid. It is empty if the migrator
	// itself refuses, because a rewrite would change the object.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=256
	Reason metav1.StatusReason `json:"reason,omitempty"`
	// message is the message of the API server's answer, or why the migrator refuses, truncated to 1024 characters.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
}
