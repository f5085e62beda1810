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

// Package svmigrator rewrites every object of a resource, once, so that all of them are stored in the encoding that the
// servers write today. It does so for each StorageVersionMigration, whoever created it.
//
// It watches
//
//   - StorageVersionMigrations;
//   - StorageStates, which tell the encoding and the epoch that a success counts for;
//   - what the servers write, through an [Observer], whether there are StorageStates or not.
//
// A migration that may write takes its turn: resource by resource, a few at a time, those that have begun first. In its turn
//
//  1. it is bound to a target, once: status.target, status.evidence and status.startTime are written before any object is;
//  2. package sweep goes through all objects in chunks, listed as metadata; each object is written by a merge patch of uid
//     and resource version, as fast as package pacer lets it, and gets one of five outcomes;
//  3. progress is stored behind each chunk whose objects all have outcomes;
//  4. objects that were denied are tried once more, by way of their status where there is one;
//  5. what the success depends on is looked at again: the StorageState, the definition of custom resources and the document of
//     aggregated ones are read from the API server, and what was seen since the state was written must be in keeping with it. A
//     definition's status.storedVersions is pruned, and the migration ends.
//
// [Decide] says whether a migration may write. It is pure, and asked at the start, whenever something changes, and at the end.
// The turn of a migration that may not go on ends at once; what was done is kept. One in which nothing comes about makes room for
// others that wait.
//
// It writes
//
//   - the objects that are migrated: merge patches that change nothing, never the whole object and never a creation;
//   - storageversionmigrations/status: update; storageversionmigrations: delete, of those that ended long ago;
//   - customresourcedefinitions/status: patch of status.storedVersions, when nothing but the word of success is missing;
//   - events on StorageVersionMigrations.
//
// It promises
//
//   - A migration is Succeeded only if every object is stored in the target encoding or was deleted, and the servers agreed
//     on the target from its start to its end.
//   - A rewrite changes nothing but the encoding, unless CRDManagedFieldsCleaning is on.
//   - What is done again after a crash is one chunk at most, and half a second's work where a chunk takes less.
//   - What the API server refuses is named, with its own words, and holds up nothing else.
//   - What may pass is repeated for as long as it takes, told in the Running condition, and at a pace that the API server sets.
//
// It never
//
//   - reads an object's body, neither in a list nor in an answer;
//   - takes an error for an outcome: only the API server's own word that an object does not exist makes it gone;
//   - prunes status.storedVersions after a failure, or if the definition was written since it was read;
//   - creates a migration, or writes a StorageState.
package svmigrator
