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
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestTurns(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	release, err := takeTurn(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 3*pollInterval)
	defer cancel()
	if _, err := takeTurn(short, 1); err == nil {
		t.Error("two have the only turn")
	}
	second, err := takeTurn(t.Context(), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer second()
	time.AfterFunc(3*pollInterval, release)
	third, err := takeTurn(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	third()
}

func TestCalm(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	n, err := runnable()
	if err != nil {
		t.Fatal(err)
	}
	if n < 1 {
		t.Errorf("%d threads run, without the one that asks", n)
	}
	most := crowd * runtime.NumCPU()
	busy, calm := slices.Repeat([]int{most + 1}, crowdSamples), slices.Repeat([]int{most}, crowdSamples)
	for _, samples := range [][]int{nil, calm[1:], busy, slices.Concat(calm, busy)} {
		if isCalm(samples) {
			t.Errorf("%v: a machine that is busy, or not known, counts as calm", samples)
		}
	}
	for _, samples := range [][]int{calm, slices.Concat(busy, calm)} {
		if !isCalm(samples) {
			t.Errorf("%v: a calm machine counts as busy", samples)
		}
	}
}

func TestSeats(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	const most = 3
	for range most {
		leave, err := awaitSeat(t.Context(), func() (int, error) { return most, nil })
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
	}
	// Whoever waited for a calm machine instead of taking a free seat has left a seat free.
	if unlock, err := lockOneOf("seat", most); err != nil || unlock != nil {
		t.Errorf("there is one more seat, error %v", err)
	}
	if got, want := seatsWith(minMemory-1), runtime.NumCPU(); got != want {
		t.Errorf("there are %d seats with too little memory, want %d", got, want)
	}
	if got, want := seatsWith(minMemory), seats*runtime.NumCPU(); got != want {
		t.Errorf("there are %d seats, want %d", got, want)
	}
	total, err := kernelSays("/proc/meminfo", "MemTotal:")
	if err != nil {
		t.Fatal(err)
	}
	available, err := kernelSays("/proc/meminfo", "MemAvailable:")
	if err != nil || available < 1 || available > total {
		t.Errorf("%d KiB of %d are available, error %v", available, total, err)
	}
}

// TestSeatsInOrder has one seat, for which others wait when they come, however calm the machine is.
func TestSeatsInOrder(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	one := func() (int, error) { return 1, nil }
	leave, err := awaitSeat(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	const waiting, impatient = 5, 2
	ended, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	seated, gaveUp := make(chan int), make(chan error)
	before := countLocks(t)
	for i := range waiting {
		go func() {
			ctx := t.Context()
			if i == impatient {
				ctx = ended
			}
			leave, err := awaitSeat(ctx, one)
			if err != nil {
				gaveUp <- err
				return
			}
			seated <- i
			leave()
		}()
		for began := time.Now(); countLocks(t) < before+i+1; time.Sleep(pollInterval / 10) {
			if time.Since(began) > time.Minute {
				t.Fatalf("number %d has not lined up", i)
			}
		}
	}
	giveUp()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Errorf("a start that was given up ended with %v", err)
	}
	leave()
	for i := range waiting {
		if i == impatient {
			continue
		}
		select {
		case got := <-seated:
			if got != i {
				t.Errorf("number %d has the seat, want %d", got, i)
			}
		case err := <-gaveUp:
			t.Fatal(err)
		}
	}
}

// countLocks counts the locks on files that this process has or waits for.
func countLocks(t *testing.T) (n int) {
	t.Helper()
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(locks)) {
		fields := strings.Fields(line)
		at := slices.Index(fields, "FLOCK") + 3 // "1: -> FLOCK ADVISORY WRITE 4711 fe:00:42 0 EOF"
		if at > 2 && at < len(fields) && fields[at] == strconv.Itoa(os.Getpid()) {
			n++
		}
	}
	return n
}
