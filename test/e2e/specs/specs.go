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

// Package specs has the conformance specs: what is required of whoever migrates storage versions. The documents that
// require it are in ../README.md.
package specs

import (
	"slices"
	"time"

	"sigs.k8s.io/svm-controller-manager/test/e2e/suite"
)

const (
	// few is how many objects a spec has that is not about many.
	few = 30
	// frozen is the object that API servers refuse to update.
	frozen = 3
	// while is how long something has to last that must not end.
	while = 8 * time.Second
	// long is what a spec with several steps may take beyond its waits.
	long = 10 * time.Minute
)

// Versions of the resources of specs.
const (
	v1 = "v1"
	v2 = "v2"
	v3 = "v3"
)

// All are all specs.
func All() []suite.Spec {
	return slices.Concat(rewriting, admission, knowing, definitions, servers, resilience, security, collecting)
}

var (
	migrator  = []suite.Controller{suite.ControllerMigrator}
	trigger   = []suite.Controller{suite.ControllerTrigger}
	both      = []suite.Controller{suite.ControllerMigrator, suite.ControllerTrigger}
	collector = []suite.Controller{suite.ControllerCollector}
)
