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
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
	logged := func(message string) (n int) {
		for _, entry := range logger.GetSink().(ktesting.Underlier).GetBuffer().Data() {
			if entry.Message == message {
				n++
			}
		}
		return n
	}
	c.startWith(t, klog.NewContext(t.Context(), logger))
	c.until(t, func() error {
		if got := c.servers[1].count("/version"); got < 4 {
			return fmt.Errorf("the server was asked %d times", got)
		}
		return nil
	})
	const cannot, can = "Cannot read what an API server writes, will retry", "Can read again what an API server writes"
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
