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
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// overloadPause is how long all lanes wait at least after a request that failed because of overload.
	overloadPause = 250 * time.Millisecond
	// MaxRetryAfter is how long anything waits at most, whatever a server asks for.
	MaxRetryAfter = 5 * time.Minute
	// lateness is how far behind the bound on the rate may fall when timers come late. Later requests make up for that.
	lateness = 20 * time.Millisecond
)

// probes are the times between probes while no server answers. Because of the jitter several managers do not probe at
// the same time.
var probes = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 2, Jitter: 0.25, Steps: 10, Cap: 30 * time.Second}

// gate says when the next request may be sent, whatever the limit is.
type gate struct {
	interval time.Duration // between two requests on average; zero without a bound on the rate
	nextAt   time.Time     // when the bound on the rate allows the next request

	askedUntil time.Time // until when servers asked to wait

	nextProbe time.Time // when the next probe may be sent; zero while servers answer
	probe     *Permit   // the probe that is out: a request that shows whether a server answers
	backoff   wait.Backoff
}

func newGate(perSecond float64) gate {
	g := gate{backoff: probes}
	if perSecond > 0 {
		g.interval = time.Duration(float64(time.Second) / perSecond)
	}
	return g
}

func (g *gate) opensAt(now time.Time) (until time.Time, open bool) {
	if g.probe != nil {
		return time.Time{}, false // until the probe is back
	}
	until = latest(g.askedUntil, latest(g.nextAt, g.nextProbe))
	return until, !now.Before(until)
}

// sent counts a request that is sent now.
func (g *gate) sent(p *Permit, now time.Time) {
	if g.interval > 0 {
		g.nextAt = latest(g.nextAt, now.Add(-lateness)).Add(g.interval)
	}
	if !g.nextProbe.IsZero() {
		g.probe = p
	}
}

// answered ends an outage.
func (g *gate) answered() { g.nextProbe, g.probe, g.backoff = time.Time{}, nil, probes }

// overloaded makes all lanes wait.
func (g *gate) overloaded(retryAfter time.Duration, now time.Time) {
	g.askedUntil = latest(g.askedUntil, now.Add(min(max(retryAfter, overloadPause), MaxRetryAfter)))
}

// lost begins an outage, or prolongs it if p was the probe. Requests sent before the outage was noticed say nothing
// new.
func (g *gate) lost(p *Permit, now time.Time) {
	if g.nextProbe.IsZero() || p == g.probe {
		g.probe, g.nextProbe = nil, now.Add(g.backoff.Step())
	}
}

// abandoned lets another request be the probe if p was the probe.
func (g *gate) abandoned(p *Permit) {
	if p == g.probe {
		g.probe = nil
	}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
