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
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// crowd is how many threads a processor may have to run when the control plane of a test starts. With many more,
	// hooks of kube-apiserver take longer than it allows. A start itself adds two or three.
	crowd = 3
	// crowdSamples are taken at intervals of pollInterval, for longer than the bursts in which processes want to run.
	crowdSamples = 50
	// seats is how many control planes of tests a processor has at least, however busy the machine is: what keeps it busy
	// may have nothing to do with them.
	seats = 5
	// minMemory must be available, in KiB. Without it a processor has one seat: an API server needs up to 768 MiB.
	minMemory = 3 << 20
)

// takeTurn waits until fewer than most others have a turn, in all processes with the same folder for temporary files,
// and returns how to end the turn. The turn of a process ends with it.
func takeTurn(ctx context.Context, most int) (release func(), err error) {
	return awaitOneOf(ctx, "turn", most)
}

// awaitCalm waits until the processors have little to do, or a seat is free. It returns how to leave the seat. One
// control plane waits at a time, so that the next one notices what this one adds.
func awaitCalm(ctx context.Context) (leave func(), err error) {
	next, err := awaitOneOf(ctx, "next", 1)
	if err != nil {
		return nil, err
	}
	defer next()
	var samples []int
	err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(context.Context) (bool, error) {
		most, err := countSeats()
		if err != nil {
			return false, err
		}
		if leave, err = lockOneOf("seat", most); leave != nil || err != nil {
			return true, err
		}
		n, err := runnable()
		samples = append(samples, n)
		return isCalm(samples) && most > runtime.NumCPU(), err
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for a machine with time for another control plane: %w", err)
	}
	if leave == nil {
		leave = func() {}
	}
	return leave, nil
}

// countSeats returns how many control planes of tests may start now, however busy the machine is.
func countSeats() (int, error) {
	available, err := kernelSays("/proc/meminfo", "MemAvailable:")
	if available < minMemory {
		return runtime.NumCPU(), err
	}
	return seats * runtime.NumCPU(), err
}

// isCalm tells whether the last samples are low.
func isCalm(samples []int) bool {
	first := len(samples) - crowdSamples
	if first < 0 {
		return false
	}
	sum := 0
	for _, n := range samples[first:] {
		sum += n
	}
	return sum <= crowdSamples*crowd*runtime.NumCPU()
}

func awaitOneOf(ctx context.Context, name string, n int) (unlock func(), err error) {
	err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(context.Context) (bool, error) {
		unlock, err = lockOneOf(name, n)
		return unlock != nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for others that start an API server: %w", err)
	}
	return unlock, nil
}

// lockOneOf locks one of n files that nobody else has locked. Without one it returns nil.
func lockOneOf(name string, n int) (unlock func(), err error) {
	for i := range n {
		file, err := openForAll(filepath.Join(os.TempDir(), fmt.Sprintf("svm-controlplane-%s-%d", name, i)))
		if err != nil {
			return nil, err
		}
		if unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			return func() { _ = file.Close() }, nil
		}
		_ = file.Close()
	}
	return nil, nil
}

// openForAll opens a file that any user may lock. It creates the file only if it is missing: Linux lets nobody, not
// even root, open the file of another user with O_CREAT in a folder such as /tmp.
func openForAll(path string) (*os.File, error) {
	file, err := os.Open(path)
	if !errors.Is(err, os.ErrNotExist) {
		return file, err
	}
	if file, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644); err != nil {
		return nil, err
	}
	return file, file.Chmod(0o644) // also with a strict umask
}

// runnable counts the threads on this machine that run or could run.
func runnable() (int, error) { return kernelSays("/proc/stat", "procs_running ") }

// kernelSays returns the number after a word in a file of the kernel.
func kernelSays(path, word string) (n int, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("asking how busy this machine is: %w", err)
	}
	_, counts, found := strings.Cut(string(text), word)
	if !found {
		return 0, fmt.Errorf("%s has no %q", path, word)
	}
	if _, err := fmt.Sscan(counts, &n); err != nil {
		return 0, fmt.Errorf("reading what follows %q in %s: %w", word, path, err)
	}
	return n, nil
}
