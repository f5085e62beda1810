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

// Package sweep goes through all objects of one resource, once. It is a step machine: it says what to list, which object to
// rewrite and when a place is reached from which the sweep can be resumed, and is told what came of it. It sends nothing,
// waits for nothing and has no clock.
//
// Objects are taken in chunks. The next one is listed while the current one is rewritten. A chunk is done when each of its
// objects has an outcome; only then the position moves behind it, counters and continue token together, so that a sweep
// which is resumed does the objects of one chunk again at most.
package sweep
