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

// Package manager tests the binary: what a process of it does against real API servers, in its life as a leader, a
// standby, before the API server, and after the loss of its lease. Each test that needs API servers has its own, so
// that tests run beside each other: they wait most of the time. The parts of one test take turns.
package manager

import (
	"testing"

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// TestMain also builds a manager with controllers of somebody else's.
func TestMain(m *testing.M) {
	framework.Main(m, nil, "./"+pluginBinary)
}
