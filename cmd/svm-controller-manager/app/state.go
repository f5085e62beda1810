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
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/tools/leaderelection"
)

// leaseTolerance is how long after its expiry a lease that this process believes to hold makes it unhealthy.
const leaseTolerance = 20 * time.Second

// state is what health checks read.
type state struct {
	reachable atomic.Bool

	selected []ControllerDescriptor

	mu       sync.Mutex
	missing  map[string]bool // by check name: a need that a running controller waits for
	electors map[*leaderelection.LeaderElector]bool
}

func newState(selected []ControllerDescriptor) *state {
	return &state{selected: selected, missing: map[string]bool{}, electors: map[*leaderelection.LeaderElector]bool{}}
}

func (s *state) isSelected(name string) bool {
	return slices.ContainsFunc(s.selected, func(d ControllerDescriptor) bool { return d.Name == name })
}

// checkName tells in a readiness answer which controller waits for what: the answer carries names only, no messages.
func checkName(d ControllerDescriptor, need Need) string {
	return d.Name + "-needs-" + need.String()
}

func (s *state) waiting(d ControllerDescriptor, need Need) { s.setMissing(checkName(d, need), true) }
func (s *state) found(d ControllerDescriptor, need Need)   { s.setMissing(checkName(d, need), false) }

func (s *state) forget(d ControllerDescriptor) {
	for _, need := range d.Needs {
		s.found(d, need)
	}
}

func (s *state) setMissing(check string, missing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missing[check] = missing
}

// watchLease makes liveness depend on the elector until the returned function is called.
func (s *state) watchLease(elector *leaderelection.LeaderElector) (remove func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.electors[elector] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.electors, elector)
	}
}

// liveness fails where only a restart helps.
func (s *state) liveness() []healthz.HealthChecker {
	return []healthz.HealthChecker{
		healthz.PingHealthz,
		healthz.NamedCheck("leaderElection", func(*http.Request) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			var errs []error
			for elector := range s.electors {
				errs = append(errs, elector.Check(leaseTolerance))
			}
			return errors.Join(errs...)
		}),
	}
}

// readiness fails while the manager could not do its work if it led: a standby is ready.
func (s *state) readiness() []healthz.HealthChecker {
	checks := append(s.liveness(), healthz.NamedCheck("kube-apiserver", func(*http.Request) error {
		if !s.reachable.Load() {
			return errors.New("the API server has not answered yet")
		}
		return nil
	}))
	for _, d := range s.selected {
		for _, need := range d.Needs {
			if need.Optional {
				continue
			}
			check := checkName(d, need)
			checks = append(checks, healthz.NamedCheck(check, func(*http.Request) error {
				s.mu.Lock()
				defer s.mu.Unlock()
				if s.missing[check] {
					return fmt.Errorf("the API server does not serve %s", need)
				}
				return nil
			}))
		}
	}
	return checks
}
