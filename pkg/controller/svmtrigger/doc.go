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

// Package svmtrigger knows, for every resource, which encodings its stored objects may have, and creates a migration
// when, and only when, one is needed and safe.
//
// It watches
//
//   - what the servers write, through an [Observer];
//   - StorageStates: its own record, what people wrote on it (annotations), and what others did to it;
//   - StorageVersionMigrations, whoever created them.
//
// A sync observes, decides and acts. [Decide] is pure and holds all rules; it is handed the caches' objects, except that
// a StorageState is never older than what this process wrote last.
//
// It writes
//
//   - storagestates: create, for a resource that is served and has none; delete, when its definition was deleted, and
//     delete and create, for one that another controller wrote without epochs;
//   - storagestates/status: update, with the whole of what is known;
//   - storageversionmigrations: create, one for each attempt; delete, of unfinished ones that were made for an
//     encoding or an epoch that has passed;
//   - events on StorageStates.
//
// It promises
//
//   - An encoding is listed as persisted in the same write that records it as current, and a migration is created only
//     after that write was stored. The list shrinks only after a migration that is proven complete.
//   - Every write of a StorageState is preconditioned on the uid and the resourceVersion that was decided on, every
//     deletion of a migration on its uid. A conflict is never forced; it leads to another decision.
//   - Before a migration is created, the API server confirms that the state is still the one that was decided on. Its
//     name is recorded first, so that there is one migration for each attempt whatever crashes in between.
//   - At most Options.MaxUnfinished migrations of its own are unfinished at a time, beside those that are stuck, and they are
//     started in order: what administrators wait for first.
//   - A migration that failed is tried again after a time that doubles, or when an administrator asks.
//   - A resource that --auto-migrate leaves out, or that is annotated migration.k8s.io/paused=true, is observed and told
//     about, and nothing is started.
//   - An event is sent after what it tells of was stored.
//
// It never
//
//   - rewrites, or reads, an object of the resources that it knows about;
//   - touches a finished migration, or one that people created and that has not begun;
//   - takes what could not be read for absent, or what a cache does not show for gone;
//   - keeps anything in memory that it could not lose: what is recorded is enough to go on, and where it is not, the
//     resource counts as unknown.
//
// Permissions: storagestates get, list, watch, create, delete; storagestates/status update; storageversionmigrations get,
// list, watch, create, delete; events create, patch (in the namespace default, where events of cluster-scoped objects are).
// The Observer has needs of its own.
package svmtrigger
