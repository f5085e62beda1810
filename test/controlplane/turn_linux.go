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
	leaveLine, err := lineUp(ctx, "turns")
	if err != nil {
		return nil, err
	}
	defer leaveLine()
	err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(context.Context) (bool, error) {
		release, err = lockOneOf("turn", most)
		return release != nil, err
	})
	if err != nil {
		return nil, fmt.Errorf("waiting for others that start an API server: %w", err)
	}
	return release, nil
}

// awaitCalm waits until the processors have little to do, or a seat is free. It returns how to leave the seat.
func awaitCalm(ctx context.Context) (leave func(), err error) { return awaitSeat(ctx, countSeats) }

// awaitSeat is awaitCalm with as many seats as count says. Only the first one of the line looks, so that the next one
// notices what this one adds.
func awaitSeat(ctx context.Context, count func() (int, error)) (leave func(), err error) {
	leaveLine, err := lineUp(ctx, "seats")
	if err != nil {
		return nil, err
	}
	defer leaveLine()
	var samples []int
	err = wait.PollUntilContextCancel(ctx, pollInterval, true, func(context.Context) (bool, error) {
		most, err := count()
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
	return seatsWith(available), err
}

// seatsWith returns how many there are with so many KiB of memory.
func seatsWith(available int) int {
	if available < minMemory {
		return runtime.NumCPU()
	}
	return seats * runtime.NumCPU()
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

// lineUp waits until it is the turn of whoever calls it, in the order in which they came, and returns how to leave the
// line. Linux gives a lock to those that wait for it in their order, and takes it from a process that ends. Whoever is
// interrupted by a signal goes to the end of the line.
func lineUp(ctx context.Context, name string) (leave func(), err error) {
	file, err := openForAll(lockFile(name))
	if err != nil {
		return nil, err
	}
	locked := make(chan error)
	go func() {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX)
		for errors.Is(err, unix.EINTR) {
			err = unix.Flock(int(file.Fd()), unix.LOCK_EX)
		}
		select {
		case locked <- err:
		case <-ctx.Done(): // Nobody waits for it any more.
			_ = file.Close()
		}
	}()
	select {
	case err = <-locked:
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for others that want to start an API server: %w", ctx.Err())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("locking %s: %w", file.Name(), err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// lockOneOf locks one of n files that nobody else has locked. Without one it returns nil.
func lockOneOf(name string, n int) (unlock func(), err error) {
	for i := range n {
		file, err := openForAll(lockFile(fmt.Sprintf("%s-%d", name, i)))
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

func lockFile(name string) string { return filepath.Join(os.TempDir(), "svm-controlplane-"+name) }

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
