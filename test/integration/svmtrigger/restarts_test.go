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

package svmtrigger

import (
	"context"
	"errors"
	"regexp"
	"testing"
	"time"

	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// doubtedAfter is less than a living server can be out of reach before the controller doubts what it writes. The record
// of a server's address appears some seconds after it is ready.
const doubtedAfter = 10 * time.Second

// confirmation is much more than the five seconds in which a process must not leave after the look that counted it was
// recorded. A busy machine records a look later than it logs what was read.
const confirmation = 15 * time.Second

// testRestarts restarts servers that write after it what they wrote before. None of it is a reason to migrate anything.
func testRestarts(t *testing.T, c *cluster) {
	startJudge(t, c, configMaps, flowSchema)
	startMigrator(t, c)
	leader := c.startManager(t, "leader", framework.PatientElection...)
	framework.Eventually(t, soon, func(context.Context) error { return c.everythingMigrated() })

	t.Run("a node goes with its server and its leader", func(t *testing.T) { testNode(t, c, leader) })
	t.Run("all servers begin to publish storage versions", func(t *testing.T) { testPublishing(t, c) })
}

// testNode stops the leader, and a server when the next leader has just seen it for the first time, as they end when
// their node is rebooted. What that server wrote is on record.
func testNode(t *testing.T, c *cluster, leader *controlplane.Process) {
	heir := c.startManager(t, "heir", framework.PatientElection...)
	before, began := c.allStates(), c.mark(t)
	framework.StopManager(t, leader)
	framework.Eventually(t, soon, func(context.Context) error {
		read := regexp.MustCompile("Read the discovery documents .*" + regexp.QuoteMeta(c.Servers()[2].Address()))
		if !read.MatchString(heir.Log()) {
			return errors.New("the heir has not read from the server")
		}
		return nil
	})
	time.Sleep(confirmation)
	took := c.timedRestart(t, c.Servers()[2], nil)
	c.staysTheSame(t, before, began, took)
}

// testPublishing switches the StorageVersion API on, server by server, so that the evidence comes from elsewhere.
func testPublishing(t *testing.T, c *cluster) {
	before, began := c.allStates(), c.mark(t)
	longest := time.Duration(0)
	for _, server := range c.Servers() {
		took := c.timedRestart(t, server, func(s *controlplane.Server) { *s = controlplane.StorageVersionAPI(*s) })
		longest = max(longest, took)
	}
	framework.Eventually(t, soon, func(context.Context) error {
		if state := c.state(flowSchema.String()); state.Status.Evidence.Source != v1alpha1.EvidenceFromStorageVersion {
			return errors.New(words(state))
		}
		return nil
	})
	c.staysTheSame(t, before, began, longest)
}

// staysTheSame wants that no state that there was is doubted, and that none of their resources is migrated. A restart
// on a busy machine may take longer than the controller waits before it doubts. Then it wants a doubt to be resolved.
func (c *cluster) staysTheSame(
	t *testing.T, before map[string]*v1alpha1.StorageState, since int64, longest time.Duration,
) {
	t.Helper()
	if longest > doubtedAfter {
		t.Logf("a restart took %v, so that states may have been doubted", longest.Round(time.Millisecond))
		framework.Eventually(t, soon, func(context.Context) error { return c.everythingMigrated() })
		return
	}
	framework.During(t, 2*settle, func(context.Context) error {
		if err := c.nothingDoubted(before, since); err != nil {
			return errors.Join(err, errors.New(c.lifeOf(flowSchema.String(), since)))
		}
		return nil
	})
}

// timedRestart restarts a server and returns how long that took.
func (c *cluster) timedRestart(
	t *testing.T, server *controlplane.APIServer, change func(*controlplane.Server),
) time.Duration {
	t.Helper()
	began := time.Now()
	c.restart(t, server, change)
	return time.Since(began)
}
