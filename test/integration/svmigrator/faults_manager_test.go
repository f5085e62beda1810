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
	"fmt"
	"testing"
	"time"
)

// testManagerKilled kills the manager again and again in the middle of a migration. Each time the one that follows goes
// on where progress was saved last.
func testManagerKilled(t *testing.T, c *cluster) {
	const (
		objects   = 300
		kills     = 3
		chunkSize = 50
	)
	s := c.stage(t, "martyrs", "Martyr", objects)
	moments := newMoments(t)
	// Progress is saved behind a chunk, but not more often than every half a second. At this pace a chunk takes longer
	// than that, so that every one is saved, and what is done again after a kill is one chunk at most. (Faster, it would
	// be half a second's work as well.)
	args := steadily(90, fmt.Sprintf("--migration-chunk-size=%d", chunkSize))
	manager := c.startManager(t, "manager", args...)
	s.migrate(t)
	// The last time is when all is written, and the migration is about to end.
	for i, moment := range append(among(moments, kills-1, 25, objects-50), objects) {
		s.writes.reach(t, moment, soon)
		if err := manager.Kill(); err != nil {
			t.Fatal(err)
		}
		t.Logf("kill %d came after %d writes", i+1, s.writes.count())
		manager = c.startManager(t, "manager", args...)
	}
	m, _ := s.succeeded(t, soon, 1)
	patches := s.patches(t, time.Time{})
	t.Logf("%d PATCH requests for %d objects; %s", patches, objects, words(m))
	if most := objects + kills*chunkSize; patches > most {
		t.Errorf("the managers sent %d PATCH requests, want %d at most", patches, most)
	}
}
