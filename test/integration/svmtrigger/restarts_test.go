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
	"fmt"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// patience is how long a server must be missing before the controller doubts what it writes.
const patience = time.Minute

// confirmation is much more than the five seconds in which a process must not leave after the look that counted it was
// recorded. A busy machine records a look later than it logs what was read.
const confirmation = 15 * time.Second

// testRestarts restarts servers that write after it what they wrote before. None of it is a reason to migrate anything.
func testRestarts(t *testing.T, c *cluster) {
	startJudge(t, c, configMaps, flowSchema)
	startMigrator(t, c)
	leader := c.startManager(t, "leader", append(framework.PatientElection, onlyChosen)...)
	framework.EventuallySeen(t, soon, func() error { return c.everythingKnown() })

	t.Run("a node goes with its server and its leader", func(t *testing.T) { testNode(t, c, leader) })
	t.Run("all servers begin to publish storage versions", func(t *testing.T) { testPublishing(t, c) })
}

// testNode stops the leader, and a server when the next leader has just seen it for the first time, as they end when
// their node is rebooted. What that server wrote is on record.
func testNode(t *testing.T, c *cluster, leader *controlplane.Process) {
	heir := c.startManager(t, "heir", append(framework.PatientElection, onlyChosen)...)
	server := c.Servers()[1]
	before, began := c.allStates(), c.mark(t)
	framework.StopManager(t, leader)
	framework.AwaitRead(t, soon, heir, c.Servers()...)
	time.Sleep(confirmation)
	c.staysTheSame(t, before, began, c.timedRestart(t, server, nil))
}

// testPublishing switches the StorageVersion API on, server by server, so that the evidence comes from elsewhere.
func testPublishing(t *testing.T, c *cluster) {
	before, began := c.allStates(), c.mark(t)
	var absences []absence
	for _, server := range c.Servers() {
		absences = append(absences, c.timedRestart(t, server, func(s *controlplane.Server) {
			*s = controlplane.StorageVersionAPI(*s)
		}))
	}
	framework.EventuallySeen(t, soon, func() error {
		if state := c.state(flowSchema.String()); state.Status.Evidence.Source != v1alpha1.EvidenceFromStorageVersion {
			return errors.New(words(state))
		}
		return nil
	})
	c.staysTheSame(t, before, began, absences...)
}

// absence is a restart of a server.
type absence struct {
	began time.Time
	took  time.Duration
}

func (a absence) String() string {
	return fmt.Sprintf("at %s for %v", a.began.Format(clockFormat), a.took.Round(time.Millisecond))
}

// timedRestart restarts a server and returns when, and how long that took until all states know of the new process.
func (c *cluster) timedRestart(
	t *testing.T, server *controlplane.APIServer, change func(*controlplane.Server),
) absence {
	t.Helper()
	began := time.Now()
	c.restart(t, server, change)
	framework.Eventually(t, soon, func(ctx context.Context) error { return c.everyStateKnows(ctx, server) })
	return absence{began, time.Since(began)}
}

// staysTheSame wants that no state that there was is doubted, and that none of their resources is migrated. Only where
// a restart took longer than it should, as on a busy machine, the controller is right to doubt when it has been
// patient. Then staysTheSame wants the doubt to be resolved.
func (c *cluster) staysTheSame(
	t *testing.T, before map[string]*v1alpha1.StorageState, since int64, absences ...absence,
) {
	t.Helper()
	framework.During(t, 2*settle, func(context.Context) error {
		if err := c.notDoubtedTooSoon(before, since, absences); err != nil {
			return errors.Join(err, errors.New(c.lifeOf(flowSchema.String(), since)))
		}
		return nil
	})
	if err := c.nothingDoubted(before, since); err != nil {
		t.Logf("a restart took so long that states were doubted: %v", err)
		framework.EventuallySeen(t, soon, func() error { return c.everythingKnown() })
	}
}

// notDoubtedTooSoon complains if nothingDoubted would have at a time when the controller was not right to doubt.
func (c *cluster) notDoubtedTooSoon(
	before map[string]*v1alpha1.StorageState, since int64, absences []absence,
) error {
	right := func(at time.Time) bool {
		return slices.ContainsFunc(absences, func(a absence) bool {
			return a.took > slowRestart && !at.Before(a.began.Add(patience))
		})
	}
	for name, old := range before {
		for _, write := range c.stateWrites(name, since) {
			if write.state == nil || doubted(old, write.state) {
				if !right(write.seen) {
					return fmt.Errorf("after the restarts %v the state of %s changed at %s: %s", absences, name,
						write.seen.Format(clockFormat), words(write.state))
				}
				break // What follows may be how the doubt is resolved.
			}
		}
	}
	for _, life := range c.migrationsAfter(since) {
		if _, known := before[resourceOf(life.last()).String()]; known && !right(life.seen) {
			return fmt.Errorf("after the restarts %v a migration was created: %v", absences, life)
		}
	}
	return nil
}
