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

// Package observer does all reading from API servers that observations are made of, and feeds it to a Ledger, which
// draws the conclusions. It writes nothing.
//
// # What it watches
//
//   - The identity Leases of kube-system: which server processes live. That a Lease was renewed costs nothing. Leases of other
//     servers than kube-apiserver are a sign that an aggregated server started or went.
//   - The EndpointSlices of default/kubernetes: where each server can be asked by itself.
//   - StorageVersions, as long as the servers serve them.
//   - CustomResourceDefinitions and APIServices, of which it keeps a few fields.
//
// A watch goes on where it was cut off, so everything that happened meanwhile is seen. Where that is not possible the
// Ledger is told that something may have gone unseen.
//
// # What it asks for
//
//   - The discovery documents of every server at the server's own address: at the start, when processes or addresses change,
//     and again while something of them is missing. A process does not change what it writes, so that from time to time only the
//     list of what it serves is compared. Without Leases processes cannot be told apart, and everything is read again.
//   - The discovery documents of aggregated servers through the aggregator: from time to time, and when their APIServices or Leases change.
//
// # What it promises
//
//   - What could not be read is told as such; it is never taken for absent.
//   - What a server says is told together with the processes that lived before it was asked.
//   - While no server answers, it asks again at intervals, and what was known stays known.
//   - Run returns when everything that it started has ended.
package observer
