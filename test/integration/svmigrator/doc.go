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

// Package svmigrator tests the migrator in its binary, against real API servers and etcd. What a migration did is
// judged by the raw bytes in etcd: every object is there before and after, says the same, and is stored in the target
// encoding at the very revision at which the migration was written as Succeeded.
package svmigrator
