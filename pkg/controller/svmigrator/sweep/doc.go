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

// Package sweep goes through all objects of one resource, once. It is a state machine: it says what to list next, which
// object to rewrite next, and from which position the sweep can be resumed. The caller sends the requests, and reports
// their results. The package sends no requests, does not wait, and has no clock.
//
// Objects come in chunks. The next chunk is listed while the current one is rewritten. A chunk is done when each of its
// objects has an outcome. Only then does the position move to the next chunk, with the counts and the continue token
// together. A resumed sweep therefore repeats at most one chunk.
package sweep
