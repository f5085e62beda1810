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

// Package svmtrigger keeps a StorageState for every resource, which lists the encodings that stored objects may have.
// It creates a migration when, and only when, one is needed and safe.
//
// It watches
//
//   - what the servers write, through an [Observer];
//   - StorageStates: its own record, the annotations of people, and what others did to it;
//   - StorageVersionMigrations, whoever created them.
//
// A sync observes, decides and acts. [Decide] is pure and has all rules. A resource is not decided on before the
// caches show what this process wrote about it.
//
// It writes
//
//   - storagestates: create, for a resource that is served and has none; delete, when the definition of the
//     resource was deleted; delete and create, if another controller wrote it without epochs;
//   - storagestates/status: update, with everything that is known;
//   - storageversionmigrations: create, one for each attempt; delete, of unfinished ones that were made for an outdated
//     encoding or epoch;
//   - events on StorageStates.
//
// It promises
//
//   - The write that records an encoding as current also lists it as persisted. A migration is created only when
//     what it rests on is stored. The list becomes shorter only after a migration that proves it.
//   - Every write of a StorageState is preconditioned on the uid and the resourceVersion that was decided on, every
//     deletion of a migration on its uid. A conflict leads to another decision.
//   - A migration is created only if the API server confirms the state that was decided on. It has a name that follows
//     from the state, so that there is one for each attempt, whenever the process crashes. The next write records it.
//   - Every migration that is due is created. The migrator alone orders them.
//   - After a failure the next attempt waits, twice as long each time, unless an administrator asks for it.
//   - A resource that --auto-migrate leaves out, or that is annotated migration.k8s.io/paused=true, is observed and
//     reported, and gets no migration.
//   - An event is sent after what it reports was stored.
//
// It never
//
//   - reads or writes an object of the resources that it knows about;
//   - deletes a finished migration, or one that a person created and that has not begun;
//   - takes what it could not read for absent, or what a cache lacks for deleted;
//   - keeps anything in memory that it must not lose. What is recorded is enough to go on. Where it is not, objects
//     may be stored in any encoding.
//
// Permissions: storagestates get, list, watch, create, delete; storagestates/status update; storageversionmigrations
// get, list, watch, create, delete; events create, patch, in the namespace default, where events of cluster-scoped
// objects are. The Observer needs its own.
package svmtrigger
