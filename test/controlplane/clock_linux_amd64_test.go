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
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestShiftedClock sets the clock of a running process, twice. No time passes for it.
func TestShiftedClock(t *testing.T) {
	const year = 366 * 24 * time.Hour
	path := filepath.Join(t.TempDir(), "clock")
	if out, err := exec.Command("go", "build", "-o", path, "./testdata/clock").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	network, err := newLoopback()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = network.close() }()
	began := time.Now()
	p, err := startProcess(network.host, Program{Name: "clock", Path: path}, path+".log")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Kill() }()
	for _, shift := range []time.Duration{0, 2 * year, -10 * year} {
		if err := p.ShiftClock(shift); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("\n%d ", time.Now().Add(shift).UTC().Year())
		deadline := time.Now().Add(time.Minute)
		for !strings.Contains(p.tail(), want) {
			if time.Now().After(deadline) {
				t.Fatalf("a clock that was shifted by %v does not show %q:\n%s", shift, want, p.tail())
			}
			time.Sleep(pollInterval)
		}
	}
	var shown, passed int
	tail := p.tail()
	if _, err := fmt.Sscan(tail[strings.LastIndex(tail, "\n"):], &shown, &passed); err != nil {
		t.Fatalf("%v in %q", err, tail)
	}
	if real := int(time.Since(began).Seconds()) + 2; passed < 0 || passed > real {
		t.Errorf("%d seconds have passed in the process, and at most %d outside", passed, real)
	}
}
