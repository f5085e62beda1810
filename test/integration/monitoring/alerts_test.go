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

package monitoring

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"

	"sigs.k8s.io/svm-controller-manager/test/integration/framework"
)

// afterDays are alerts that no test can await. promtool plays them.
var afterDays = []string{"SVMMigrationWaiting", "SVMNotMigrated"}

// hurried are rules that need seconds for what they need minutes for. The manager may be away for as long as a restart
// takes. A source counts that is polled every few seconds: a watch that has nothing to tell says so once a minute only.
func hurried(rules ruleFile) ruleFile {
	shorter := strings.NewReplacer("[15m]", "[20s]", "[10m]", "[20s]", "[1h]", "[60s]", "offset 1h", "offset 60s",
		"[5m]", "[8s]", "> 1800", "> 40",
		"seconds_since_last_observation)", `seconds_since_last_observation{source="ServerDiscovery"})`)
	return changed(rules, func(r *rule) {
		r.Expr = shorter.Replace(r.Expr)
		switch {
		case slices.Contains(afterDays, r.Alert): // Migrations wait for seconds all the time.
		case r.Alert == "SVMControllerManagerDown":
			r.For = "20s"
		case strings.Contains(r.Expr, "[8s]"): // One sample is no reason to fire.
			r.For = "11s"
		case r.For != "":
			r.For = "3s"
		}
	})
}

// alerts knows when which alerts may fire.
type alerts struct {
	*prometheus
	names []string

	mu      sync.Mutex
	windows map[string][]*window
}

// window is a time in which an alert may fire. The end is zero as long as it lasts.
type window struct{ from, to time.Time }

// situation is something that an administrator has to know about.
type situation struct {
	name string
	// fires are the alerts that tell.
	fires []string
	// mayFire are alerts that fire besides, if the machine is slow or for as long as a process restarts.
	mayFire []string
	begin   func(t *testing.T)
	// end does what the handbook says. All alerts fall silent then.
	end func(t *testing.T)
}

// play wants the alerts of the situation, and silence after it.
func (a *alerts) play(t *testing.T, s situation) {
	t.Helper()
	all := slices.Concat(s.fires, s.mayFire)
	closeWindows := a.open(t, all)
	if s.begin != nil {
		s.begin(t)
	}
	began := time.Now()
	framework.Eventually(t, soon, func(ctx context.Context) error { return a.all(ctx, s.fires, true) })
	fired := time.Now()
	if s.end != nil {
		s.end(t)
	}
	ended := time.Now()
	a.awaitSilence(t, all)
	closeWindows()
	t.Logf("%v: %v fired after %v, and fell silent %v after the end", s.name, s.fires,
		fired.Sub(began).Round(time.Second), time.Since(ended).Round(time.Second))
}

// awaitSilence waits until none of the alerts has fired for some time in which Prometheus missed no scrape. On a busy
// machine it misses one now and then, and an alert about what it does not see pauses.
func (a *alerts) awaitSilence(t *testing.T, names []string) {
	t.Helper()
	const silence = 10 * time.Second
	last := time.Now()
	framework.Eventually(t, soon, func(ctx context.Context) error {
		seen, err := a.query(ctx, `min_over_time(up[10s]) == 1`)
		if err == nil && len(seen) == 0 {
			err = errors.New("the manager was not scraped")
		}
		if err = errors.Join(err, a.all(ctx, names, false)); err != nil {
			last = time.Now()
		} else if quiet := time.Since(last); quiet < silence {
			err = fmt.Errorf("%v have been silent for %v only", names, quiet)
		}
		return err
	})
}

func (a *alerts) open(t *testing.T, names []string) (closeThem func()) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	var opened []*window
	for _, name := range names {
		if !slices.Contains(a.names, name) {
			t.Fatalf("there is no alert %s", name)
		}
		w := &window{from: time.Now()}
		opened = append(opened, w)
		a.windows[name] = append(a.windows[name], w)
	}
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		for _, w := range opened {
			w.to = time.Now()
		}
	}
}

// all complains unless all these alerts fire, or none of them.
func (a *alerts) all(ctx context.Context, names []string, firing bool) error {
	found, err := a.query(ctx, `ALERTS{alertstate="firing"}`)
	if err != nil {
		return err
	}
	fires := sets.Set[string]{}
	for _, s := range found {
		fires.Insert(s.Metric["alertname"])
	}
	var errs []error
	for _, name := range names {
		if fires.Has(name) != firing {
			errs = append(errs, fmt.Errorf("%s fires: %t", name, !firing))
		}
	}
	return errors.Join(errs...)
}

// check wants that no alert ever fired outside of its situations, and that each one has fired. A manager that is too
// busy to be scraped counts as gone, so what fires while Prometheus misses scrapes is not judged.
func (a *alerts) check(t *testing.T) {
	t.Helper()
	const firing = `ALERTS{alertstate="firing"}`
	history, err := a.history(t.Context(), firing)
	if err != nil {
		t.Fatal(err)
	}
	fired := map[string]bool{}
	for _, s := range history {
		fired[s.Metric["alertname"]] = true
	}
	scraped, err := a.history(t.Context(), firing+` unless on () (min_over_time(up[10s]) == 0)`)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scraped {
		name := s.Metric["alertname"]
		for _, value := range s.Values {
			if at := moment(value); !a.mayFire(name, at) {
				t.Errorf("%s fired at %v, outside of its situations: %v", name, at.Format(time.TimeOnly), s.Metric)
				break
			}
		}
	}
	for _, name := range a.names {
		if !fired[name] {
			t.Errorf("%s has never fired", name)
		}
	}
}

// checkOthers wants the manager to have counted writes of others.
func (a *alerts) checkOthers(t *testing.T) {
	t.Helper()
	counted, err := a.history(t.Context(), `storage_version_migrator_pace_others_writes_per_second > 0`)
	if err != nil || len(counted) == 0 {
		t.Errorf("the manager has not counted what others write (%v)", err)
	}
}

func (a *alerts) mayFire(name string, at time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.ContainsFunc(a.windows[name], func(w *window) bool {
		return !at.Before(w.from) && (w.to.IsZero() || !at.After(w.to))
	})
}
