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

// Package storageversiongc removes what API servers that are gone left behind in StorageVersion objects, as KEP-2339 asks.
//
// A StorageVersion has one entry for every API server that writes the resource, and a commonEncodingVersion where all
// entries agree. Whoever migrates stored objects trusts that field, so the two ways to be wrong here are not alike: an
// entry that stays too long delays a migration, an entry of a living server that goes too early corrupts one. Wherever
// the evidence leaves a choice, the entry stays.
//
// It watches
//
//   - Leases, for deletions. The informer may be limited to kube-system and to identity Leases, or see every Lease;
//   - StorageVersions.
//
// While no cached StorageVersion gives reason for suspicion (an entry whose Lease is not cached, no entries, a fence of
// ours) it sends no request at all. Otherwise it reads StorageVersions and then the Leases in doubt from the API server.
//
// It writes
//
//   - storageversions/status: update, to remove entries (commonEncodingVersion and the AllEncodingVersionsEqual
//     condition follow) and, shortly before that, to put up a fence in that condition's reason; see fence.go;
//   - storageversions: delete, for an object with no entries left.
//
// It promises
//
//   - An entry is removed only after the Lease of that name in kube-system was missing from every reading of at least
//     [grace], while the API server answered all the time, and was missing still after the fence stood.
//   - A Lease that could not be read is not a Lease that is missing: one unanswered reading ends the sync without a
//     write, and every grace period begins again.
//   - A Lease that exists stands for a living server, whatever its labels, its holder and its age.
//   - Every write is preconditioned on the uid and the resourceVersion of the object that was decided on.
//   - An object without entries is deleted only after it was seen so, at one resourceVersion, for [grace].
//   - Everything is checked when it starts; what was missed while nobody looked is made good then.
//
// It never
//
//   - writes Leases, adds entries, or changes those that stay;
//   - repairs a status that contradicts its entries: servers publish theirs again every ten minutes, and the API server
//     refuses a commonEncodingVersion that does not follow from the entries;
//   - keeps state outside of the StorageVersions: what it remembers in memory can be lost at any time at the cost of
//     one more grace period.
//
// Permissions: leases in kube-system get, list, watch; storageversions get, list, watch, delete; storageversions/status
// update. They are part of the role that Kubernetes ships for its own controller of this name.
package storageversiongc
