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

// Package observer reads from API servers how they encode resources, and passes that on to a Ledger, which draws the
// conclusions. It writes nothing.
//
// # What it watches
//
//   - The identity Leases in kube-system. They show which server processes live. A renewed Lease costs no request.
//   - The EndpointSlices of default/kubernetes. They show at which addresses servers answer.
//   - StorageVersions, from when all servers serve them.
//   - CustomResourceDefinitions and APIServices, of which it keeps a few fields.
//
// A broken watch continues where it broke, so it misses nothing. If that is not possible, the observer lists
// everything, and reports to the Ledger that it may have missed something. For identity Leases it first lists earlier
// revisions (resourceVersionMatch=Exact).
//
// # What it asks for
//
//   - The discovery documents of every server at the server's own address: at the start, when a process or an address
//     changes, at every poll, and again while something could not be read. If servers share addresses, the observer
//     makes connections until it has reached each of them, and reads the documents of each on its own connection.
//   - The discovery documents of aggregated servers, through the aggregator: at every poll, and when an APIService
//     changes. With them the EndpointSlices of the Service, and the metadata of its Pods.
//
// # What it promises
//
//   - It reports what it could not read as unknown, and never as absent.
//   - It reports what a server said together with the processes that lived before it asked.
//   - It reports a watched list that could not be read for a poll interval, until it has read it again.
//     EndpointSlices are an exception: the addresses that were read last count.
//   - While no server answers it asks again at intervals, and keeps what it knows.
//   - Run returns when everything that it started has ended.
//
// # What it never does
//
//   - It never writes to an API server.
//   - It never keeps whole CustomResourceDefinitions in memory.
package observer
