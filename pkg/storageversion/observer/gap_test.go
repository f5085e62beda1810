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

package observer

import (
	"fmt"
	"slices"
	"testing"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion"
)

// TestServerThatMayHaveBeenBackInAGap has the watch of Leases end with 410 after a server left, at an API server that
// lists only what is there now. The server may have written something in the gap, and nobody has read that process.
func TestServerThatMayHaveBeenBackInAGap(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.run(t)
	c.until(t, c.encodings(1))
	c.until(t, c.certain)
	c.host.change(func() { c.leases.remove("server-1"); c.slices.remove("kubernetes-1") })
	c.until(t, func() error {
		if living := c.shared.living(); len(living) != 1 {
			return fmt.Errorf("%v live", living)
		}
		return nil
	})
	unread := func() error {
		o := c.Observe(deployments)
		if !slices.ContainsFunc(o.Sightings, func(s storageversion.Sighting) bool {
			return slices.Contains(s.UnreadDeparted, storageversion.Process{Identity: "server-1"})
		}) {
			return fmt.Errorf("the sightings are %+v", o.Sightings)
		}
		return nil
	}
	if unread() == nil {
		t.Error("a process that left before the gap was not read")
	}
	c.host.change(func() {
		for range 3 { // Between neighbouring revisions is no gap.
			c.hold(0, 1)
		}
		c.leases.compacted = c.leases.version
	})
	c.until(t, unread)
	c.stop()
}
