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
	"time"
)

// Usage is what a process has used of the machine, without the processes that it started.
type Usage struct {
	// CPU is the time on all processors so far, of the program and of the system for it, to a hundredth of a second while
	// it runs.
	CPU time.Duration
	// Memory is what the process has in memory now, zero if it has ended, and PeakMemory the most it ever had; bytes.
	Memory, PeakMemory int64
	// Received and Sent are the bytes that the process has read and written so far, from and to connections, pipes and
	// files alike, zero if it has ended. Of a client of an API server nearly all are of connections.
	Received, Sent int64
}

// Usage tells what the process uses, or used until it ended.
func (p *Process) Usage() (Usage, error) {
	if p.Running() {
		usage, err := usageOf(p.Pid())
		if err == nil {
			return usage, nil
		}
		if !errors.Is(err, errProcessEnded) {
			return Usage{}, fmt.Errorf("what %s uses: %w", p.name, err)
		}
	}
	<-p.done
	state := p.cmd.ProcessState
	if state == nil {
		return Usage{}, fmt.Errorf("what %s used: %w", p.name, p.Wait())
	}
	return Usage{CPU: state.UserTime() + state.SystemTime(), PeakMemory: peakOf(state)}, nil
}
