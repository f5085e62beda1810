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

// Package storageversiongc removes what departed API servers left behind in StorageVersion objects, as KEP-2339 asks.
//
// A StorageVersion has one entry for each API server that writes the resource, and a commonEncodingVersion if all
// entries agree. Whoever migrates stored objects trusts that field. An entry that stays too long delays a migration. An
// entry of a living server that is removed too early corrupts one. So in doubt, the entry stays.
//
// It watches
//
//   - Leases, for deletions. The informer may be limited to identity Leases in kube-system, or have all Leases;
//   - StorageVersions.
//
// It sends requests only if a cached StorageVersion is suspicious: if it has an entry whose Lease is not cached, if it
// has no entries, or if it has a marker. Then it reads the StorageVersions, and after them the Leases in doubt, from
// the API server.
//
// It writes
//
//   - storageversions/status: update, to remove entries (commonEncodingVersion and the AllEncodingVersionsEqual
//     condition follow), and shortly before that to put a marker into the reason of that condition, see marker.go;
//   - storageversions: delete, for an object that has no entries left.
//
// It promises
//
//   - It removes an entry only if every read for at least [grace] found that the Lease of that name is missing from
//     kube-system, the API server answered all that time, and the Lease is still missing after the marker is in place.
//   - A Lease that could not be read is not a Lease that is missing. One read without an answer ends the sync without a
//     write, and every grace period starts again.
//   - A Lease that exists stands for a living server, whatever its labels, its holder and its age are.
//   - The uid and the resourceVersion of the object that it decided on are the precondition of each write.
//   - It deletes an object without entries only if the object is older than [grace].
//   - It checks everything when it starts, so it finds what happened while no instance ran.
//
// It never
//
//   - writes Leases, adds entries, or changes the entries that stay;
//   - repairs a status that contradicts its entries: servers publish theirs again every ten minutes, and the API server
//     refuses a commonEncodingVersion that does not follow from the entries;
//   - stores anything outside of the StorageVersions: if its memory is lost, it waits for one more grace period.
//
// Permissions: leases in kube-system get, list, watch; storageversions get, list, watch, delete; storageversions/status
// update. They are part of the role that Kubernetes ships for its own controller of this name.
package storageversiongc
