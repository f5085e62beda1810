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
//   - StorageStates: its own record, the spec and annotations that people set, and what other controllers wrote;
//   - StorageVersionMigrations, whoever created them.
//
// A sync observes, decides and acts. [Decide] is a pure function with all rules. A sync of a resource waits until the
// caches show what this manager wrote about it.
//
// It writes
//
//   - storagestates: create, for a resource that is served or has a definition, and has none; delete, when the
//     definition of the resource was deleted;
//   - storagestates/status: update, with all that it knows;
//   - storageversionmigrations: create, one for each attempt; delete, of unfinished ones for an epoch that is over, or
//     whose definition was deleted, or whose state is gone while no server serves the resource, and of suspended ones
//     when there is nothing to migrate any more;
//   - events on StorageStates.
//
// It promises
//
//   - The write that records an encoding as current also lists it as persisted. A migration is created only when
//     what it rests on is stored. The list becomes shorter only after a migration that proves it.
//   - Every write of a StorageState has the uid and the resourceVersion of the decision as preconditions, and every
//     deletion of a migration too. A conflict leads to another decision.
//   - It creates a migration only if the API server confirms the state of the decision. The name of the migration
//     follows from the state, until the state says how the migration ended. So there is one for each attempt, whenever
//     the manager crashes, and whatever a cache lacks. The next write records it.
//   - Every migration that is due is created. The migrator alone orders them.
//   - After a failure the next attempt waits, each time twice as long, unless an administrator asks for it.
//   - It creates no migration of a resource while --auto-migrate excludes it, spec.paused of its state is true, or the
//     state has the annotation migration.k8s.io/paused with any value but a spelling of false. It still observes and
//     reports the resource.
//   - It sends an event after it has stored what the event reports, unless the event reports that the API server
//     refuses a write.
//
// It never
//
//   - reads or writes an object of the resources that it knows about;
//   - deletes a finished migration, or one whose spec names no epoch, as those of people do;
//   - takes what it could not read for absent, or what a cache lacks for deleted;
//   - keeps in memory what it must not lose. A new leader goes on from the record. Where the record is not enough, it
//     assumes that objects may be stored in any encoding.
//
// Permissions: storagestates get, list, watch, create, delete; storagestates/status update; storageversionmigrations
// get, list, watch, create, delete; events create, patch, in the namespace default, where events of cluster-scoped
// objects are. The Observer needs its own.
package svmtrigger
