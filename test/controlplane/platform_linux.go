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
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

const stopTimeout = 10 * time.Second

func checkPlatform() error { return nil }

func onMainThread() bool { return unix.Gettid() == unix.Getpid() }

// childAttributes makes the kernel kill the child when the thread that started it ends, and keeps the terminal's
// signals away from it: who ends a child, and in what order, is decided here.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

func killGroup(pid int) error { return signalGroup(pid, syscall.SIGKILL) }

func terminate(pid int) error {
	// A stopped process would sleep on the signal.
	return errors.Join(signalGroup(pid, syscall.SIGTERM), signalGroup(pid, syscall.SIGCONT))
}

// pauseGroup returns when the process has really stopped: the signal only asks for it.
func pauseGroup(pid int) error {
	if err := signalGroup(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(
		context.Background(),
		time.Millisecond,
		stopTimeout,
		true,
		func(context.Context) (bool, error) {
			state, err := processState(pid)
			return state == 'T', err
		},
	)
}

func resumeGroup(pid int) error { return signalGroup(pid, syscall.SIGCONT) }

func signalGroup(pid int, signal syscall.Signal) error {
	if err := syscall.Kill(-pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("sending %v to process group %d: %w", signal, pid, err)
	}
	return nil
}

// processState is the letter by which /proc calls the state of a process.
func processState(pid int) (byte, error) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, fmt.Errorf("reading the state of process %d: %w", pid, err)
	}
	// The name, in parentheses, may contain anything; the state follows the last one.
	_, rest, found := bytes.Cut(stat[bytes.LastIndexByte(stat, ')'):], []byte(" "))
	if !found || len(rest) == 0 {
		return 0, fmt.Errorf("the state of process %d is unreadable: %q", pid, stat)
	}
	return rest[0], nil
}
