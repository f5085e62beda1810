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
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/svm-api/migration/v1alpha1"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// sinceAndUntil finds in the message of a migration that is refused since when it is, and when it tries again.
var sinceAndUntil = regexp.MustCompile(
	`^Rewriting (?:an|\d+) objects? has failed since (\S+), the next try is at (\S+): ` +
		`.*(unable to handle|Service Unavailable)`,
)

// testServerPushesBack lets the servers refuse rewrites, and lose answers to them.
func testServerPushesBack(t *testing.T, c *cluster) {
	// At this rate there is time to see that the migration goes on, and to refuse again, before it ends.
	const burdens, perSecond = 400, 10
	refused, lossy := c.stage(t, "burdens", "Burden", burdens), c.stage(t, "riddles", "Riddle", 60)
	gate, err := c.NewInterceptor("", nil)
	if err != nil {
		t.Fatal(err)
	}
	server := &moody{}
	gate.Intercept(server.judge)
	c.startProcess(t, framework.Process{
		Name: "manager", Config: gate.Config(framework.ManagerUser, framework.Masters), Args: steadily(perSecond),
	})
	refused.migrate(t)

	refused.writes.reach(t, 40, soon)
	const retryAfter = 3 * time.Second
	server.be(func(int) controlplane.Verdict { return controlplane.TooManyRequests("3") })
	poll(t, soon, func() error {
		if n := mostTries(server.arrived()); n < 3 {
			return fmt.Errorf("an object was tried %d times at most", n)
		}
		return nil
	})
	arrivals := server.be(nil)
	obeyed(t, arrivals, retryAfter)
	written := refused.writes.count()
	refused.writes.reach(t, written+20, soon)
	c.reports(t, "burdens", v1alpha1.MigrationRunning, corev1.ConditionTrue, v1alpha1.MigrationReasonRewriting, soon)

	server.be(func(int) controlplane.Verdict { return controlplane.Verdict{Status: http.StatusServiceUnavailable} })
	began := time.Now()
	retrying := c.reports(t, "burdens",
		v1alpha1.MigrationRunning, corev1.ConditionTrue, v1alpha1.MigrationReasonRetrying, soon)
	t.Logf("%v after the first refusal the migration said: %s", time.Since(began), retrying.Message)
	toldOf := sinceAndUntil.FindStringSubmatch(retrying.Message)
	if toldOf == nil {
		t.Errorf("the message does not say since when, until when and why: %s", retrying.Message)
	} else {
		near(t, "since", toldOf[1], began)
		near(t, "the next try", toldOf[2], time.Now())
	}
	away := time.Since(began)
	arrivals = server.be(nil)
	if most := 10 + 5*int(away.Seconds()); len(arrivals) > most {
		t.Errorf("%d PATCH requests were sent to a server that was not available for %v, want %d at most",
			len(arrivals), away, most)
	}
	recovering := time.Now()
	written = refused.writes.count()
	refused.writes.reach(t, written+1, soon)
	first := time.Since(recovering)
	m, _ := refused.succeeded(t, soon, 1)
	t.Logf("%d refusals in %v; the next write came %v after, the end with %d objects more %v: %s",
		len(arrivals), away, first, burdens-written, time.Since(recovering), words(m))
	// On a slow machine a server loses answers on its own.
	p := m.Status.Progress
	if p.Rewritten+p.WrittenByOthers != burdens || p.WrittenByOthers > p.Retried || p.Retried == 0 {
		t.Errorf("all objects were to be rewritten, some of them later: %s", words(m))
	}
	losesAnswers(t, lossy, server)
}

// losesAnswers has every tenth PATCH done, and the manager not know.
func losesAnswers(t *testing.T, s *scene, server *moody) {
	lost := 0
	server.be(func(number int) controlplane.Verdict {
		if number%10 != 0 {
			return controlplane.Verdict{}
		}
		lost++
		return controlplane.Verdict{Cut: controlplane.CutAfter}
	})
	s.migrate(t)
	m, _ := s.succeeded(t, soon, 1)
	arrivals := server.be(nil)
	p := m.Status.Progress
	t.Logf("%d answers of %d were lost; %s", lost, len(arrivals), words(m))
	// A second try that begins with a dry run finds out by that, and no other PATCH follows.
	if lost < s.n/10 || len(arrivals) < s.n || len(arrivals) > s.n+int(p.Retried) || p.Retried < int64(lost) {
		t.Errorf("of %d PATCH requests for %d objects %d got no answer: %s", len(arrivals), s.n, lost, words(m))
	}
	// One whose answer was lost is found to be written when it is tried again.
	if p.Rewritten+p.WrittenByOthers != int64(s.n) || p.WrittenByOthers == 0 || p.WrittenByOthers > p.Retried {
		t.Errorf("of %d objects the answers for %d were lost: %s", s.n, lost, words(m))
	}
}

// arrival is a PATCH request that has arrived.
type arrival struct {
	at   time.Time
	path string
}

// mostTries returns how often the object was tried that was tried most often.
func mostTries(arrivals []arrival) int {
	tries, most := map[string]int{}, 0
	for _, a := range arrivals {
		tries[a.path]++
		most = max(most, tries[a.path])
	}
	return most
}

// obeyed complains about requests that arrived before the time was up that the answers to those before them asked for.
// What was on its way when the first answer came could not know of it.
func obeyed(t *testing.T, arrivals []arrival, retryAfter time.Duration) {
	t.Helper()
	last, round, inRound := map[string]time.Time{}, time.Time{}, 0
	for _, a := range arrivals {
		if before, again := last[a.path]; again && a.at.Sub(before) < retryAfter {
			t.Errorf("a PATCH of %s arrived %v after it was asked to wait for %v", a.path, a.at.Sub(before), retryAfter)
		}
		last[a.path] = a.at
		if a.at.Sub(round) >= retryAfter {
			round, inRound = a.at, 0
		}
		// On a busy machine some are on their way for so long that they meet those of the next round.
		if inRound++; inRound > 2*onTheirWay {
			t.Errorf("%d PATCH requests arrived in the %v in which all were to wait", inRound, retryAfter)
		}
	}
	t.Logf("%d PATCH requests about %d objects were asked to wait", len(arrivals), len(last))
}

// near complains about a time that is not that of the event, give or take a moment.
func near(t *testing.T, what, said string, event time.Time) {
	t.Helper()
	at, err := time.Parse(time.RFC3339, strings.TrimSuffix(said, ":"))
	if err != nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	if off := at.Sub(event).Abs(); off > 35*time.Second {
		t.Errorf("%s is said to be %s, which is off by %v", what, said, off)
	}
}

// moody answers PATCH requests for custom resources in ways that change.
type moody struct {
	mu       sync.Mutex
	mood     func(number int) controlplane.Verdict
	arrivals []arrival
}

// be changes the way, nil for the usual one, and returns which requests came since it was changed before.
func (m *moody) be(mood func(number int) controlplane.Verdict) []arrival {
	m.mu.Lock()
	defer m.mu.Unlock()
	arrivals := m.arrivals
	m.mood, m.arrivals = mood, nil
	return arrivals
}

// arrived returns which requests came since the way was changed.
func (m *moody) arrived() []arrival {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.arrivals)
}

func (m *moody) judge(r *http.Request) controlplane.Verdict {
	ours := strings.Contains(r.URL.Path, fmt.Sprintf("/apis/%s/", newCustom("", "").Group))
	if r.Method != http.MethodPatch || !ours || r.URL.Query().Has("dryRun") {
		return controlplane.Verdict{}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.arrivals = append(m.arrivals, arrival{time.Now(), r.URL.Path})
	if m.mood == nil {
		return controlplane.Verdict{}
	}
	return m.mood(len(m.arrivals))
}
