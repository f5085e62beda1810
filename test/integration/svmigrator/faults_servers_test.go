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
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// interruption is what the log tells of requests that fail, and of a run that ends because of them. A run that has done
// its work ends without a cause.
var interruption = regexp.MustCompile(
	`(?m)^.*("Rewriting failed, will retry"|"Requests fail and are repeated"|` +
		`"Run ended".* err=").*$`,
)

// testEachKilled kills the manager, the API server and etcd in turn under a migration of a dozen chunks, and starts
// each again.
func testEachKilled(t *testing.T, c *cluster) {
	const (
		objects = 360
		faults  = 3
	)
	s := c.stage(t, "wrecks", "Wreck", objects)
	moments := newMoments(t)
	gate, err := c.NewInterceptor("", nil)
	if err != nil {
		t.Fatal(err)
	}
	seen := &traffic{}
	gate.Intercept(seen.judge)
	process := framework.Process{
		Name:   "manager",
		Config: gate.Config(framework.ManagerUser),
		Args:   steadily(20, "--migration-chunk-size=30"),
	}
	manager := c.startProcess(t, process)
	s.migrate(t)
	for i, moment := range among(moments, faults, 50, objects/2) {
		s.writes.reach(t, min(max(moment, s.writes.count()+20), objects), soon)
		down := time.Second + time.Duration(moments.Int64N(int64(3*time.Second)))
		switch i % 3 {
		case 0:
			if err := manager.Kill(); err != nil {
				t.Fatal(err)
			}
			t.Logf("the manager was killed after %d writes", s.writes.count())
			manager = c.startProcess(t, process)
			seen.await(t, 10) // of that manager
		case 1:
			c.loseServer(t, seen, manager, down)
		case 2:
			c.loseEtcd(t, down)
		}
	}
	restarted := time.Now()
	m, changes := s.succeeded(t, soon, 2)
	t.Logf("it ended %v after the last restart", time.Since(restarted))
	if strings.Contains(manager.Log(), "Not rewriting an object") {
		t.Error("an object was denied")
	}
	mean := meanWrites(changes)
	t.Logf("%.4f writes an object, %d PATCH requests; %s", mean, s.patches(t, time.Time{}), words(m))
	if mean > 1.05 {
		t.Errorf("each object was written %.4f times on average", mean)
	}
}

// loseServer kills the API server, and starts it again after a while. The manager must tell of that.
func (c *cluster) loseServer(t *testing.T, seen *traffic, manager *controlplane.Process, down time.Duration) {
	t.Helper()
	server := c.Servers()[0]
	told := func() int { return len(interruption.FindAllString(manager.Log(), -1)) }
	before := told()
	seen.lose(true)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	time.Sleep(down)
	framework.Eventually(t, soon, func(context.Context) error {
		if told() == before {
			return errors.New("the log does not tell of the outage")
		}
		return nil
	})
	if err := server.Restart(nil); err != nil {
		t.Fatal(err)
	}
	patches, all := seen.lose(false)
	away := time.Since(killed)
	t.Logf("the API server was away for %v, in which the manager sent %d requests, %d of them PATCH", away, all, patches)
	// Those that were on their way when it died, and probes at times that double. All others are watches, each of which
	// backs off for itself. The looks for servers go to the address of the server, where nobody counts them.
	if most := 16 + int(away.Seconds()); patches > most {
		t.Errorf("the manager sent %d PATCH requests into an outage of %v, want %d at most", patches, away, most)
	}
	if most := 40 + int(10*away.Seconds()); all > most {
		t.Errorf("the manager sent %d requests into an outage of %v, want %d at most", all, away, most)
	}
}

// loseEtcd kills etcd, and starts it again after a while.
func (c *cluster) loseEtcd(t *testing.T, down time.Duration) {
	t.Helper()
	if err := c.Etcd().Kill(); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	time.Sleep(down)
	if err := c.Etcd().Restart(nil); err != nil {
		t.Fatal(err)
	}
	t.Logf("etcd was away for %v", time.Since(killed))
}

// traffic counts what a manager sends while there is no server, and answers it as a machine does on which nothing
// listens.
type traffic struct {
	mu           sync.Mutex
	lost         bool
	patches, all int
	// passed is how many PATCH requests were let through.
	passed int
}

// await waits until so many PATCH requests are let through.
func (c *traffic) await(t *testing.T, more int) {
	t.Helper()
	passed := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.passed
	}
	enough := passed() + more
	poll(t, soon, func() error {
		if n := passed(); n < enough {
			return fmt.Errorf("%d PATCH requests, want %d", n, enough)
		}
		return nil
	})
}

// lose begins or ends an outage, and returns what was sent since the one before began.
func (c *traffic) lose(lost bool) (patches, all int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	patches, all = c.patches, c.all
	c.lost, c.patches, c.all = lost, 0, 0
	return patches, all
}

func (c *traffic) judge(r *http.Request) controlplane.Verdict {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.lost {
		if r.Method == http.MethodPatch {
			c.passed++
		}
		return controlplane.Verdict{}
	}
	c.all++
	if r.Method == http.MethodPatch {
		c.patches++
	}
	return controlplane.Verdict{Cut: controlplane.CutBefore, Connection: true}
}
