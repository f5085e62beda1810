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
	"time"
)

// testThousands kills the manager, the API server and etcd again and again while many objects are migrated.
func testThousands(t *testing.T) {
	const (
		objects = 6000 // a dozen chunks
		kills   = 9
	)
	c := startCluster(t)
	s := c.stage(t, "legions", "Legion", objects)
	moments := newMoments(t)
	args := steadily(500)
	manager := c.startManager(t, "manager", args...)
	s.migrate(t)
	for i, moment := range among(moments, kills, 50, objects-500) {
		s.writes.reach(t, min(max(moment, s.writes.count()+20), objects), 2*soon)
		down := time.Duration(moments.Int64N(int64(2 * time.Second)))
		switch i % 3 {
		case 0:
			if err := manager.Kill(); err != nil {
				t.Fatal(err)
			}
			t.Logf("the manager was killed after %d writes", s.writes.count())
			manager = c.startManager(t, "manager", args...)
		case 1:
			if err := c.Servers()[0].Kill(); err != nil {
				t.Fatal(err)
			}
			t.Logf("the API server was killed after %d writes", s.writes.count())
			passes(t, down)
			if err := c.Servers()[0].Restart(nil); err != nil {
				t.Fatal(err)
			}
		case 2:
			c.loseEtcd(t, down)
		}
	}
	m, changes := s.succeeded(t, 5*time.Minute, 2)
	mean := meanWrites(changes)
	t.Logf("%.4f writes an object, %d PATCH requests; %s", mean, s.patches(t, time.Time{}), words(m))
	if mean > 1.05 {
		t.Errorf("each object was written %.4f times on average", mean)
	}
}
