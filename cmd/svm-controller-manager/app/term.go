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
	"sync/atomic"
	"time"

	"k8s.io/utils/clock"
)

var errTermOver = errors.New("this process does not hold the leader lease any more; the request was not sent")

// leaderTerm is the time during which a leader may write. It ends by itself unless the lease is renewed.
//
// The context of a leader ends as well when the lease is lost, but only after the election has noticed. A process that
// was stopped for a minute (by a debugger, a starved host, a machine that sleeps) wakes up in the middle of a
// controller while another leader is at work. Its next write must not go out. A term compares clocks before each write,
// so it does not depend on another goroutine having run first. It notices nothing if all clocks of the machine stood
// still, as in a virtual machine that was paused and whose time nobody has corrected yet.
type leaderTerm struct {
	clock    clock.PassiveClock
	duration time.Duration

	renewal atomic.Pointer[time.Time] // when the last renewal was sent; nil before the first one
	closed  atomic.Bool               // no renewal counts any more
}

func newLeaderTerm(clock clock.PassiveClock, duration time.Duration) *leaderTerm {
	return &leaderTerm{clock: clock, duration: duration}
}

// renewed restarts the term. It counts from when the renewal was sent, because no other candidate saw it before that.
func (t *leaderTerm) renewed(sent time.Time) { t.renewal.Store(&sent) }

// end ends the term for good.
func (t *leaderTerm) end() { t.closed.Store(true) }

// begun reports whether the lease was ever held.
func (t *leaderTerm) begun() bool { return t.renewal.Load() != nil }

// over reports whether the term has begun and is over.
func (t *leaderTerm) over() bool { return t.begun() && t.mayNotWrite() }

// mayNotWrite reports whether the leader must not write. It compares wall clock times as well as monotonic ones,
// because the monotonic clock stands still while a machine is suspended.
func (t *leaderTerm) mayNotWrite() bool {
	now, renewal := t.clock.Now(), t.renewal.Load()
	return t.closed.Load() || renewal == nil ||
		now.Sub(*renewal) >= t.duration || now.Round(0).Sub(renewal.Round(0)) >= t.duration
}

// guard returns a transport that sends reads always, and writes only during the term.
func (t *leaderTerm) guard(next http.RoundTripper) http.RoundTripper {
	return guardedTransport{t, next}
}

type guardedTransport struct {
	term *leaderTerm
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (g guardedTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	read := request.Method == http.MethodGet || request.Method == http.MethodHead
	if read || !g.term.mayNotWrite() {
		return g.next.RoundTrip(request)
	}
	if request.Body != nil {
		_ = request.Body.Close() // A RoundTripper has to close the body even of a request that it does not send.
	}
	return nil, errTermOver
}

// WrappedRoundTripper lets client-go find the transport below.
func (g guardedTransport) WrappedRoundTripper() http.RoundTripper { return g.next }
