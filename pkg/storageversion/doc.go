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
// A [Ledger] takes facts: which server processes live, StorageVersion objects, each server's discovery documents,
// CustomResourceDefinitions, documents of aggregated servers. It makes them into sightings, one for each change of
// what a resource is written in. An [Observation] tells what is written now, what is missing to be sure of it, and
// the sightings since the last gap. Whoever recorded an earlier sighting finds in [SightingsSince] what has been
// written since.
//
// What is known from objects that cannot be read any more is out of date, and has a [Problem]: see
// [Ledger.SetUnreadable].
//
// The package sends no request and has no clock; package observer feeds it. The same facts give the same
// observations.
//
// Each kind of fact has one owner, in a file of its own: servers, looks, builtIns, sharing, publications,
// definitions, aggregated, processes, unreadable, and sightings. ledger.go is the way from a fact to a sighting,
// observe.go the way from sightings to an observation. To leave resources out of observation, change Ledger.observes.
//
// The best evidence of a resource makes its sightings:
//
//   - Custom resources: the definition, which servers follow. Every change of its spec raises the generation by one, so
//     the generation shows whether a change went by unseen. An entry that left status.storedVersions proves nothing.
//   - Built-in resources, if every living server publishes StorageVersions, and a look has read the same processes:
//     these objects. A server publishes before it writes, except for Leases in kube-system and its own namespaces, and
//     every publication that changes something moves the resource version.
//   - Other built-in resources: the discovery documents of every server, read at its own address, or on a connection
//     that stays with it. What a process writes never changes, so a complete look stays true for as long as the same
//     processes live.
//   - Aggregated resources: the discovery document behind the aggregator. It proves nothing about the time before it.
//     Aggregated servers publish no StorageVersions.
//
// A process that nobody read may have written anything, and [Unknown] stands for that. What could not be found out is
// unknown and never counts as absent.
package storageversion
