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
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// testThousands kills the manager, the API server and etcd again and again while many objects are migrated.
func testThousands(t *testing.T) {
	const (
		objects = 6000 // a dozen chunks
		kills   = 9
	)
	c := startCluster(t)
	s := c.enter(t, newCustom("legions", "Legion"), objects, c.copies)
	moments := newMoments(t)
	args := steadily(500)
	manager := c.startManager(t, "manager", args...)
	s.migrate(t)
	for i, moment := range among(moments, kills, 50, objects-500) {
		s.writes.reach(t, max(moment, s.writes.count()+20), 2*soon)
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

// copies puts n objects into etcd which are stored as one is that the API server created: to ask it for so many would
// take longer than the test.
func (c *cluster) copies(t *testing.T, r custom, prefix string, n int) {
	t.Helper()
	c.fill(t, r, prefix, 1)
	stored, err := c.Stored(t.Context(), r.GroupResource)
	if err != nil || len(stored) != 1 {
		t.Fatalf("found %d objects of %s in etcd: %v", len(stored), r, err)
	}
	original := stored[0]
	numbers := make(chan int)
	var running sync.WaitGroup
	for range writers {
		running.Go(func() {
			for i := range numbers {
				name := fmt.Sprintf("%s-%05d", prefix, i)
				fields := map[string]any{}
				if err := json.Unmarshal(original.Raw, &fields); err != nil {
					t.Error(err)
					continue
				}
				metadata := fields["metadata"].(map[string]any)
				metadata["name"], metadata["uid"] = name, uuid.NewUUID()
				fields["spec"] = r.object(name).Object["spec"]
				raw, err := json.Marshal(fields)
				if err != nil {
					t.Error(err)
					continue
				}
				key := strings.TrimSuffix(original.Key, original.Name) + name
				if _, err := c.Etcd().Client().Put(t.Context(), key, string(raw)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := 1; i < n; i++ {
		numbers <- i
	}
	close(numbers)
	running.Wait()
	if t.Failed() {
		t.FailNow()
	}
	list, err := c.objects(r).List(t.Context(), metav1.ListOptions{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if remaining := list.GetRemainingItemCount(); remaining == nil || *remaining != int64(n-1) {
		t.Fatalf("the API server does not count %d objects", n)
	}
}
