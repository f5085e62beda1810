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

// Package simulation runs the real Ledger, and the real Decide of the trigger and of the migrator, in a cluster that is
// simulated, time included: servers that come, go, crash and are upgraded, definitions that change, watches that break,
// managers that die between two writes, people who interfere. A history is a list of steps; the same steps always give
// the same history. After every event a judge, who knows what is really stored, compares that with what the
// StorageStates promise.
//
// See README.md for what is modelled, what is assumed, and what was found.
package simulation
