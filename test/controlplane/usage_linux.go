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
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

const (
	kilobyte = 1 << 10
	// clockTick is the unit of times in /proc, on all architectures that Go runs on.
	clockTick = time.Second / 100
	// Of what follows the name in /proc/<pid>/stat, and begins with the state.
	userTimeField, systemTimeField = 11, 12
)

var errProcessEnded = errors.New("the process has ended")

// usageOf wraps errProcessEnded in its error if the process is gone, or only waits to be collected.
func usageOf(pid int) (Usage, error) {
	stat, err := readProcess(pid, "stat")
	if err != nil {
		return Usage{}, err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:]) // the name, in parentheses, may contain anything
	if len(fields) <= systemTimeField {
		return Usage{}, fmt.Errorf("the times of process %d are unreadable: %q", pid, stat)
	}
	var usage Usage
	for _, field := range [][]byte{fields[userTimeField], fields[systemTimeField]} {
		ticks, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return Usage{}, fmt.Errorf("the times of process %d: %w", pid, err)
		}
		usage.CPU += time.Duration(ticks) * clockTick
	}
	status, err := readProcess(pid, "status")
	if err != nil {
		return Usage{}, err
	}
	if usage.Memory, err = memoryLine(status, "VmRSS:"); err != nil {
		return Usage{}, fmt.Errorf("the memory of process %d: %w", pid, err)
	}
	if usage.PeakMemory, err = memoryLine(status, "VmHWM:"); err != nil {
		return Usage{}, fmt.Errorf("the memory of process %d: %w", pid, err)
	}
	io, err := readProcess(pid, "io")
	if err != nil {
		return Usage{}, err
	}
	if _, err := fmt.Sscanf(string(io), "rchar: %d\nwchar: %d", &usage.Received, &usage.Sent); err != nil {
		return Usage{}, fmt.Errorf("the bytes of process %d: %w", pid, err)
	}
	return usage, nil
}

func readProcess(pid int, file string) ([]byte, error) {
	content, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/" + file)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil, errProcessEnded
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s of process %d: %w", file, pid, err)
	}
	return content, nil
}

// memoryLine reads a line of /proc/<pid>/status, such as "VmRSS:  1234 kB". Processes that have ended have no memory,
// and no such line.
func memoryLine(status []byte, name string) (int64, error) {
	for line := range bytes.Lines(status) {
		rest, found := bytes.CutPrefix(line, []byte(name))
		if !found {
			continue
		}
		kilobytes, err := strconv.ParseInt(string(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte(" kB"))), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("reading %q: %w", line, err)
		}
		return kilobytes * kilobyte, nil
	}
	return 0, errProcessEnded
}

// peakOf is the peak memory of a process that has ended.
func peakOf(state *os.ProcessState) int64 {
	usage, ok := state.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	return usage.Maxrss * kilobyte
}
