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

// Package svmigrator is the controller that runs StorageVersionMigrations. It rewrites every object of a resource once,
// so that all of them are stored in the encoding that the servers write now. It does so for each migration, whoever
// created it.
//
// It watches
//
//   - StorageVersionMigrations;
//   - StorageStates, which have the encoding and the epoch that a success counts for;
//   - what the servers write, through an [Observer], also where no StorageStates exist.
//
// [Decide] says whether a migration may write. It is pure. A migration that may write waits for a free slot (queue.go).
// At most one migration of a resource has a slot at a time. While a migration has a slot, its run (run.go) does this:
//
//  1. It stores status.target, status.evidence and status.startTime before it writes any object.
//  2. It calls package rewrite, which rewrites all objects, as fast as package pacer allows, and tries the denied ones
//     once more.
//  3. It stores the progress after each chunk whose objects all have outcomes (progress.go).
//  4. It checks everything that a success depends on (finish.go). For that it reads the StorageState from the API
//     server, and the definition of a custom resource or the discovery documents of an aggregated one.
//  5. It prunes status.storedVersions of the definition, and ends the migration.
//
// A migration of a custom resource starts when every server has followed its definition for the settle period
// (followers.go). A migration waits while kube-controller-manager migrates the same resource (intree.go). Objects that
// expire are not rewritten: their migration waits until the old ones are gone (expiring.go).
//
// The controller stops a run as soon as the migration may not write any more, and all runs when etcd's database has
// grown too much (space.go). What was done is kept. If other migrations wait for a slot, a run also ends when it makes
// no progress, or when its turn is over.
//
// It writes
//
//   - the objects of the resource: merge patches that change nothing. It never sends a whole object and never creates
//     one;
//   - storageversionmigrations/status: update; storageversionmigrations: delete, some time after their end;
//   - customresourcedefinitions/status: patch of status.storedVersions, just before a success;
//   - events on StorageVersionMigrations.
//
// It promises
//
//   - A migration succeeds only if every object is stored in the target encoding or was deleted, and the servers agreed
//     on the target from its start to its end.
//   - A rewrite changes nothing but the encoding, unless CRDManagedFieldsCleaning is on. If a mutating webhook or
//     policy changes what a rewrite writes, the migration fails: before the first write if a dry run shows it, else at
//     the first object whose metadata changed.
//   - Progress is stored after a chunk, at most every half a second, and less often if the status names denied objects.
//     A crash repeats what was done since.
//   - The status names the first objects that the API server refuses to write, with the server's answers. These objects
//     do not hold up other objects.
//   - Requests whose failure may pass are repeated until they succeed, at the pace that the API server allows. The
//     Running condition says that they fail. Only if the API server keeps failing on an object is the object denied.
//
// It never
//
//   - reads the body of an object, neither in a list nor in an answer, except to compare it. With the answer to a dry
//     run each run compares the object of the first try in each namespace, of every hundredth after it, each object
//     whose managedFields name a version that the CustomResourceDefinition lacks, unless these are cleaned, and each
//     object whose rewrite the fence has denied. If the schemas of versions differ, and no webhook converts, it
//     compares what each object is at these versions;
//   - takes an error for an outcome: an object is gone only if the API server says so;
//   - prunes status.storedVersions after a failure, or if somebody wrote the definition after it was read;
//   - creates a migration, or writes a StorageState.
package svmigrator
