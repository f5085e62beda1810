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

package app

import (
	"errors"
	"net/http"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

var errTermOver = errors.New("the leader lease is not held any more: the request is not sent")

// leaderTerm is the time for which a leader may write. It ends by itself when the lease was not renewed.
//
// The context of a leader ends as well when its lease is lost, but only once the election has noticed. A process that was
// stopped for a minute (a paused virtual machine, a debugger, a starved host) wakes up in the middle of a controller, with
// another leader at work: its next write must not leave. A term compares clocks before every write and needs no goroutine
// to have run since.
type leaderTerm struct {
	clock    clock.PassiveClock
	duration time.Duration

	mu      sync.Mutex
	since   time.Time // of the last renewal; zero before the first
	forGood bool      // ended, whatever comes
}

func newLeaderTerm(clock clock.PassiveClock, duration time.Duration) *leaderTerm {
	return &leaderTerm{clock: clock, duration: duration}
}

// renewed starts the term anew. It counts from when the renewal was sent: no other candidate can have seen it before.
func (t *leaderTerm) renewed(sent time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.since = sent
}

// end ends the term for good.
func (t *leaderTerm) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.forGood = true
}

// ended says whether the term has ended for good.
func (t *leaderTerm) ended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.forGood
}

// everHeld says whether there was a term at all.
func (t *leaderTerm) everHeld() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !t.since.IsZero()
}

// over says whether the leader has to keep still. Wall time counts besides the monotonic clock, which stands still while
// a machine is suspended.
func (t *leaderTerm) over() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.clock.Now()
	return t.forGood || t.since.IsZero() ||
		now.Sub(t.since) >= t.duration || now.Round(0).Sub(t.since.Round(0)) >= t.duration
}

// guard lets reads through always and writes while the term lasts.
func (t *leaderTerm) guard(next http.RoundTripper) http.RoundTripper {
	return guardedTransport{term: t, next: next}
}

type guardedTransport struct {
	term *leaderTerm
	next http.RoundTripper
}

// RoundTrip sends the request, unless it is a write after the term.
func (g guardedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	read := request.Method == http.MethodGet || request.Method == http.MethodHead
	if read || !g.term.over() {
		return g.next.RoundTrip(request)
	}
	if request.Body != nil {
		_ = request.Body.Close() // a RoundTripper closes the body, also of a request that it does not send
	}
	return nil, errTermOver
}

// WrappedRoundTripper lets client-go find the transport below.
func (g guardedTransport) WrappedRoundTripper() http.RoundTripper { return g.next }
