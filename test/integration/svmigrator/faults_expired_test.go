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
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// testExpiredToken takes away the state of etcd that a migration lists, as the servers do every few minutes.
func testExpiredToken(t *testing.T) {
	const (
		objects   = 600
		chunkSize = 100
	)
	// The tokens expire at once, and not when the server's cache looks at it.
	c := startCluster(t, controlplane.Server{FeatureGates: map[string]bool{"ListFromCacheSnapshot": false}})
	first, second := c.stage(t, "letters", "Letter", objects), c.stage(t, "parcels", "Parcel", objects)
	args := steadily(150, "--migration-chunk-size=100")
	manager := c.startManager(t, "manager", args...)
	expire := func(s *scene) {
		t.Helper()
		s.migrate(t)
		s.writes.reach(t, objects/4, soon)
		if err := c.ExpireContinueTokens(t.Context(), s.WithVersion("v2")); err != nil {
			t.Fatal(err)
		}
		if count := s.writes.count(); count > objects*2/3 {
			t.Fatalf("the tokens expired when %d of %d objects were done", count, objects)
		}
	}

	expire(first)
	m, _ := first.succeeded(t, soon, 1)
	if patches := first.patches(t, time.Time{}); patches != objects {
		t.Errorf("%d objects got %d PATCH requests: %s", objects, patches, words(m))
	}
	if told := strings.Count(manager.Log(), "The continue token expired"); told == 0 {
		t.Error("the manager met no expired token")
	}

	// The token that was saved is one of those that expired.
	expire(second)
	if err := manager.Kill(); err != nil {
		t.Fatal(err)
	}
	heir := c.startManager(t, "heir", args...)
	m, _ = second.succeeded(t, soon, 1)
	if patches := second.patches(t, time.Time{}); patches > objects+chunkSize {
		t.Errorf("%d objects got %d PATCH requests, with one chunk done again: %s", objects, patches, words(m))
	}
	if told := strings.Count(heir.Log(), "The continue token expired"); told == 0 {
		t.Error("the manager met no expired token after it was started again")
	}
}
