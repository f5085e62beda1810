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

// Unknown takes the place of a storage version hash if the encoding is not known.
//
// In status.persistedStorageVersionHashes of a StorageState it means that objects may be stored in any encoding. As
// status.currentStorageVersionHash it means that the servers do not agree on one.
const Unknown = "Unknown"

// Limits of lists and strings in the CustomResourceDefinitions. A controller truncates what it writes to these limits,
// because otherwise the API server refuses the whole write. Lengths are in characters, not in bytes.
const (
	// MaxDeniedObjects is the most entries of status.deniedObjects. The full number is in status.progress.denied.
	MaxDeniedObjects = 100
	// MaxDeniedObjectNameLength is the length of the name of a denied object. An object with a longer one is counted only.
	MaxDeniedObjectNameLength = 1024
	// MaxDeniedObjectReasonLength is the length of the reason of a denied object.
	MaxDeniedObjectReasonLength = 256
	// MaxDeniedObjectMessageLength is the length of the message of a denied object.
	MaxDeniedObjectMessageLength = 1024

	// MaxPersistedStorageVersionHashes is the most entries of status.persistedStorageVersionHashes and
	// status.persistedEncodingVersions. A controller replaces a longer list by Unknown and the current hash.
	MaxPersistedStorageVersionHashes = 100
	// MaxEncodings is the most entries of status.encodings.
	MaxEncodings = 100
	// MaxStorageSharedWith is the most entries of status.storageSharedWith.
	MaxStorageSharedWith = 16
	// MaxConditionMessageLength is the length of the message of a condition.
	MaxConditionMessageLength = 32768
	// MaxRetryLength is the length of status.lastHandledRetry.
	MaxRetryLength = 253

	// MaxManagedFieldsVersions is the most entries of status.managedFieldsVersions.
	MaxManagedFieldsVersions = 32
	// MaxEvidenceServers is the most servers of an evidence.
	MaxEvidenceServers = 256
	// MaxEvidenceEndpoints is the most endpoints of an evidence.
	MaxEvidenceEndpoints = 256
	// MaxEvidenceStoredVersions is the most stored versions of a CustomResourceDefinition in an evidence.
	MaxEvidenceStoredVersions = 256
)

// Annotations that administrators and the kubectl plugin set on a StorageState.
const (
	// PausedAnnotation keeps the trigger from creating migrations of the resource, like spec.paused. Every value pauses
	// the resource, except those that strconv.ParseBool reads as false.
	PausedAnnotation = "migration.k8s.io/paused"
	// RetryAnnotation requests another attempt at once, like spec.retryToken. Its value is opaque and is truncated to
	// MaxRetryLength.
	RetryAnnotation = "migration.k8s.io/retry"
)

// Types of the conditions of a StorageVersionMigration. If a migration has none of them, the migrator has not seen it
// yet. The migrator keeps at most one of them True, and does not change a migration that is Succeeded or Failed. The
// API server enforces neither.
const (
	// MigrationWaiting means that nothing is rewritten now. Its reason and message say what the migration waits for.
	MigrationWaiting MigrationConditionType = "Waiting"
	// MigrationRunning means that objects are being rewritten. Its reason and message say what fails, if anything.
	MigrationRunning MigrationConditionType = "Running"
	// MigrationSucceeded means that every object is stored in the target encoding or was deleted.
	MigrationSucceeded MigrationConditionType = "Succeeded"
	// MigrationFailed means that the migration ended without success. Its reason and message say why.
	MigrationFailed MigrationConditionType = "Failed"
)

// MigrationConditionTypes are the types of the conditions that the migrator writes. Others belong to other programs.
var MigrationConditionTypes = []MigrationConditionType{
	MigrationWaiting, MigrationRunning, MigrationSucceeded, MigrationFailed,
}

// Reasons of the Waiting condition. MigrationReasonResourceNotServed is one, too.
const (
	// MigrationReasonQueued: the migration may start, and waits for others to end. The flag --concurrent-migrations says
	// how many run at a time.
	MigrationReasonQueued = "Queued"
	// MigrationReasonSuspended: spec.suspend is true.
	MigrationReasonSuspended = "Suspended"
	// MigrationReasonAwaitingAgreement: the servers do not agree on an encoding yet, or not for long enough.
	MigrationReasonAwaitingAgreement = "AwaitingAgreement"
	// MigrationReasonServersUnseen: at least one server that may write could not be observed.
	MigrationReasonServersUnseen = "ServersUnseen"
	// MigrationReasonAwaitingStorageSpace: rewrites have enlarged etcd's database as far as they may, and wait until etcd
	// is compacted. Or no API server reports how large it is.
	MigrationReasonAwaitingStorageSpace = "AwaitingStorageSpace"
	// MigrationReasonAwaitingInTree: kube-controller-manager migrates the resource, and this migration goes on after it.
	MigrationReasonAwaitingInTree = "AwaitingInTreeMigration"
	// MigrationReasonObjectsExpire: the API servers delete the objects after some time, and the migration waits for that
	// instead of rewriting them.
	MigrationReasonObjectsExpire = "ObjectsExpire"
)

// Reasons of the Running condition. While the migration waits, the reason is Waiting.
const (
	// MigrationReasonRewriting: objects are being listed and rewritten.
	MigrationReasonRewriting = "Rewriting"
	// MigrationReasonRetrying: requests fail with transient errors, and are tried again. It is a reason of the Waiting
	// condition, too, for requests that are not about objects.
	MigrationReasonRetrying = "RetryingTransientErrors"
	// MigrationReasonNoProgress: requests fail, and no object got an outcome for a long time. Migrations that wait go
	// first.
	MigrationReasonNoProgress = "NoProgress"
	// MigrationReasonRetryingDenied: everything else is done, and the migrator tries the denied objects again.
	MigrationReasonRetryingDenied = "RetryingDeniedObjects"
	// MigrationReasonFinished: the migration has ended. The other conditions say how.
	MigrationReasonFinished = "Finished"
)

// Reasons of the Succeeded and Failed conditions.
const (
	// MigrationReasonAllObjectsMigrated: every object is stored in the target encoding or was deleted.
	MigrationReasonAllObjectsMigrated = "AllObjectsMigrated"
	// MigrationReasonObjectsDenied: some objects cannot be rewritten. All others are done.
	MigrationReasonObjectsDenied = "ObjectsDenied"
	// MigrationReasonInvalidResource: spec.resource is a subresource, or its server does not store it.
	MigrationReasonInvalidResource = "InvalidResource"
	// MigrationReasonResourceNotServed: no server serves the resource.
	MigrationReasonResourceNotServed = "ResourceNotServed"
	// MigrationReasonVersionNotServed: the resource is served, but not at spec.resource.version; or it is a custom
	// resource whose storage version is not served, and no webhook converts its objects.
	MigrationReasonVersionNotServed = "VersionNotServed"
	// MigrationReasonVerbsNotSupported: the resource cannot be listed, or cannot be written.
	MigrationReasonVerbsNotSupported = "VerbsNotSupported"
	// MigrationReasonListRefused: the API server refuses to list the objects, for example because a permission is missing.
	MigrationReasonListRefused = "ListRefused"
	// MigrationReasonRewritesRefused: the controller must not write any object of the resource, because a permission is
	// missing.
	MigrationReasonRewritesRefused = "RewritesRefused"
	// MigrationReasonRewritesChangeObjects: a mutating webhook or policy changes objects when they are rewritten, or all
	// would lose fields.
	MigrationReasonRewritesChangeObjects = "RewritesChangeObjects"
	// MigrationReasonTargetChanged: the servers now write another encoding than the target.
	MigrationReasonTargetChanged = "TargetChanged"
	// MigrationReasonAgreementLost: the servers did not agree on the target all the time from the start to the end.
	MigrationReasonAgreementLost = "AgreementLost"
)

// RetryIsVain reports whether after a failure with that reason another migration would fail for the same reason, until
// somebody changes something.
func RetryIsVain(reason string) bool {
	return reason == MigrationReasonInvalidResource || reason == MigrationReasonVerbsNotSupported
}

// Types of the conditions of a StorageState.
const (
	// StorageStateAgreed means that all servers were observed, and all write the resource in the current encoding.
	StorageStateAgreed = "Agreed"
	// StorageStateMigrated means that every object is stored in the current encoding. While it is not True, its reason and
	// message say what is being done about it, or why nothing is done.
	StorageStateMigrated = "Migrated"
	// StorageStateSafeToRemoveOldVersions means that a server needs only the current version to read what is stored, so an
	// upgrade, a downgrade or a change of a CustomResourceDefinition may drop all others. If metadata.managedFields name
	// such a version, the message says so: then dropping it has other consequences. While it is not True, its reason and
	// message are those of Migrated, or say what else prevents it.
	StorageStateSafeToRemoveOldVersions = "SafeToRemoveOldVersions"
	// StorageStateManagedFieldsServed means that the managedFields of no object name a version that is not served. The
	// condition exists for custom resources, if the feature gate CRDManagedFieldsCleaning is on.
	StorageStateManagedFieldsServed = "ManagedFieldsServed"
	// StorageStateServed means that the resource is served. Objects of a resource that is not served may still be stored.
	StorageStateServed = "Served"
)

// Reasons of the conditions Agreed and Served.
const (
	// StateReasonServersAgree: all servers were observed and write the same encoding.
	StateReasonServersAgree = "ServersAgree"
	// StateReasonServersDisagree: servers write different encodings, for example during an upgrade.
	StateReasonServersDisagree = "ServersDisagree"
	// StateReasonServersUnseen: at least one server that may write could not be observed.
	StateReasonServersUnseen = "ServersUnseen"
	// StateReasonSettling: the servers agree, but have not agreed for the settle period yet.
	StateReasonSettling = "Settling"
	// StateReasonDiscoveryFailed: reading what the servers serve failed, or reading what tells of changes. This says
	// nothing about the resource.
	StateReasonDiscoveryFailed = "DiscoveryFailed"
	// StateReasonServed: the resource is served.
	StateReasonServed = "Served"
	// StateReasonNotServed: no server serves the resource, so objects that may still be stored cannot be migrated.
	StateReasonNotServed = "NotServed"
)

// StateReasonOnlyServedVersions is the reason of the condition ManagedFieldsServed when it is True. Its other reasons
// are those of Migrated.
const StateReasonOnlyServedVersions = "OnlyServedVersions"

// Reasons of the conditions Migrated and SafeToRemoveOldVersions, besides StateReasonNotServed.
const (
	// StateReasonOnlyCurrentEncoding: every object is stored in the current encoding.
	StateReasonOnlyCurrentEncoding = "OnlyCurrentEncodingPersisted"
	// StateReasonAwaitingAgreement: a migration can start only when the servers agree.
	StateReasonAwaitingAgreement = "AwaitingAgreement"
	// StateReasonMigrationQueued: a migration is due and will be created, or exists and waits for its turn.
	StateReasonMigrationQueued = "MigrationQueued"
	// StateReasonMigrationRunning: a migration has started and has not ended. It may wait for something by now.
	StateReasonMigrationRunning = "MigrationRunning"
	// StateReasonMigrationFailed: the last migration failed. status.backoff says when the next one is due.
	StateReasonMigrationFailed = "MigrationFailed"
	// StateReasonSoaking: a migration is due when the soak period is over.
	StateReasonSoaking = "Soaking"
	// StateReasonMigrationSuspended: a migration exists, and somebody has suspended it.
	StateReasonMigrationSuspended = "MigrationSuspended"
	// StateReasonPaused: a migration is due, but an administrator has paused the resource.
	StateReasonPaused = "Paused"
	// StateReasonNotSelected: a migration is due, but --auto-migrate does not select the resource.
	StateReasonNotSelected = "NotSelectedForMigration"
	// StateReasonObjectsExpire: the objects expire, and a rewrite would prolong their life.
	StateReasonObjectsExpire = "ObjectsExpire"
	// StateReasonStoredVersionsNotPruned: status.storedVersions of the CustomResourceDefinition still names old versions.
	StateReasonStoredVersionsNotPruned = "StoredVersionsNotPruned"
)
