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
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/tools/leaderelection"
)

// leaseTolerance is how long this process may believe that it holds a lease which has expired before it is unhealthy.
const leaseTolerance = 20 * time.Second

// health is what the health checks read.
type health struct {
	reachable <-chan struct{}
	selected  []ControllerDescriptor

	mu       sync.Mutex
	missing  sets.Set[string] // checks that fail, because a controller waits for a resource
	electors sets.Set[*leaderelection.LeaderElector]
}

// newHealth returns the health of a manager that runs the selected controllers. reachable is closed once the API server
// has answered.
func newHealth(selected []ControllerDescriptor, reachable <-chan struct{}) *health {
	return &health{
		reachable: reachable,
		selected:  selected,
		missing:   sets.New[string](),
		electors:  sets.New[*leaderelection.LeaderElector](),
	}
}

// checkName is the name of a readiness check. The answer of /readyz shows the names of checks and no messages, so the
// name has to say which controller waits for what.
func checkName(d ControllerDescriptor, need Need) string {
	return d.Name + "-needs-" + need.String()
}

// setMissing records whether a controller waits for the resources.
func (h *health) setMissing(missing bool, d ControllerDescriptor, needs ...Need) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, need := range needs {
		if missing {
			h.missing.Insert(checkName(d, need))
		} else {
			h.missing.Delete(checkName(d, need))
		}
	}
}

// watchLease makes liveness depend on the elector until the returned function is called.
func (h *health) watchLease(elector *leaderelection.LeaderElector) (remove func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.electors.Insert(elector)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.electors.Delete(elector)
	}
}

// liveness fails only where a restart of the process helps.
func (h *health) liveness() []healthz.HealthChecker {
	return []healthz.HealthChecker{
		healthz.PingHealthz,
		healthz.NamedCheck("leaderElection", func(*http.Request) error {
			h.mu.Lock()
			defer h.mu.Unlock()
			var errs []error
			for elector := range h.electors {
				errs = append(errs, elector.Check(leaseTolerance))
			}
			return errors.Join(errs...)
		}),
	}
}

// readiness fails while the manager could not work if it led. A standby is ready.
func (h *health) readiness() []healthz.HealthChecker {
	checks := append(h.liveness(), healthz.NamedCheck("kube-apiserver", func(*http.Request) error {
		select {
		case <-h.reachable:
			return nil
		default:
			return errors.New("the API server has not answered yet")
		}
	}))
	for _, d := range h.selected {
		for _, need := range d.Needs {
			if need.Optional {
				continue
			}
			check := checkName(d, need)
			checks = append(checks, healthz.NamedCheck(check, func(*http.Request) error {
				h.mu.Lock()
				defer h.mu.Unlock()
				if h.missing.Has(check) {
					return fmt.Errorf("the API server does not serve %s", need)
				}
				return nil
			}))
		}
	}
	return checks
}
