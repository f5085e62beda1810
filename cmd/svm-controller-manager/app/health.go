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
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/tools/leaderelection"

	"sigs.k8s.io/svm-controller-manager/pkg/storageversion/observer"
)

// leaseTolerance is how long this process may believe that it holds a lease which has expired before it is unhealthy.
const leaseTolerance = 20 * time.Second

// health is what the health checks read.
type health struct {
	reachable <-chan struct{}
	selected  []ControllerDescriptor
	// served says for the name of each check of a need whether the API server has served it. The map itself is constant.
	served   map[string]*atomic.Bool
	observer atomic.Pointer[observer.Observer]

	lease *leaderelection.HealthzAdaptor
}

// newHealth returns the health of a manager that runs the selected controllers. reachable is closed once the API server
// has answered.
func newHealth(selected []ControllerDescriptor, reachable <-chan struct{}) *health {
	served := map[string]*atomic.Bool{}
	for _, d := range selected {
		for _, need := range d.Needs {
			served[checkName(d, need)] = &atomic.Bool{}
		}
	}
	return &health{
		reachable: reachable, selected: selected, served: served,
		lease: leaderelection.NewLeaderHealthzAdaptor(leaseTolerance),
	}
}

// checkName is the name of a readiness check. The answer of /readyz shows the names of checks and no messages, so the
// name has to say which controller waits for what.
func checkName(d ControllerDescriptor, need Need) string {
	return d.Name + "-needs-" + need.String()
}

// liveness fails only where a restart of the process helps.
func (h *health) liveness() []healthz.HealthChecker {
	return []healthz.HealthChecker{healthz.PingHealthz, h.lease}
}

// readiness fails while the manager could not work if it led.
func (h *health) readiness() []healthz.HealthChecker {
	checks := append(h.liveness(), healthz.NamedCheck("kube-apiserver", func(*http.Request) error {
		select {
		case <-h.reachable:
			return nil
		default:
			return errors.New("the API server has not answered yet")
		}
	}))
	if slices.ContainsFunc(h.selected, observes) {
		checks = append(checks, healthz.NamedCheck("observer", func(*http.Request) error {
			if o := h.observer.Load(); o == nil || !o.HasSynced() {
				return errors.New("the API servers have not been observed yet")
			}
			return nil
		}))
	}
	for _, d := range h.selected {
		for _, need := range d.Needs {
			if need.Optional {
				continue
			}
			check := checkName(d, need)
			checks = append(checks, healthz.NamedCheck(check, func(*http.Request) error {
				if !h.served[check].Load() {
					return fmt.Errorf("the API server does not serve %s", need)
				}
				return nil
			}))
		}
	}
	return checks
}
