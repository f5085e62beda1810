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

// Package rewrite rewrites all objects of one resource, so that the API server stores them in the encoding that it
// writes today. It is the engine of the migrator, and of any other program that has a [Migration] to run.
//
// An [Engine] serves all migrations of a process. Its Run method takes a [Task], the memory of one migration, and goes
// through three steps:
//
//  1. It lists the objects in chunks, as metadata, in the order that package sweep decides (lists.go).
//  2. It sends a merge patch for each object, as fast as package pacer allows (runner.go, object.go), and classifies
//     errors (failure.go). Each object gets one outcome. A request whose failure may pass is repeated. Dry runs in each
//     namespace, and the metadata in each answer, show whether admission changes what is written. If it does, the run
//     ends (ways.go).
//  3. It tries the denied objects once more when all others are done (engine.go).
//
// The caller decides whether objects may be written at all, stores positions, and shows the [Phase] to people. It stops
// a run by ending the context. It may call Run again with the same Task: objects that have outcomes are not written
// again.
package rewrite
