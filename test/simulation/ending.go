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

package simulation

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmigrator"
)

// decideCached is what the program decides about a migration by what its caches show.
func (g *migrator) decideCached(m *migrationv1alpha1.StorageVersionMigration) svmigrator.Decision {
	if g.w.manager == nil {
		return svmigrator.Decision{Verdict: svmigrator.Wait}
	}
	return g.decide(m, g.w.manager.states[nameOf(m.GroupResource())])
}

// decide is what the program decides about a migration and a state that it has read.
func (g *migrator) decide(m *migrationv1alpha1.StorageVersionMigration, state *migrationv1alpha1.StorageState,
) svmigrator.Decision {
	leader := g.w.manager
	if leader == nil || !leader.leads {
		return svmigrator.Decision{Verdict: svmigrator.Wait}
	}
	return svmigrator.Decide(svmigrator.Input{
		Migration: m, Observation: leader.observe(m.GroupResource()), State: state, HasTrigger: true,
		Settle: g.w.periods.Settle, Now: leader.now(),
	})
}

// failIfDecided ends a migration that cannot succeed any more, if the state as it is stored says so too.
func (g *migrator) failIfDecided(m *migrationv1alpha1.StorageVersionMigration, decision svmigrator.Decision) {
	if decision.Verdict == svmigrator.Fail {
		decision = g.decide(m, g.w.api.states[nameOf(m.GroupResource())])
	}
	if decision.Verdict == svmigrator.Fail {
		g.finish(m, migrationv1alpha1.MigrationFailed, decision.Reason)
	}
}

// stop ends the run of a migration that must not write now. It may go on later.
func (g *migrator) stop(s *sweep, m *migrationv1alpha1.StorageVersionMigration, decision svmigrator.Decision) {
	g.failIfDecided(m, decision)
	delete(g.running, s.uid)
	g.stopped[s.uid] = s
	g.wake()
}

// end tries to end a migration whose objects are all done, as tryFinish does: it asks etcd who holds the Leases, reads
// the aggregated server, decides by the state as it is stored, and asks who follows the definition.
func (g *migrator) end(s *sweep, m *migrationv1alpha1.StorageVersionMigration) {
	c, leader, mutant := g.w.cluster, g.w.manager, &g.w.mutant
	resource := m.GroupResource()
	if leader == nil || !slices.Equal(leader.observer.living, c.living()) && !mutant.trustsLeases {
		g.goOn(s)
		return
	}
	if resource == flunders && !mutant.trustsPolls {
		leader.observer.readAggregated()
	}
	decision := g.decide(m, g.w.api.states[nameOf(resource)])
	if decision.Verdict != svmigrator.Go && !mutant.goesOn {
		g.stop(s, m, decision)
		return
	}
	if from := leader.observe(resource).CertainFrom; !from.IsZero() && !mutant.trustsLooks {
		g.goOn(s)
		return
	}
	if resource == crontabs && !g.everyServerFollows(m.Status.Target.StorageVersionHash) && !mutant.forgetsFollowers {
		g.conclude(s, m, migrationv1alpha1.MigrationFailed, migrationv1alpha1.MigrationReasonAgreementLost)
		return
	}
	if reason := g.fails; reason != "" {
		g.fails = ""
		g.conclude(s, m, migrationv1alpha1.MigrationFailed, reason)
		return
	}
	g.w.judge.succeeds(m)
	switch {
	case resource != crontabs:
		g.conclude(s, m, migrationv1alpha1.MigrationSucceeded, "")
	case !g.prune(s, m):
		g.goOn(s)
	}
}

// prune takes the versions in which no object is stored any more out of status.storedVersions, and then has the
// migration succeed. It reports false if the definition is not the one that was observed.
func (g *migrator) prune(s *sweep, m *migrationv1alpha1.StorageVersionMigration) bool {
	c, live := g.w.cluster, g.w.cluster.definition
	observation := g.w.manager.observe(crontabs)
	last, _ := observation.Last()
	observed := last.Evidence.CustomResourceDefinition
	if live == nil || !g.w.mutant.prunesBlindly && (observed == nil || observed.UID != live.uid ||
		observed.Generation != live.generation || live.encoding(live.storage) != m.Status.Target.StorageVersionHash) {
		return false
	}
	g.w.judge.prunes(live) // While the request is on its way a server may come back that counted as gone.
	g.w.after(g.w.dice.upTo(g.pace), func() {
		switch {
		case g.w.dice.oneIn(4): // It is refused.
			g.conclude(s, m, migrationv1alpha1.MigrationSucceeded, "")
		case c.definition == live:
			c.shorten()
			g.conclude(s, m, migrationv1alpha1.MigrationSucceeded, "")
		case g.running[s.uid] == s: // Somebody has changed the definition.
			g.goOn(s)
		}
	})
	return true
}

// conclude writes the end of a migration, unless somebody has changed it.
func (g *migrator) conclude(s *sweep, m *migrationv1alpha1.StorageVersionMigration,
	result migrationv1alpha1.MigrationConditionType, reason string) {
	g.w.after(g.w.dice.upTo(g.pace), func() {
		if g.w.api.migrations[m.Name] == m {
			g.finish(m, result, reason)
		}
		if g.running[s.uid] == s {
			delete(g.running, s.uid)
			g.stopped[s.uid] = s
			g.wake()
		}
	})
}

func (g *migrator) finish(m *migrationv1alpha1.StorageVersionMigration,
	result migrationv1alpha1.MigrationConditionType, reason string) {
	g.w.api.updateMigration(m.Name, m.UID, func(status *migrationv1alpha1.StorageVersionMigrationStatus) {
		now := metav1.NewTime(g.w.clock().Truncate(time.Second))
		status.CompletionTime = &now
		status.Conditions = []migrationv1alpha1.MigrationCondition{
			{Type: result, Status: corev1.ConditionTrue, Reason: reason},
		}
	})
}

// crash ends the migrator for a while. What it had done stays done. It begins anew.
func (g *migrator) crash(d time.Duration) {
	g.w.log("the migrator crashes")
	g.forget()
	g.away = g.w.now.Add(d)
	g.w.after(d, g.wake)
}

// forget is what the end of the process does.
func (g *migrator) forget() {
	g.running, g.stopped, g.followed.uid = map[types.UID]*sweep{}, map[types.UID]*sweep{}, ""
}
