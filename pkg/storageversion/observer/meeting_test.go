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

package observer

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/encoding/protodelim"
	"google.golang.org/protobuf/types/known/timestamppb"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// balanced is several processes behind one address.
type balanced struct {
	*httptest.Server
	// choose returns who answers on a connection, or a request on it. Both are counted from zero.
	choose func(connection, request int) int

	mu          sync.Mutex
	starts      []time.Time // of the processes
	connections int
	requests    map[int]int // by connection
	open        map[net.Conn]bool
}

type connectionKey struct{}

func newBalanced(t *testing.T, processes int, http2 bool, choose func(connection, request int) int) *balanced {
	t.Helper()
	b := &balanced{choose: choose, requests: map[int]int{}, open: map[net.Conn]bool{}}
	for i := range processes {
		b.starts = append(b.starts, noon.Add(time.Duration(i))) // in the same second
	}
	b.Server = httptest.NewUnstartedServer(b)
	b.Config.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.open[conn] = true
		b.connections++
		return context.WithValue(ctx, connectionKey{}, b.connections-1)
	}
	b.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		b.mu.Lock()
		defer b.mu.Unlock()
		if state == http.StateClosed {
			delete(b.open, conn)
		}
	}
	b.EnableHTTP2 = http2
	b.StartTLS()
	t.Cleanup(b.Close)
	return b
}

func (b *balanced) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	connection := r.Context().Value(connectionKey{}).(int)
	who := b.choose(connection, b.requests[connection])
	b.requests[connection]++
	var created time.Time
	if who >= 0 {
		created = b.starts[who]
	}
	b.mu.Unlock()
	switch {
	case r.URL.Path != "/metrics":
		http.NotFound(w, r)
		return
	case created.IsZero():
		fail(w, http.StatusForbidden, "Forbidden")
		return
	}
	writeMetrics(w, created)
}

// writeMetrics writes metrics of a process as protobuf.
func writeMetrics(w http.ResponseWriter, started time.Time) {
	created := timestamppb.New(started)
	counter := func(name string) *dto.MetricFamily {
		return &dto.MetricFamily{Name: ptr.To(name), Type: dto.MetricType_COUNTER.Enum(), Metric: []*dto.Metric{
			{Counter: &dto.Counter{Value: ptr.To(1.0), CreatedTimestamp: created}},
		}}
	}
	rest := counter("workqueue_total")
	rest.Help = ptr.To(strings.Repeat("a busy server has megabytes of metrics ", 5000))
	for _, family := range []*dto.MetricFamily{counter("aggregator_total"), counter(startMetric), rest} {
		if _, err := protodelim.MarshalTo(w, family); err != nil {
			panic(http.ErrAbortHandler) // The client has gone.
		}
	}
}

func (b *balanced) meet(t *testing.T, wanted int, others ...*balanced) *meeting {
	t.Helper()
	c, err := newClients(&rest.Config{Host: b.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	var addresses []string
	for _, at := range append([]*balanced{b}, others...) {
		addresses = append(addresses, at.Listener.Addr().String())
	}
	m := c.meet(t.Context(), addresses, true, wanted)
	t.Cleanup(m.close)
	return m
}

// confirmAll returns the first error.
func (m *meeting) confirmAll(ctx context.Context) error {
	for _, one := range m.met {
		if err := one.confirm(ctx, manyTimes); err != nil {
			return err
		}
	}
	return nil
}

func TestMeeting(t *testing.T) {
	t.Parallel()
	around := func(connection, _ int) int { return connection % 3 }
	hidesOne := func(connection, _ int) int { return connection % 2 }
	onlyOne := func(int, int) int { return 0 }
	for name, test := range map[string]struct {
		choose           func(connection, request int) int
		http1            bool
		met, connections int
		unmet            string
		confirmation     error
	}{
		"a balancer that goes round": {choose: around, met: 3, connections: 3},
		"the same, without HTTP/2":   {choose: around, met: 3, connections: 3, http1: true},
		"a balancer that hides one":  {choose: hidesOne, met: 2, connections: 30, unmet: "reached only 2"},
		"a balancer that likes one":  {choose: onlyOne, met: 1, connections: 30, unmet: "load balancer"},
		"nobody may see start times": {choose: func(int, int) int { return -1 }, connections: 1, unmet: "Allow the manager"},
		"a proxy that spreads requests": {
			choose: func(n, request int) int { return (n + request) % 3 }, met: 3, connections: 3, confirmation: errMixed,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBalanced(t, 3, !test.http1, test.choose)
			m := b.meet(t, 3)
			b.mu.Lock()
			extra, most := b.connections-test.connections, 0
			b.mu.Unlock()
			if len(m.failures) > 0 { // A connection that failed takes the turn of a process, which comes round again.
				most = 3
			}
			if len(m.met) != test.met || extra < 0 || extra > most {
				t.Errorf("met %d processes in %d connections, want %d in %d (%v)", len(m.met), test.connections+extra,
					test.met, test.connections, m.failures)
			}
			if got := m.whyUnmet(); !strings.Contains(got, test.unmet) || (got == "") != (test.unmet == "") {
				t.Errorf("unmet: %q, want %q", got, test.unmet)
			}
			if err := m.confirmAll(t.Context()); !errors.Is(err, test.confirmation) {
				t.Errorf("confirmation: %v, want %v", err, test.confirmation)
			}
			m.close()
			eventually(t, func() error {
				b.mu.Lock()
				defer b.mu.Unlock()
				if len(b.open) > 0 {
					return fmt.Errorf("%d connections are open", len(b.open))
				}
				return nil
			})
			if err := m.confirmAll(t.Context()); test.met > 0 && err == nil {
				t.Error("a connection was made again")
			}
		})
	}
}

// TestProcessThatIsReplacedInAMeeting has one server that is met as two processes.
func TestProcessThatIsReplacedInAMeeting(t *testing.T) {
	b := newBalanced(t, 2, true, func(connection, _ int) int { return connection })
	m := b.meet(t, 2)
	if unmet := m.whyUnmet(); unmet != "" {
		t.Fatal(unmet)
	}
	b.CloseClientConnections() // The first has ended.
	if err := m.confirmAll(t.Context()); err == nil {
		t.Error("both were confirmed")
	}
}

// TestAddressThatFailsOnce leads to a process that was met elsewhere when it answers.
func TestAddressThatFailsOnce(t *testing.T) {
	b := newBalanced(t, 3, true, func(connection, _ int) int { return connection })
	again := newBalanced(t, 1, true, func(int, int) int { return 0 })
	again.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Context().Value(connectionKey{}) == 0 {
			fail(w, http.StatusInternalServerError, "")
			return
		}
		again.ServeHTTP(w, r)
	})
	m := b.meet(t, 3, again)
	if unanswered := m.unanswered(); len(m.met) != 3 || len(unanswered) > 0 {
		t.Errorf("met %d processes, and no answer at %v", len(m.met), unanswered)
	}
}

// TestWhyUnconfirmed has several processes fail in different ways. The message must not change from look to look.
func TestWhyUnconfirmed(t *testing.T) {
	m := &meeting{addresses: []string{"10.0.0.1:443"}}
	gone := errors.New("connection refused")
	for want, errs := range map[string][]error{
		"":                          {nil, nil},
		"where " + errMixed.Error(): {nil, gone, errMixed, gone},
		gone.Error():                {nil, gone, errors.New("no route to host")},
	} {
		if got := m.whyUnconfirmed(errs); !strings.Contains(got, want) || (got == "") != (want == "") {
			t.Errorf("%v: got %q, want %q", errs, got, want)
		}
	}
}
