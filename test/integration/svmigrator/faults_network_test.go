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

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// testNetworkCut unplugs the manager's host. Nobody tells it: its connections are silent.
func testNetworkCut(t *testing.T, c *cluster) {
	const (
		objects = 250
		cutFor  = 21 * time.Second
		// underway is how long the server may take for what has arrived before the cut.
		underway = 5 * time.Second
	)
	s := c.stage(t, "islands", "Island", objects)
	manager := c.startProcess(t, framework.Process{
		Name: "manager-1", Host: "manager-1", Config: c.Config(framework.ManagerUser, framework.Masters),
		Args: steadily(10, "--migration-chunk-size=50"),
	})
	s.migrate(t)
	s.writes.reach(t, objects/5+newMoments(t).IntN(objects/5), soon)

	host, err := c.Host("manager-1")
	if err != nil {
		t.Fatal(err)
	}
	if err := host.Cut(); err != nil {
		t.Fatal(err)
	}
	cut := time.Now()
	written := -1
	for count := s.writes.count(); count != written; count = s.writes.count() {
		written = count
		time.Sleep(underway)
	}
	time.Sleep(cutFor - underway)
	if count := s.writes.count(); count > written+onTheirWay || count >= objects {
		t.Errorf("%d objects were written when the cut began and %d when it ended, of %d", written, count, objects)
	}
	if !manager.Running() {
		t.Fatal("the manager ended")
	}
	if err := host.Heal(); err != nil {
		t.Fatal(err)
	}
	healed := time.Now()
	s.writes.reach(t, written+1, soon)
	t.Logf(
		"the cut of %v began after %d writes; the next write came %v after it was healed",
		healed.Sub(cut),
		written,
		time.Since(healed),
	)
	m, _ := s.succeeded(t, soon, 1)
	t.Logf("%d PATCH requests; %s", s.patches(t, time.Time{}), words(m))
}
