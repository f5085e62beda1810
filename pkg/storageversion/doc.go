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

// Package storageversion knows which encodings the servers of a cluster write each resource in.
//
// Facts go in: which server processes live, StorageVersion objects, what each server's own discovery documents say,
// CustomResourceDefinitions, the documents of aggregated servers. Observations come out, one for each resource: what is
// written now, whether everything that may write was seen and what is missing if not, and what was written since an
// earlier moment that somebody kept a record of.
//
// The package asks nobody and has no clock; package observer feeds it from a cluster. The same sequence of facts always
// gives the same observations.
//
// # What the facts prove
//
// A resource is observed by its best evidence:
//
//   - Custom resources: the definition. The servers follow its storage version, and every change of its spec raises the
//     generation by one, so the generation shows whether a change went by unseen. status.storedVersions adds to what may
//     be stored; that somebody shortened it proves nothing.
//   - Built-in resources, where every living server was asked and publishes StorageVersions: these. A server publishes before it writes,
//     and every publication that changes something moves the resource version.
//   - Built-in resources otherwise: the discovery documents of every single server, asked at its own address. What a
//     server writes is fixed for the life of its process, so a look stays true as long as the same processes live. Documents
//     do not say which process they are from, and Leases do not say at which address; hence a look is complete only if
//     at least as many addresses answered as servers live, and addresses of servers that left are not counted.
//   - Aggregated resources: StorageVersions if there are any for them, else the discovery document behind the aggregator.
//     It proves nothing about the time between two looks.
//
// A server process that lived and was never seen may have written anything, and [Unknown] stands for what it wrote. What
// was not found out is unknown; it never counts as absent.
package storageversion
