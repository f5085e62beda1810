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
	// groupRequests is how many requests alone are looked at together.
	groupRequests = 24
	// Shorter times are believed within seconds, longer ones within a minute or two: that others make the server slow passes, that
	// requests became dearer does not.
	shorterWithin = 2 * time.Second
	longerWithin  = time.Minute
	// recentWeight is that of one request in what requests take now.
	recentWeight = 0.05

	// firstFor is how long a lane is looked at before anything is believed. A server that collects garbage is twice as slow for a
	// tenth of a second, and who takes that for its best goes much too fast.
	firstFor = time.Second

	dipEvery = 10 * time.Second
	// dipFor is how long a dip lasts at most; the first one of a lane takes firstFor.
	dipFor = 2 * time.Second
)

// baseline is how long requests of one lane take alone.
type baseline struct {
	best    float64 // seconds; zero while unknown
	recent  float64 // seconds
	group   []float64
	settled time.Time
}

func (b *baseline) known() bool { return b.best > 0 }

func (b *baseline) ratio(latency time.Duration) float64 { return latency.Seconds() / b.best }

// typical is what a request is expected to take.
func (b *baseline) typical() time.Duration { return time.Duration(b.recent * float64(time.Second)) }

// learn takes the latency of a request that was alone.
func (b *baseline) learn(latency time.Duration, now time.Time) {
	if b.settled.IsZero() {
		b.settled = now
	}
	b.group = append(b.group, latency.Seconds())
	if b.known() || now.Sub(b.settled) >= firstFor {
		b.settle(now)
	}
}

// settle draws the conclusion from the requests so far, if they are enough.
func (b *baseline) settle(now time.Time) {
	if len(b.group) < groupRequests {
		return
	}
	seen := median(b.group)
	b.group = b.group[:0]
	since := now.Sub(b.settled)
	b.settled = now
	if !b.known() {
		b.best = seen
		return
	}
	within := longerWithin
	if seen < b.best {
		within = shorterWithin
	}
	weight := 1 - math.Exp(-min(since, dipEvery).Seconds()/within.Seconds())
	b.best += (seen - b.best) * weight
}

// lately adds one to what requests take of late, in seconds; zero if nothing is known.
func lately(seconds float64, latest time.Duration) float64 {
	if seconds == 0 {
		return latest.Seconds()
	}
	return seconds + (latest.Seconds()-seconds)*recentWeight
}

// dips are short times of one request at a time, to learn how long requests take alone.
type dips struct {
	on       bool
	began    time.Time
	next     time.Time
	learning bool // a lane knows nothing yet
	alone    int
}

// begin begins a dip if it is time.
func (d *dips) begin(now time.Time) {
	if d.next.IsZero() {
		d.next = now.Add(dipEvery)
	}
	// A lane that learns nothing in a dip, because its requests take too long, does not get one after the other.
	news := d.learning && now.Sub(d.began) > dipEvery
	if !d.on && (news || !now.Before(d.next)) {
		d.on, d.began, d.alone = true, now, 0
	}
}

// end ends a dip if it is time, and says so.
func (d *dips) end(now time.Time) bool {
	if !d.on || now.Sub(d.began) < dipFor && (d.learning || d.alone < groupRequests) {
		return false
	}
	d.on, d.next = false, now.Add(dipEvery)
	return true
}
