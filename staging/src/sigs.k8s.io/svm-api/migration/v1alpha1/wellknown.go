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

// Unknown stands in place of a storage version hash where the encoding is not known.
//
// In status.persistedStorageVersionHashes of a StorageState it means that objects may be stored in any encoding. As
// status.currentStorageVersionHash it means that the servers do not agree on one.
const Unknown = "Unknown"

// Bounds of the lists and strings that a controller fills and the CustomResourceDefinition limits. A controller cuts what
// it writes to these, because the API server refuses the whole write otherwise.
// Lengths are in characters, not bytes.
const (
	// MaxDeniedObjects is the most entries of status.deniedObjects. The full number is in status.progress.denied.
	MaxDeniedObjects = 100
	// MaxDeniedObjectReasonLength is the length of the reason of a denied object.
	MaxDeniedObjectReasonLength = 256
	// MaxDeniedObjectMessageLength is the length of the message of a denied object.
	MaxDeniedObjectMessageLength = 1024

	// MaxPersistedStorageVersionHashes is the most entries of status.persistedStorageVersionHashes and
	// status.persistedEncodingVersions. Hashes that are more than that become Unknown and the current one.
	MaxPersistedStorageVersionHashes = 100
	// MaxEncodings is the most entries of status.encodings.
	MaxEncodings = 100
	// MaxStorageSharedWith is the most entries of status.storageSharedWith.
	MaxStorageSharedWith = 16
	// MaxStateConditionMessageLength is the length of the message of a condition of a StorageState.
	MaxStateConditionMessageLength = 32768
	// MaxRetryLength is the length of status.lastHandledRetry.
	MaxRetryLength = 253

	// MaxEvidenceServers is the most servers of an evidence.
	MaxEvidenceServers = 256
	// MaxEvidenceEndpoints is the most endpoints of an evidence.
	MaxEvidenceEndpoints = 256
	// MaxEvidenceStoredVersions is the most stored versions of a CustomResourceDefinition in an evidence.
	MaxEvidenceStoredVersions = 256
)

// Annotations that administrators and the kubectl plugin set on a StorageState.
const (
	// PausedAnnotation, set to "true", keeps the trigger from creating migrations of the resource. Observing goes on.
	PausedAnnotation = "migration.k8s.io/paused"
	// RetryAnnotation asks for another attempt without waiting. Its value is opaque, and cut off after MaxRetryLength: a
	// value that is not status.lastHandledRetry is a new request. It never needs removing.
	RetryAnnotation = "migration.k8s.io/retry"
)

// Types of the conditions of a StorageVersionMigration. A migration that has none yet waits for its turn. Our controllers
// keep at most one of these True, and leave a migration that is Succeeded or Failed alone; the API server enforces neither.
const (
	// MigrationRunning says that objects are being rewritten. Its reason and message tell what it waits for, if anything.
	MigrationRunning MigrationConditionType = "Running"
	// MigrationSucceeded says that every object is stored in the target encoding or was deleted.
	MigrationSucceeded MigrationConditionType = "Succeeded"
	// MigrationFailed says that the migration ended without that proof. Its reason and message tell why.
	MigrationFailed MigrationConditionType = "Failed"
)

// Reasons of the Running condition.
const (
	// MigrationReasonRewriting: objects are being listed and rewritten.
	MigrationReasonRewriting = "Rewriting"
	// MigrationReasonAwaitingAgreement: the servers do not agree on an encoding yet.
	MigrationReasonAwaitingAgreement = "AwaitingAgreement"
	// MigrationReasonRetrying: requests fail in a way that passes, and are tried again.
	MigrationReasonRetrying = "RetryingTransientErrors"
	// MigrationReasonNoProgress: requests fail, and nothing has come about for long. The migration makes room for others that wait.
	MigrationReasonNoProgress = "NoProgress"
	// MigrationReasonRetryingDenied: all else is done, and the denied objects are tried once more.
	MigrationReasonRetryingDenied = "RetryingDeniedObjects"
	// MigrationReasonFinished: the migration ended; the other conditions tell how.
	MigrationReasonFinished = "Finished"
)

// Reasons of the Succeeded and Failed conditions.
const (
	// MigrationReasonAllObjectsMigrated: every object is stored in the target encoding or was deleted.
	MigrationReasonAllObjectsMigrated = "AllObjectsMigrated"
	// MigrationReasonObjectsDenied: the API server refused to rewrite some objects; all others are done.
	MigrationReasonObjectsDenied = "ObjectsDenied"
	// MigrationReasonInvalidResource: spec.resource names nothing that can be migrated, for instance a subresource.
	MigrationReasonInvalidResource = "InvalidResource"
	// MigrationReasonResourceNotServed: no server serves the resource, or none does any more.
	MigrationReasonResourceNotServed = "ResourceNotServed"
	// MigrationReasonVersionNotServed: the resource is served, but not at spec.resource.version.
	MigrationReasonVersionNotServed = "VersionNotServed"
	// MigrationReasonVerbsNotSupported: the resource cannot be listed, or cannot be written.
	MigrationReasonVerbsNotSupported = "VerbsNotSupported"
	// MigrationReasonListRefused: the API server refuses to list the objects, for lack of a permission for instance.
	MigrationReasonListRefused = "ListRefused"
	// MigrationReasonTargetChanged: objects are written in another encoding than the target by now.
	MigrationReasonTargetChanged = "TargetChanged"
	// MigrationReasonAgreementLost: the servers did not agree on the target all the time from start to end.
	MigrationReasonAgreementLost = "AgreementLost"
)

// Types of the conditions of a StorageState.
const (
	// StorageStateAgreed says that all servers were seen, and all write the resource in the current encoding.
	StorageStateAgreed = "Agreed"
	// StorageStateMigrated says that every object is stored in the current encoding. While it is not True, its reason and
	// message tell what is being done about it, or why nothing is.
	StorageStateMigrated = "Migrated"
	// StorageStateSafeToRemoveOldVersions says that no server needs any version but the current one to read what is
	// stored: the others may be dropped, be it from a CustomResourceDefinition or by an upgrade or downgrade. While it is
	// not True, its reason and message are those of Migrated, or tell what else stands in the way.
	StorageStateSafeToRemoveOldVersions = "SafeToRemoveOldVersions"
	// StorageStateServed says that the resource is served. Objects of one that is served no longer may still be stored.
	StorageStateServed = "Served"
)

// Reasons of the conditions Agreed and Served.
const (
	// StateReasonServersAgree: all servers were seen and write the same encoding.
	StateReasonServersAgree = "ServersAgree"
	// StateReasonServersDisagree: servers write different encodings, as in the middle of an upgrade.
	StateReasonServersDisagree = "ServersDisagree"
	// StateReasonServersUnseen: at least one server that may write could not be asked.
	StateReasonServersUnseen = "ServersUnseen"
	// StateReasonSettling: the servers agree, but not for long enough yet.
	StateReasonSettling = "Settling"
	// StateReasonDiscoveryFailed: what is served could not be found out; nothing follows from that.
	StateReasonDiscoveryFailed = "DiscoveryFailed"
	// StateReasonServed: the resource is served.
	StateReasonServed = "Served"
	// StateReasonNotServed: the resource is not served by any server, so that what may still be stored cannot be migrated.
	StateReasonNotServed = "NotServed"
)

// Reasons of the conditions Migrated and SafeToRemoveOldVersions, besides StateReasonNotServed.
const (
	// StateReasonOnlyCurrentEncoding: no object is stored in any encoding but the current one.
	StateReasonOnlyCurrentEncoding = "OnlyCurrentEncodingPersisted"
	// StateReasonOldEncodings: objects may be stored in the older encodings that are listed.
	StateReasonOldEncodings = "OldEncodingsPersisted"
	// StateReasonEncodingsUnknown: objects may be stored in encodings that nobody has a record of.
	StateReasonEncodingsUnknown = "PersistedEncodingsUnknown"
	// StateReasonAwaitingAgreement: a migration can only start when the servers agree.
	StateReasonAwaitingAgreement = "AwaitingAgreement"
	// StateReasonMigrationQueued: a migration was created, or will be, and the migrator has not begun it.
	StateReasonMigrationQueued = "MigrationQueued"
	// StateReasonMigrationRunning: a migration has begun and has not ended.
	StateReasonMigrationRunning = "MigrationRunning"
	// StateReasonMigrationFailed: the last migration failed; status.backoff tells when the next one is due.
	StateReasonMigrationFailed = "MigrationFailed"
	// StateReasonPaused: a migration is due, and an administrator paused the resource.
	StateReasonPaused = "Paused"
	// StateReasonNotSelected: a migration is due, and the trigger is configured to leave the resource alone.
	StateReasonNotSelected = "NotSelectedForMigration"
	// StateReasonObjectsExpire: the objects expire by themselves, and a rewrite would prolong their life.
	StateReasonObjectsExpire = "ObjectsExpire"
	// StateReasonNotMigratable: the resource cannot be listed, or cannot be written.
	StateReasonNotMigratable = "NotMigratable"
	// StateReasonStoredVersionsNotPruned: the CustomResourceDefinition's status.storedVersions still names old versions.
	StateReasonStoredVersionsNotPruned = "StoredVersionsNotPruned"
)
