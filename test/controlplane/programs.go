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
	"errors"
	"fmt"
)

// StartProcess starts a program beside the control plane. It is killed when the control plane is closed, and by the
// kernel if this process dies before, however that happens; so are not the processes that the program itself starts in
// the latter case.
func (cp *ControlPlane) StartProcess(p Program) (*Process, error) {
	if p.Name == "" || p.Path == "" {
		return nil, errors.New("a program needs a name and a path")
	}
	host, err := cp.placeFor(p)
	if err != nil {
		return nil, fmt.Errorf("starting %s: %w", p.Name, err)
	}
	process, err := startProcess(host, p, cp.logPath(p.Name))
	if err != nil {
		return nil, err
	}
	cp.mu.Lock()
	closed := cp.closed
	cp.processes = append(cp.processes, process)
	cp.mu.Unlock()
	if closed {
		return nil, errors.Join(fmt.Errorf("starting %s: %w", p.Name, errClosed), process.Kill())
	}
	return process, nil
}

func (cp *ControlPlane) placeFor(p Program) (*Host, error) {
	if p.Host == "" {
		return cp.network.home(), nil
	}
	return cp.Host(p.Host)
}
