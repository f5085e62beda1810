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

package pacer

import (
	"math"
	"slices"
	"time"
)

const (
	// politeLimit leaves pauses that are about half as long as the requests before them.
	politeLimit = 0.65
	// lowestLimit is the lowest limit after overload. If it were zero, a migration would never continue.
	lowestLimit = 0.1
	// Pauses are saved up until they are at least leastRest, because a server that falls asleep after each request uses a
	// third more CPU for it. mostRest bounds the pause after requests that took very long.
	leastRest = 25 * time.Millisecond
	mostRest  = 2 * time.Second

	// window is how many latencies of a lane are judged together, and politeWindow is how many in a polite window. More
	// latencies give a safer judgement.
	window       = 64
	politeWindow = 128
	// A polite window is calm if its slow requests take no more than spread times as long as the quick ones: requests that
	// queue behind those of others take longer by chance. While others write it must be spreadBesideWriters. If it is
	// known that nobody writes, a window that is not calm is in doubt.
	spread              = 1.45
	spreadBesideWriters = 1.2
	// A sprint is too fast when its requests take tooSlow times as long as those of the last polite window. While they
	// take less than asQuick times as long, the next sprint may be faster.
	tooSlow = 1.5
	asQuick = 1.2

	fall  = 0.5 // what a limit is multiplied with when it is too high
	climb = 1.5 // what the limit of sprints is multiplied with when it may be higher
)

// sprintsAfter is how many sprints follow the first, the second and each further polite window in which nobody else is
// noticed. The first may be such a window by chance. If it is known that nobody writes, each counts as two.
var sprintsAfter = [...]int{1, 8, 32}

// sprintsInDoubt is how many sprints of one request at a time follow a window in doubt. They are no worse to others
// than a migrator without pauses.
const sprintsInDoubt = 16

// limiter says how many requests may be out at a time. A limit below one means one request at a time, with pauses, so
// that requests are out for that share of the time.
type limiter struct {
	limit, most float64
	unpaced     bool // the limit falls after overload only
	changed     time.Time
	saved       time.Duration // of pauses
	restUntil   time.Time

	calmWindows int     // grows with each calm polite window, and halves with each one in which others are noticed
	sprints     int     // how many sprints there are before the next polite window; zero in a polite window
	speed       float64 // the limit of the next sprint
	inDoubt     bool    // sprints do not become faster
}

func newLimiter(most int, unpaced bool) limiter {
	l := limiter{limit: politeLimit, most: float64(most), unpaced: unpaced, speed: 1}
	if unpaced {
		l.limit = l.most
	}
	return l
}

func (l *limiter) opensAt(inFlight int, now time.Time) (until time.Time, open bool) {
	if inFlight >= max(1, int(l.limit)) {
		return time.Time{}, false
	}
	return l.restUntil, !now.Before(l.restUntil)
}

// rest begins a pause after a request if one is due.
func (l *limiter) rest(took time.Duration, now time.Time) {
	if l.limit >= 1 {
		l.saved = 0
		return
	}
	if l.saved += time.Duration(float64(took) * (1/l.limit - 1)); l.saved >= leastRest {
		l.restUntil, l.saved = now.Add(min(l.saved, mostRest)), 0
	}
}

// pattern is what the latencies of one lane look like.
type pattern struct {
	latencies []time.Duration // since the limit changed
	since     time.Time       // when that was
	polite    time.Duration   // the median of the last polite window of this lane; zero before the first one
	writers   writers
}

// observe learns from a request that did its work, and changes the limit after each window.
func (l *limiter) observe(p *pattern, latency time.Duration, began, now time.Time) {
	if !began.After(l.changed) {
		return // sent at another limit
	}
	if !p.since.Equal(l.changed) {
		p.since, p.latencies = l.changed, p.latencies[:0]
	}
	if p.latencies = append(p.latencies, latency); len(p.latencies) < l.judged() {
		return
	}
	slices.Sort(p.latencies)
	n := len(p.latencies)
	quick, median, slow := p.latencies[n/5], p.latencies[n/2], p.latencies[n*4/5]
	switch {
	case l.unpaced:
		l.set(l.limit/fall, now) // back to where it was before the overload
		return
	case l.limit < politeLimit:
		l.set(min(l.limit/fall, politeLimit), now)
		return
	case l.sprints > 0 && p.polite == 0:
		l.sprints-- // The lane began in a sprint, and has nothing to compare it with.
	case l.sprints > 0:
		l.judgeSprint(float64(median) / float64(p.polite))
	default:
		p.polite = median
		l.judgePoliteWindow(float64(slow)/float64(quick), p.writers.noticed(), p.writers.none(now))
	}
	if l.sprints > 0 {
		l.set(l.speed, now)
	} else {
		l.set(politeLimit, now)
	}
}

// judged is how many latencies are judged together.
func (l *limiter) judged() int {
	if l.limit == politeLimit {
		return politeWindow
	}
	return window
}

// judgePoliteWindow judges a polite window by how far its latencies spread. Both writers and noWriters are false if it
// is not known whether others write.
func (l *limiter) judgePoliteWindow(ratio float64, writers, noWriters bool) {
	l.inDoubt = false
	calm, counts := ratio <= spread, 1
	if writers {
		calm = ratio <= spreadBesideWriters
	}
	if noWriters {
		counts = 2
	}
	switch {
	case calm:
		l.calmWindows = min(l.calmWindows+counts, len(sprintsAfter))
		l.sprints = sprintsAfter[l.calmWindows-1]
	case noWriters:
		l.inDoubt = true
		l.sprints, l.speed = sprintsInDoubt, 1
	default:
		if l.calmWindows /= 2; l.calmWindows == 0 {
			l.speed = 1
		}
	}
}

// judgeSprint judges a sprint by how long its requests took, compared with those of the last polite window.
func (l *limiter) judgeSprint(ratio float64) {
	l.sprints--
	switch {
	case ratio > tooSlow && l.speed == 1:
		l.sprints = 0
	case ratio > tooSlow:
		l.speed = math.Ceil(l.speed * fall)
	case ratio < asQuick && !l.inDoubt:
		l.speed = min(math.Ceil(l.speed*climb), l.most)
	}
}

// endSprints ends sprints, because others have begun to write. The next polite window shows whether requests slow each
// other down.
func (l *limiter) endSprints(now time.Time) {
	if l.sprints > 0 {
		l.sprints = 0
		l.set(politeLimit, now)
	}
}

// overloaded makes the limit fall once for all requests that were sent before it fell.
func (l *limiter) overloaded(began, now time.Time) {
	if began.After(l.changed) {
		l.restart(l.limit*fall, now)
	}
}

// restart begins anew after overload and outages, with at most the given limit.
func (l *limiter) restart(limit float64, now time.Time) {
	l.calmWindows, l.sprints, l.speed = 0, 0, 1
	if !l.unpaced {
		limit = min(limit, politeLimit)
	}
	l.set(limit, now)
}

func (l *limiter) set(limit float64, now time.Time) {
	l.limit, l.changed = min(max(limit, lowestLimit), l.most), now
}
