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
	"slices"
	"time"
)

const (
	// politeLimit leaves a pause after each request that is about half as long as the request. It is for when others are
	// noticed, and while nothing is known.
	politeLimit = 0.7
	// lowestLimit is how far refusals and timeouts bring the limit down. It is not zero, or a migration would never go on.
	lowestLimit = 0.1
	// maxRest bounds the pause after a request that took very long.
	maxRest = 2 * time.Second

	// window is how many latencies of a lane are judged together.
	window = 64
	// Others are noticed when the slow requests of a window take spread times as long as the quick ones, because requests
	// that queue behind others take longer by chance, or when the quick ones take slower times as long as they did alone.
	spread = 1.6
	slower = 1.5
	// forgetPerHour is the share by which the time that they took alone rises in an hour.
	forgetPerHour = 0.25

	fall  = 0.5 // what the limit is multiplied with when others are noticed, and after a refusal
	climb = 0.7 // what is added to it when nobody else is noticed
)

// limiter is how many requests may be out at a time. A limit below one means one at a time, and a pause after each, so
// that requests are out for that share of the time.
type limiter struct {
	limit, most float64
	fixed       bool // the limit falls after refusals only
	changed     time.Time
	restUntil   time.Time
}

func newLimiter(most int, fixed bool) limiter {
	l := limiter{limit: politeLimit, most: float64(most), fixed: fixed}
	if fixed {
		l.limit = l.most
	}
	return l
}

func (l *limiter) admit(inFlight int, now time.Time) (until time.Time, open bool) {
	if inFlight >= max(1, int(l.limit)) {
		return time.Time{}, false
	}
	return l.restUntil, !now.Before(l.restUntil)
}

// rest begins the pause after a request.
func (l *limiter) rest(took time.Duration, now time.Time) {
	if l.limit < 1 {
		l.restUntil = now.Add(min(time.Duration(float64(took)*(1/l.limit-1)), maxRest))
	}
}

// pattern is what the latencies of one lane look like.
type pattern struct {
	latencies []time.Duration // that are not judged yet
	// alone is how long its quick requests take one at a time and without pauses. It falls at once and rises over hours:
	// others who stay must not become the measure.
	alone   time.Duration
	learned time.Time
}

// judge says whether others are noticed in a window. A pause makes the next request take longer, up to twice as long on
// an idle machine, so windows with pauses say nothing about how long requests take alone.
func (p *pattern) judge(limit float64, now time.Time) (noticed bool) {
	slices.Sort(p.latencies)
	quick, slow := p.latencies[len(p.latencies)/5], p.latencies[len(p.latencies)*9/10]
	p.latencies = p.latencies[:0]
	p.alone += time.Duration(float64(p.alone) * forgetPerHour * now.Sub(p.learned).Hours())
	p.learned = now
	if limit >= 1 && limit < 2 && (p.alone == 0 || quick < p.alone) {
		p.alone = quick
	}
	return float64(slow) > spread*float64(quick) || limit >= 1 && float64(quick) > slower*float64(p.alone)
}

// observe learns from a request that did its work, and changes the limit after each window.
func (l *limiter) observe(p *pattern, latency time.Duration, began, now time.Time) {
	if !began.After(l.changed) {
		return // sent at another limit
	}
	if p.latencies = append(p.latencies, latency); len(p.latencies) < window {
		return
	}
	switch noticed := p.judge(l.limit, now); {
	case l.fixed:
		l.set(l.limit/fall, now) // back to where it was before a refusal
	case noticed:
		l.set(max(l.limit*fall, min(l.limit, politeLimit)), now)
	case l.limit < politeLimit:
		l.set(min(l.limit/fall, politeLimit), now)
	default:
		l.set(l.limit+climb, now)
	}
}

// refused makes the limit fall once for all requests that were sent before it fell.
func (l *limiter) refused(began, now time.Time) {
	if began.After(l.changed) {
		l.set(l.limit*fall, now)
	}
}

// restart begins anew after an outage.
func (l *limiter) restart(now time.Time) { l.set(min(l.limit, politeLimit), now) }

func (l *limiter) set(limit float64, now time.Time) {
	l.limit, l.changed = min(max(limit, lowestLimit), l.most), now
}
