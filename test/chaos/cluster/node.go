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

package cluster

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"sigs.k8s.io/svm-controller-manager/test/controlplane"
)

// Node is a process that is started again when it has ended, unless somebody holds it.
type Node struct {
	Name string
	Host *controlplane.Host
	// process is what runs now, or ran last.
	process func() *controlplane.Process
	start   func() error

	held sync.Mutex
	mu   sync.Mutex
	// shift is what the clock of the host shows more than that of the machine.
	shift  time.Duration
	starts int
}

// Hold keeps everybody else from ending and starting the process, until release is called.
func (n *Node) Hold() (release func()) {
	n.held.Lock()
	return n.held.Unlock
}

// Kill ends the process with SIGKILL. The caller holds the node.
func (n *Node) Kill() error {
	if err := n.process().Kill(); err != nil && !errors.Is(err, controlplane.ErrNotRunning) {
		return err
	}
	return nil
}

// Pause stops the process with SIGSTOP.
func (n *Node) Pause() error { return n.process().Pause() }

// Resume lets the process go on.
func (n *Node) Resume() error { return n.process().Resume() }

// Start starts the process if it does not run, and waits until it is ready. The caller holds the node.
func (n *Node) Start() error {
	if n.process() != nil && n.process().Running() {
		return nil
	}
	err := n.start()
	if err != nil {
		err = n.start() // On a slow machine the first try may end before the process is ready.
	}
	if err != nil {
		return fmt.Errorf("starting %s: %w", n.Name, err)
	}
	n.mu.Lock()
	n.starts++
	shift := n.shift
	n.mu.Unlock()
	if shift == 0 {
		return nil
	}
	return n.process().ShiftClock(shift)
}

// Starts counts the starts of the process.
func (n *Node) Starts() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.starts
}

// SetClock sets the clock of the host, for the process that runs and those that follow.
func (n *Node) SetClock(shift time.Duration) error {
	n.mu.Lock()
	n.shift = shift
	n.mu.Unlock()
	return n.process().ShiftClock(shift)
}

// revive starts the process if it has ended, and nobody holds it.
func (n *Node) revive() error {
	if !n.held.TryLock() {
		return nil
	}
	defer n.held.Unlock()
	return n.Start()
}
