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
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	migrationv1alpha1 "sigs.k8s.io/svm-api/migration/v1alpha1"
)

// TestServerThatCannotBeRead has an API server that refuses all requests at its own address when the manager starts.
// The log says so once, and LastRead does not tell of a read.
func TestServerThatCannotBeRead(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	began := c.clock.Now()
	c.servers[1].change(func() { c.servers[1].failing["/"] = http.StatusForbidden })
	logged := c.startLogged(t)
	c.until(t, func() error {
		if got := c.servers[1].count("/version"); got < 4 {
			return fmt.Errorf("the server was asked %d times", got)
		}
		return nil
	})
	const cannot, can = "Cannot read what all API servers write, will retry", "Can read again what all API servers write"
	if got := logged(cannot); got != 1 || logged(can) != 0 {
		t.Errorf("%d lines say that it cannot be read, want one", got)
	}
	if read, known := c.LastRead()[migrationv1alpha1.EvidenceFromServerDiscovery]; known {
		t.Errorf("the last read was at %v, want none", read)
	}
	c.servers[1].change(func() { delete(c.servers[1].failing, "/") })
	c.until(t, c.encodings(1))
	if logged(cannot) != 1 || logged(can) != 1 {
		t.Errorf("%d lines say that it cannot be read, and %d that it can, want one each", logged(cannot), logged(can))
	}
	if read := c.LastRead()[migrationv1alpha1.EvidenceFromServerDiscovery]; !read.After(began.Add(time.Second)) {
		t.Errorf("the last read was at %v", read)
	}
	c.stop()
}

// startLogged has the Observer run, and returns a function that counts the lines of its log with a message.
func (c *cluster) startLogged(t *testing.T) (logged func(message string) int) {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
	c.startWith(t, klog.NewContext(t.Context(), logger))
	return func(message string) (n int) {
		for _, entry := range logger.GetSink().(ktesting.Underlier).GetBuffer().Data() {
			if entry.Message == message {
				n++
			}
		}
		return n
	}
}

// TestAggregatedServerThatCannotBeRead has the log say so once, and when it can be read again.
func TestAggregatedServerThatCannotBeRead(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.host.change(func() {
		c.host.documents[sampleV1Path] = resourcesDocument("flunders", "Flunder", sampleV1)
		c.host.failing[sampleV1Path] = http.StatusServiceUnavailable
		c.register(sampleV1, "", sample)
	})
	logged := c.startLogged(t)
	c.until(t, func() error {
		if got := c.host.count(sampleV1Path); got < 4 {
			return fmt.Errorf("the server was asked %d times", got)
		}
		return nil
	})
	const cannot = "Cannot read what aggregated API servers write, will retry"
	const can = "Can read again what aggregated API servers write"
	if logged(cannot) != 1 || logged(can) != 0 {
		t.Errorf("%d lines say that it cannot be read, and %d that it can, want one", logged(cannot), logged(can))
	}
	c.host.change(func() { delete(c.host.failing, sampleV1Path) })
	c.until(t, func() error {
		if logged(can) == 0 {
			return errors.New("no line says that it can be read again")
		}
		return nil
	})
	if logged(cannot) != 1 || logged(can) != 1 {
		t.Errorf("%d lines say that it cannot be read, and %d that it can, want one each", logged(cannot), logged(can))
	}
	c.stop()
}

// TestLogOfLeaseChecks has polls that cannot list identity Leases, and then find that the watch hangs.
func TestLogOfLeaseChecks(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	logged := c.startLogged(t)
	c.until(t, c.certain) // Nothing else asks for lists afterwards.
	c.settle(t)
	says := func(message string, times int) {
		t.Helper()
		c.passUntil(t, func() error {
			if got := logged(message); got != times {
				return fmt.Errorf("%d lines say %q, want %d", got, message, times)
			}
			return nil
		})
	}
	const upToDate = "The watch of identity Leases is up to date again"
	c.host.change(func() { c.host.failing[leasesPath] = http.StatusForbidden })
	says("Cannot list identity Leases, will retry", 1)
	c.host.change(func() { delete(c.host.failing, leasesPath) })
	says(upToDate, 1)
	c.host.change(func() {
		c.leases.silent = true
		c.hold(2, 1) // A server has come.
	})
	says("The watch of identity Leases does not show changes", 1)
	c.host.change(func() {
		c.leases.silent = false
		c.hold(2, 1)
	})
	says(upToDate, 2)
	c.stop()
}
