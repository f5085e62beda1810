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
	"time"
)

const (
	// refusedPause is how long everybody waits after a refusal that names no time.
	refusedPause = 250 * time.Millisecond
	// maxRetryAfter bounds what a server may ask for.
	maxRetryAfter = 5 * time.Minute

	firstProbeAfter = 500 * time.Millisecond
	lastProbeAfter  = 30 * time.Second
	// probeJitter is the largest share of a time between probes that is left out, so that managers do not probe in step.
	probeJitter = 0.25

	// burstSeconds is for how long the rate may be caught up with when timers come late.
	burstSeconds = 0.02
)

// Reason is why nothing may be sent for a while.
type Reason string

const (
	// Asked is that a server refused, or asked to wait.
	Asked Reason = "AskedToWait"
	// Lost is that no server can be reached.
	Lost Reason = "Unreachable"
)

// gate is when the next request may be sent, whatever the limit.
type gate struct {
	perSecond, tokens, burst float64
	filled                   time.Time

	askedUntil time.Time

	attempts  int // that failed to reach a server, in a row
	probe     int64
	nextProbe time.Time
	random    func() float64
}

func newGate(perSecond float64, random func() float64) gate {
	burst := math.Max(1, perSecond*burstSeconds)
	return gate{perSecond: perSecond, burst: burst, tokens: 1, random: random}
}

func (g *gate) admit(now time.Time) (until time.Time, open bool) {
	switch {
	case now.Before(g.askedUntil):
		return g.askedUntil, false
	case g.attempts > 0 && g.probe != 0:
		return time.Time{}, false // until the probe is back
	case g.attempts > 0 && now.Before(g.nextProbe):
		return g.nextProbe, false
	case g.perSecond <= 0:
		return time.Time{}, true
	}
	if g.filled.IsZero() {
		g.filled = now
	}
	if since := now.Sub(g.filled); since > 0 {
		g.tokens = min(g.tokens+since.Seconds()*g.perSecond, g.burst)
		g.filled = now
	}
	if g.tokens >= 1 {
		return time.Time{}, true
	}
	// Rounded up, or a clock that stands still until then would call too early for ever.
	return now.Add(time.Duration((1-g.tokens)/g.perSecond*float64(time.Second)) + time.Microsecond), false
}

func (g *gate) taken(number int64) {
	if g.perSecond > 0 {
		g.tokens--
	}
	if g.attempts > 0 {
		g.probe = number
	}
}

// answered is told of every answer: it ends an outage.
func (g *gate) answered() { g.attempts, g.probe = 0, 0 }

// refused is told of a refusal.
func (g *gate) refused(retryAfter time.Duration, now time.Time) {
	pause := min(max(retryAfter, refusedPause), maxRetryAfter)
	if until := now.Add(pause); until.After(g.askedUntil) {
		g.askedUntil = until
	}
}

// lost is told of a request that reached no server. Those that were sent before the outage was noticed say nothing new.
func (g *gate) lost(number int64, now time.Time) {
	if g.attempts > 0 && number != g.probe {
		return
	}
	after := min(firstProbeAfter.Seconds()*math.Pow(2, float64(g.attempts))/(1-probeJitter), lastProbeAfter.Seconds())
	after *= 1 - probeJitter*g.random()
	g.attempts++
	g.probe = 0
	g.nextProbe = now.Add(time.Duration(after * float64(time.Second)))
}

// abandoned is told of a request that nobody knows the end of.
func (g *gate) abandoned(number int64) {
	if number == g.probe {
		g.probe = 0
	}
}

// paused says until when nothing is sent, and why; zero if something may be.
func (g *gate) paused(now time.Time) (time.Time, Reason) {
	switch {
	case now.Before(g.askedUntil):
		return g.askedUntil, Asked
	case g.attempts > 0:
		return g.nextProbe, Lost
	}
	return time.Time{}, ""
}
