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
	"fmt"
	"time"

	"sigs.k8s.io/svm-controller-manager/pkg/controller/svmtrigger"
)

// beginning is when every history begins.
var beginning = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// world is everything.
type world struct {
	now  time.Time
	plan calendar
	dice dice

	periods svmtrigger.Periods
	cluster *cluster
	store   *store
	api     *apiServer
	feeds   *feeds
	manager *manager // nil while none runs
	lives   int      // how many managers have run
	// unserved says that no API server answers requests.
	unserved bool
	migrant  *migrator
	judge    *judge
	backups  []*backup // of etcd, the oldest first

	// rush counts what happens in one moment.
	rush int
	// quiet says that nothing but the clockwork goes on anymore.
	quiet   bool
	mutant  mutant
	failure error
	// tell gets a line for everything that happens, if it is not nil.
	tell func(line string)
}

// newWorld makes a cluster in which everything is in order, and a manager that begins.
func newWorld(start setting, m mutant, tell func(string)) *world {
	w := &world{now: beginning, periods: svmtrigger.DefaultPeriods(), mutant: m, tell: tell}
	w.cluster = newCluster(w)
	w.store = newStore(w)
	w.api = newAPIServer(w)
	w.feeds = newFeeds(w)
	w.migrant = newMigrator(w)
	w.judge = newJudge(w)
	w.cluster.setUp(start)
	w.startManager()
	w.keepWriting()
	w.keepBackups()
	return w
}

// rushing is more than can happen in one moment if nothing goes in circles.
const rushing = 1000

// after plans something.
func (w *world) after(d time.Duration, do func()) { w.plan.plan(w.now.Add(d), do) }

// afterWhenServed plans something that needs an API server. While none answers it waits for one.
func (w *world) afterWhenServed(d time.Duration, do func()) {
	w.after(d, func() {
		if w.unserved {
			w.afterWhenServed(time.Second, do)
			return
		}
		do()
	})
}

// pass lets time pass, and everything happen that belongs there.
func (w *world) pass(d time.Duration) {
	end := w.now.Add(d)
	for w.failure == nil {
		e, ok := w.plan.next(end)
		if !ok {
			break
		}
		if e.at.After(w.now) {
			w.now, w.rush = e.at, 0
		}
		if w.rush++; w.rush > rushing {
			w.violated("hot loop: more than %d things happen in one moment", rushing)
		}
		e.do()
		w.api.noteServers()
		w.judge.check()
	}
	if w.failure == nil {
		w.now = end
		w.judge.check()
	}
}

// violated ends the history.
func (w *world) violated(format string, args ...any) {
	if w.failure != nil {
		return
	}
	w.failure = fmt.Errorf("after %s: %s", w.now.Sub(beginning), fmt.Sprintf(format, args...))
	w.log("VIOLATION: %v", w.failure)
}

func (w *world) log(format string, args ...any) {
	if w.tell != nil {
		w.tell(fmt.Sprintf("%10.1fs  %s", w.now.Sub(beginning).Seconds(), fmt.Sprintf(format, args...)))
	}
}
