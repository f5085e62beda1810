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
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"
)

type recordingTransport struct{ methods []string }

func (r *recordingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	r.methods = append(r.methods, request.Method)
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(""))}, nil
}

type closingBody struct {
	io.Reader
	closed bool
}

func (c *closingBody) Close() error { c.closed = true; return nil }

func TestTermGuardsWrites(t *testing.T) {
	const duration = 10 * time.Second
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, tc := range map[string]struct {
		history func(*leaderTerm, *testingclock.FakeClock)
		over    bool
	}{
		"never renewed": {history: func(*leaderTerm, *testingclock.FakeClock) {}, over: true},
		"just renewed":  {history: func(l *leaderTerm, c *testingclock.FakeClock) { l.renewed(c.Now()) }},
		"released": {history: func(l *leaderTerm, c *testingclock.FakeClock) {
			l.renewed(c.Now())
			l.end()
		}, over: true},
		"the last moment": {history: func(l *leaderTerm, c *testingclock.FakeClock) {
			l.renewed(c.Now())
			c.Step(duration - 1)
		}},
		"not renewed for the whole term": {history: func(l *leaderTerm, c *testingclock.FakeClock) {
			l.renewed(c.Now())
			c.Step(duration)
		}, over: true},
		"a renewal counts from when it was sent": {history: func(l *leaderTerm, c *testingclock.FakeClock) {
			sent := c.Now()
			c.Step(duration)
			l.renewed(sent)
		}, over: true},
		"renewed late": {history: func(l *leaderTerm, c *testingclock.FakeClock) {
			l.renewed(c.Now())
			c.Step(duration)
			l.renewed(c.Now())
		}},
		"no renewal counts after the end": {history: func(l *leaderTerm, c *testingclock.FakeClock) {
			l.end()
			l.renewed(c.Now())
		}, over: true},
	} {
		t.Run(name, func(t *testing.T) {
			clock := testingclock.NewFakeClock(start)
			term := newLeaderTerm(clock, duration)
			tc.history(term, clock)

			below := &recordingTransport{}
			guarded := term.guard(below)
			methods := []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
			for _, method := range methods {
				body := &closingBody{Reader: strings.NewReader("{}")}
				request, err := http.NewRequestWithContext(t.Context(), method, "https://example.com", body)
				if err != nil {
					t.Fatal(err)
				}
				response, err := guarded.RoundTrip(request)
				refused := tc.over && method != http.MethodGet
				if errors.Is(err, errTermOver) != refused {
					t.Errorf("%s: got error %v, want refused=%v", method, err, refused)
				}
				if refused && !body.closed {
					t.Errorf("%s: the body of a request that is not sent must be closed", method)
				}
				if err == nil {
					_ = response.Body.Close()
				}
			}
			if want := map[bool]int{true: 1, false: 5}[tc.over]; len(below.methods) != want {
				t.Errorf("%d requests went out (%q), want %d", len(below.methods), below.methods, want)
			}
		})
	}
}
