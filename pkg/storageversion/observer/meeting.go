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
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/sets"
)

const (
	// connectionsPerServer bounds the connections of a meeting. With three servers, a balancer that chooses at random
	// leaves one of them out in one of 60,000 meetings.
	connectionsPerServer = 10

	// meetingTimePerServer bounds how long a meeting makes connections. A balancer that chooses at random needs 22 of them
	// on average to lead to each of eight servers.
	meetingTimePerServer = 10 * time.Second

	// manyTimes is how often a connection is asked for the start time on which documents were read. If each request on it
	// reaches one of two processes by chance, this notices in all but one of 256 cases, for each of the connections.
	manyTimes = 8
)

// meeting makes connections to addresses that several servers share, until it has met as many processes as live.
type meeting struct {
	addresses []string
	wanted    int
	open      []*connection
	// met has a connection to each process that was met, by processName.
	met map[string]*connection
	// noStart is why a process does not tell when it started. failures are the last reasons why connections to an address
	// failed. answered are the addresses at which a process told when it started.
	noStart  error
	failures map[string]error
	answered sets.Set[string]
	// outOfTime means that it had no time for all connections.
	outOfTime bool
}

// meet holds a meeting. The caller closes it.
func (c *clients) meet(ctx context.Context, addresses []string, direct bool, wanted int) *meeting {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(wanted)*meetingTimePerServer)
	defer cancel()
	m := &meeting{
		addresses: addresses, wanted: wanted, met: map[string]*connection{}, failures: map[string]error{},
		answered: sets.Set[string]{},
	}
	for i := 0; i < connectionsPerServer*wanted && len(m.met) < wanted && ctx.Err() == nil; i++ {
		one, err := c.connect(ctx, addresses[i%len(addresses)], direct)
		if err != nil {
			m.failures[addresses[i%len(addresses)]] = err
			continue
		}
		// All connections stay open until the end: some balancers choose the server with the fewest.
		m.open = append(m.open, one)
		one.who.Started, err = readStart(ctx, one.reader)
		switch {
		case isLasting(err):
			m.noStart = err
			return m
		case err != nil:
			m.failures[one.address] = err
			continue
		}
		m.answered.Insert(one.address)
		if name := processName(one.who.Started); m.met[name] == nil {
			m.met[name] = one
		}
	}
	m.outOfTime = ctx.Err() != nil
	return m
}

// ownAddresses is the advice that helps whatever the reason is that a meeting failed.
const ownAddresses = "make every API server advertise an address of its own"

// whyUnmet returns why not all processes were met, and what to do. It is empty if they were.
func (m *meeting) whyUnmet() string {
	switch {
	case len(m.met) >= m.wanted:
		return ""
	case m.noStart != nil:
		help := "Make sure that the API server itself answers /metrics there, and no proxy"
		if apierrors.IsForbidden(m.noStart) {
			help = "Allow the manager to get /metrics"
		}
		return fmt.Sprintf("the API servers share %s, and the manager cannot find out which of them answers there: %v. "+
			"%s, or %s", m.where(), m.noStart, help, ownAddresses)
	default:
		var started []string
		for _, one := range m.met {
			started = append(started, one.who.Started.Format(time.RFC3339Nano))
		}
		slices.Sort(started)
		slow := ""
		if m.outOfTime {
			slow = ", before its time was over: they are slow to accept connections, or to answer /metrics"
		}
		return fmt.Sprintf("the API servers share %s, and the manager made %d connections and reached only %d of them "+
			"(started at %s)%s. Make sure that the load balancer there leads some of these connections to each API server, or "+
			"%s, or delete the Leases in kube-system of API servers that are gone for good",
			m.where(), len(m.open), len(m.met), cmp.Or(strings.Join(started, ", "), "no known time"), slow, ownAddresses)
	}
}

// whyUnconfirmed returns why processes that were met do not count, and what to do. It is empty if all of them count. Of
// several reasons it is errMixed, for which somebody has to do something, or else the first.
func (m *meeting) whyUnconfirmed(errs []error) string {
	err := cmp.Or(errs...)
	switch {
	case err == nil:
		return ""
	case errors.Is(errors.Join(errs...), errMixed):
		return fmt.Sprintf("the API servers share %s, where %v. If this lasts, a load balancer there distributes requests. "+
			"Make it pass TLS connections through, or %s", m.where(), errMixed, ownAddresses)
	default:
		return fmt.Sprintf("the API servers share %s, where one of them did not answer again: %v. The manager asks again",
			m.where(), err)
	}
}

// processName is what stands for the address of a process. It does not depend on the addresses that servers share,
// because these may come and go while the process lives.
func processName(started time.Time) string {
	return "a shared address (process started at " + started.Format(time.RFC3339Nano) + ")"
}

func (m *meeting) where() string { return strings.Join(m.addresses, ", ") }

// unanswered returns why nothing answered at addresses to which all connections failed.
func (m *meeting) unanswered() map[string]error {
	unanswered := maps.Clone(m.failures)
	maps.DeleteFunc(unanswered, func(address string, _ error) bool { return m.answered.Has(address) })
	return unanswered
}

// leaveOpen lets the connection outlast the meeting.
func (m *meeting) leaveOpen(one *connection) {
	m.open = slices.DeleteFunc(m.open, func(other *connection) bool { return other == one })
}

func (m *meeting) close() {
	for _, one := range m.open {
		one.close()
	}
}
