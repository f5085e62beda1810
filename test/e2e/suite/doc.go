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

// Package suite runs conformance specs against any implementation of storage version migration, on any cluster.
//
// An [Implementation] is an adapter to a migrator: how a migration is asked for, how it ended, what is recorded. A
// [Spec] is one required behaviour. [Run] makes specs of Ginkgo of them, and writes a [Report].
//
// # Promises
//
//   - Specs without the label Disruptive touch only objects that they created, and remove them. Their
//     CustomResourceDefinitions have a group of their own with a random suffix, their admission policies match only
//     that group, their namespaces have random names. So they may run on a cluster in use, and beside each other.
//   - A spec whose feature is not declared is "not supported". A spec that lacks something which only the run can give,
//     such as access to etcd, is "skipped", and makes the result of its profile partial. Neither is ever "passed".
//   - The judge is what is stored, never what the implementation says about itself. With access to etcd the judge reads
//     the bytes. Without, it sends a write that changes nothing: the API server stores an object anew only if it is not
//     stored as the server would store it now, so the resourceVersion tells.
package suite
