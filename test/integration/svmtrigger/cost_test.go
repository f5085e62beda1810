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
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/svm-api/client/clientset/versioned"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

const (
	idleGroups, idlePerGroup = 10, 3
	idleWindow               = time.Minute
	// startWindow is more than a manager needs to begin all its watches.
	startWindow = 20 * time.Second
	// Where polling is made quicker than by default, to see what one round costs.
	pollWindow, quickPoll = 30 * time.Second, 10 * time.Second
	// roundsAnHour is how often both poll in an hour: every ten minutes.
	roundsAnHour = 6
	// renewalsAnHour is how often clients begin a watch anew: after five to ten minutes.
	renewalsAnHour = 8
	// heartbeatInterval is the longest that a state goes without being written.
	heartbeatInterval = time.Hour

	pollingUser = "polling-trigger"
)

// testIdleCost counts what the trigger asks of the API servers when nothing happens, next to what a trigger asks that
// polls as kube-storage-version-migrator's does, which reads all documents, and reads and writes every state, every ten
// minutes. Neither number contains a leader election.
//
// A minute shows no watch that is begun anew, so these are added, and to one of the numbers only. Heartbeats of
// states are made as old as they are in a cluster that runs for hours: spread over all of their interval.
func testIdleCost(t *testing.T, c *cluster) {
	c.defineMany(t)
	const noMigrations = "--auto-migrate=-*"
	_, port, err := net.SplitHostPort(framework.FreeAddress(t)) // A port costs requests, too.
	if err != nil {
		t.Fatal(err)
	}
	quick := c.startManager(t, "quick", "--poll-interval="+quickPoll.String(), noMigrations,
		"--secure-port="+port)
	expected := migratable(t, c)
	framework.EventuallySeen(t, soon, func() error { return c.haveStates(expected) })

	theirs := float64(c.pollOnce(t)) * roundsAnHour
	c.spreadHeartbeats(t) // The polling wrote all of them.
	before, began := c.allStates(), c.mark(t)
	round := math.Inf(1)
	for tries := 3; tries > 0 && round*roundsAnHour > theirs/8; tries-- { // On a busy machine one may have more requests.
		round = min(round, c.pollRound(t, before, began))
	}
	framework.StopManager(t, quick)

	warm := time.Now()
	manager := c.startManager(t, "manager", noMigrations, "--secure-port="+port)
	framework.During(t, startWindow, func(context.Context) error { return c.nothingDoubted(before, began) })
	start := c.requestsOf(t, framework.ManagerUser, warm, time.Now())
	t.Logf("the start of a manager costs %s", describe(start))
	watches := start.Count(func(k controlplane.RequestKind) bool { return k.Verb == "watch" })

	var ours float64
	for tries := 6; tries > 0; tries-- {
		idle := c.idle(t, before, began)
		t.Logf("in %v of quiet: %s", idleWindow, describe(idle))
		ours = float64(idle.Total())*float64(time.Hour/idleWindow) + round*roundsAnHour + float64(watches*renewalsAnHour)
		if ours < theirs/4 {
			break // On a busy machine the servers themselves give reasons for a few requests.
		}
	}
	t.Logf("requests an hour with %d resources: ours %.0f, by polling %.0f", len(expected), ours, theirs)
	if ours >= theirs/4 {
		t.Errorf("an idle trigger sends %.0f requests an hour, not less than a quarter of the %.0f of polling", ours, theirs)
	}
	framework.StopManager(t, manager)
}

// pollRound is how many requests a round of the manager takes that polls quickly.
func (c *cluster) pollRound(t *testing.T, before map[string]*v1alpha1.StorageState, since int64) float64 {
	t.Helper()
	polling := time.Now()
	framework.During(t, pollWindow, func(context.Context) error { return c.nothingDoubted(before, since) })
	polled := time.Since(polling)
	polls := c.requestsOf(t, framework.ManagerUser, polling, time.Now())
	t.Logf("in %v at a poll interval of %v: %s", polled.Round(time.Second), quickPoll, describe(polls))
	return float64(polls.Total()) * float64(quickPoll) / float64(polled)
}

// idle counts the requests of a window, without the watches that clients begin anew in it.
func (c *cluster) idle(
	t *testing.T, before map[string]*v1alpha1.StorageState, since int64,
) controlplane.RequestCounts {
	t.Helper()
	quiet := time.Now()
	framework.During(t, idleWindow, func(context.Context) error { return c.nothingDoubted(before, since) })
	counts := c.requestsOf(t, framework.ManagerUser, quiet, time.Now())
	maps.DeleteFunc(counts, func(kind controlplane.RequestKind, _ int) bool { return kind.Verb == "watch" })
	return counts
}

// spreadHeartbeats gives states heartbeats of all ages, and waits until those that are due were written.
func (c *cluster) spreadHeartbeats(t *testing.T) {
	t.Helper()
	names := slices.Sorted(maps.Keys(c.allStates()))
	for i, name := range names {
		c.ageHeartbeat(t, name, heartbeatInterval*time.Duration(i)/time.Duration(len(names)))
	}
	framework.EventuallySeen(t, soon, func() error {
		for _, name := range names {
			if writes := c.stateWrites(name, 0); time.Since(writes[len(writes)-1].seen) < settle {
				return fmt.Errorf("states are still written: %s", words(c.state(name)))
			}
		}
		return nil
	})
}

// defineMany creates definitions in several groups.
func (c *cluster) defineMany(t *testing.T) {
	t.Helper()
	var creating sync.WaitGroup
	for group := range idleGroups {
		creating.Go(func() {
			for number := range idlePerGroup {
				r := custom(fmt.Sprintf("group-%d.example.com", group), fmt.Sprintf("things%ds", number),
					fmt.Sprintf("Things%d", number))
				_, err := c.Definitions().Create(t.Context(), newDefinition(r, "v1"), metav1.CreateOptions{})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	creating.Wait()
	framework.Eventually(t, soon, func(context.Context) error {
		served := 0
		for _, gr := range migratable(t, c) {
			if strings.HasPrefix(gr.Group, "group-") {
				served++
			}
		}
		if served != idleGroups*idlePerGroup {
			return fmt.Errorf("%d definitions are served", served)
		}
		return nil
	})
}

// requestsOf counts what a user asked of all servers.
func (c *cluster) requestsOf(t *testing.T, user string, since, until time.Time) controlplane.RequestCounts {
	t.Helper()
	counts, err := c.Requests(controlplane.RequestFilter{Users: []string{user}, Since: since, Until: until})
	if err != nil {
		t.Fatal(err)
	}
	return counts
}

func describe(counts controlplane.RequestCounts) string {
	sums := map[string]int{}
	for kind, n := range counts {
		what := "documents"
		if kind.Resource != (schema.GroupResource{}) {
			what = kind.Resource.String()
		}
		if kind.Subresource != "" {
			what += "/" + kind.Subresource
		}
		sums[kind.Verb+" "+what] += n
	}
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(sums)) {
		parts = append(parts, fmt.Sprintf("%s %d", key, sums[key]))
	}
	return fmt.Sprintf("%d requests (%s)", counts.Total(), strings.Join(parts, ", "))
}

// pollOnce goes one round as a trigger does that polls, and returns how many requests that took: it reads all discovery
// documents, and reads and writes every state.
func (c *cluster) pollOnce(t *testing.T) int {
	t.Helper()
	cfg := c.Config(pollingUser, framework.Masters)
	documents, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	documents.UseLegacyDiscovery = true
	client, err := versioned.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	lists, err := documents.ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	states := client.MigrationV1alpha1().StorageStates()
	written := 0
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if strings.Contains(r.Name, "/") || !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "update") {
				continue
			}
			state, err := states.Get(t.Context(), schema.GroupResource{Group: gv.Group, Resource: r.Name}.String(),
				metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			state.Status.LastHeartbeatTime = metav1.Now()
			if _, err := states.UpdateStatus(t.Context(), state, metav1.UpdateOptions{}); err != nil &&
				!apierrors.IsConflict(err) {
				t.Fatal(err)
			}
			written++
		}
	}
	// Servers log a request when they have answered it.
	framework.Eventually(t, soon, func(context.Context) error {
		logged := c.requestsOf(t, pollingUser, began, time.Time{}).Count(func(k controlplane.RequestKind) bool {
			return k.Verb == "update"
		})
		if logged < written {
			return fmt.Errorf("%d of %d updates are in the audit log", logged, written)
		}
		return nil
	})
	return c.requestsOf(t, pollingUser, began, time.Time{}).Total()
}
