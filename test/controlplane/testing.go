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

package controlplane

import (
	"path/filepath"
	"slices"
	"testing"
)

// CollectLate is an environment for servers of tests: they collect no garbage before they need this much memory. Most
// never do, and it is a quarter of the processor time of their start.
var CollectLate = []string{"GOGC=off", "GOMEMLIMIT=768MiB"}

// Start is New for tests, with CollectLate, when the machine has time for it. It fails the test if the control plane
// does not come up, and ends everything with the test. A server that ended although nobody asked it to fails the test.
// After a failure the logs stay, and the test tells where.
func Start(t testing.TB, cfg Config) *ControlPlane {
	t.Helper()
	cfg.Environment = slices.Concat(CollectLate, cfg.Environment)
	cp, err := newWhen(t.Context(), cfg, awaitCalm)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, s := range cp.Servers() {
			if err := s.Process().unexpectedEnd(); err != nil {
				t.Errorf("%v\n%s", err, s.Process().tail())
			}
		}
		if err := cp.etcd.Process().unexpectedEnd(); err != nil {
			t.Errorf("%v\n%s", err, cp.etcd.Process().tail())
		}
		if t.Failed() && cp.temporary {
			t.Logf("the logs of the control plane are kept in %s", filepath.Join(cp.dir, "logs"))
		}
		if err := cp.close(t.Failed()); err != nil {
			t.Errorf("ending the control plane: %v", err)
		}
	})
	return cp
}

// Run starts a program with the promises of StartProcess, and fails the test if it cannot be started.
func (cp *ControlPlane) Run(t testing.TB, name, path string, args ...string) *Process {
	t.Helper()
	p, err := cp.StartProcess(Program{Name: name, Path: path, Args: args})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// RunOn is Run on the host of that name, which is added if there is none.
func (cp *ControlPlane) RunOn(t testing.TB, host, name, path string, args ...string) *Process {
	t.Helper()
	p, err := cp.StartProcess(Program{Name: name, Path: path, Args: args, Host: host})
	if err != nil {
		t.Fatal(err)
	}
	return p
}
