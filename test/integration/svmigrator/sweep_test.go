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

package svmigrator

import (
	"testing"
)

// testCustomResources takes a resource through a change of its storage version, by hand and without a trigger.
func testCustomResources(t *testing.T, c *cluster) {
	gadgets := newCustom("gadgets", "Gadget")
	c.define(t, gadgets)
	c.fill(t, gadgets, "gadget", 1200)
	c.flip(t, gadgets, "v2")
	c.startManager(t, "manager")
	judge := c.judge(t, gadgets.GroupResource)
	c.migrate(t, "gadgets", gadgets.WithVersion(""))
	m := c.ended(t, "gadgets", soon)
	mustSucceed(t, m)
	judge.stored(t, gadgets.WithVersion("v2").GroupVersion().String())
	changes := judge.onlyEncodings(t, 1)
	if len(changes.Encoded) != 1200 || m.Status.Progress.Rewritten != 1200 {
		t.Errorf("%d objects were encoded anew, and %s", len(changes.Encoded), words(m))
	}
	if versions := c.storedVersions(t, gadgets); !sameStrings(versions, "v2") {
		t.Errorf("status.storedVersions is %v", versions)
	}
}
